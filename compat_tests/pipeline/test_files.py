"""Hadoop's own file systems, here a view (viewfs) of a local folder, work like the files of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from compat_tests.spark.session import spark
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.storage.files import Files
from kbroker.pipeline.storage.lock import NAME, WriterLock
from tests.pipeline.local_session import local_files

pytestmark = pytest.mark.spark


def viewed(folder: Path) -> Files:
    """Return a folder's files through a file system other than `file:`."""
    session = spark()
    conf = session._jsc.hadoopConfiguration()
    conf.set("fs.viewfs.mounttable.kbroker.link./here", f"file:{folder}")
    conf.set("fs.viewfs.impl.disable.cache", "true")
    return Files(session, "viewfs://kbroker/here")


@pytest.mark.parametrize("kind", ["viewfs", "file"])
def test_files_and_their_lock(tmp_path: Path, kind: str) -> None:
    files = viewed(tmp_path) if kind == "viewfs" else Files(spark(), str(tmp_path))
    assert files.url("a/b").startswith(f"{kind}:")
    files.write("a/b", "first")
    with pytest.raises(PipelineError, match="written by somebody else"):
        files.write("a/b", "second")
    assert files.claim("a/c", "first")
    assert not files.claim("a/c", "second")
    files.move("a/c", "d/c")
    files.replace("d/c", "a/b")
    assert [each.name for each in files.walk("")] == ["a/b"]
    assert files.read("a/b") == "first"
    assert abs(files.modified("a/b") - (tmp_path / "a" / "b").stat().st_mtime) < 1
    files.sync(["a/b"])
    with WriterLock(files, renewed_s=0.05) as lock:
        for _ in range(50):
            lock.check()
            with pytest.raises(PipelineError, match="another job writes to"):
                WriterLock(files).__enter__()
    files.delete("d")
    files.delete("a")
    assert files.listing() == []
    with pytest.raises(PipelineError, match="cannot read"):
        files.read("a/b")


def test_lock_of_a_job_that_found_its_folder_by_another_way_counts(tmp_path: Path) -> None:
    with WriterLock(viewed(tmp_path)), pytest.raises(PipelineError, match="another job writes to"):
        WriterLock(local_files(tmp_path)).__enter__()
    assert not (tmp_path / NAME).exists()


def test_spark_reads_what_was_written_where_it_wrote_before(tmp_path: Path) -> None:
    session, folder = spark(), tmp_path / "table"
    for number in (3, 5):
        session.range(number).coalesce(1).write.parquet(str(tmp_path / "new"))
        files = Files(session, str(tmp_path))
        (found,) = [each.name for each in files.walk("new") if each.name.endswith(".parquet")]
        files.replace(found, "table/x.parquet")
        files.delete("new")
        session.catalog.refreshByPath(str(folder))
        assert session.read.parquet(str(folder)).count() == number
    files.move("table/x.parquet", "table/y.parquet")
    assert session.read.parquet(str(folder)).count() == 5
