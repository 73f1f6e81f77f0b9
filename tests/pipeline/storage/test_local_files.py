"""Files of this machine: created exclusively, replaced atomically, and synced with all parent folders."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.spark.checkpoint import Checkpoint
from tests.pipeline.local_session import LocalSession, local_files
from tests.tries import tries


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return the paths that are synced during the test."""
    seen: set[str] = set()
    sync = os.fsync

    def note(place: int) -> None:
        seen.add(os.readlink(f"/proc/self/fd/{place}"))
        sync(place)

    monkeypatch.setattr(os, "fsync", note)
    return seen


def no_links(*_: object) -> None:
    raise OSError(errno.EPERM, "no hard links here")


@pytest.mark.parametrize("links", [True, False])
def test_file_that_is_there_is_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool) -> None:
    if not links:
        monkeypatch.setattr(os, "link", no_links)
    files = local_files(tmp_path)
    files.write("a/b", "first")
    with pytest.raises(PipelineError, match="written by somebody else"):
        files.write("a/b", "second")
    assert files.claim("a/c", "first")
    assert not files.claim("a/c", "second")
    assert (files.read("a/b"), files.read("a/c")) == ("first", "first")
    assert sorted(os.listdir(tmp_path / "a")) == ["b", "c"]


@pytest.mark.parametrize("links", [True, False])
def test_one_of_several_gets_what_all_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool) -> None:
    if not links:
        monkeypatch.setattr(os, "link", no_links)
    for number in range(20):
        together = threading.Barrier(4)
        got: list[bool] = []

        def claim(number: int = number, together: threading.Barrier = together, got: list[bool] = got) -> None:
            together.wait(60)
            got.append(local_files(tmp_path).claim(str(number), "x"))

        threads = [threading.Thread(target=claim) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert sorted(got) == [False, False, False, True]


def test_what_is_synced_has_its_checksums_and_all_folders_with_it(tmp_path: Path, synced: set[str]) -> None:
    root = tmp_path / "new" / "archive"
    files = local_files(root)
    for name in ("part.parquet", ".part.parquet.crc"):
        (root / "topic=t" / "date=d").mkdir(parents=True, exist_ok=True)
        (root / "topic=t" / "date=d" / name).write_bytes(b"x")
    files.sync(["topic=t/date=d/part.parquet"])
    folders = [root / "topic=t" / "date=d", root / "topic=t", root, root.parent, tmp_path]
    expected = {str(path) for path in [*folders, folders[0] / "part.parquet", folders[0] / ".part.parquet.crc"]}
    assert expected <= synced
    synced.clear()
    files.write("_manifest/entry.json", "{}")
    assert {str(root / "_manifest"), str(root)} <= synced
    assert any(path.startswith(str(root / "_manifest" / ".entry.json.")) for path in synced)


def test_no_checksum_of_another_content_stays(tmp_path: Path) -> None:
    files = local_files(tmp_path)
    for name in (".new.crc", ".moved.crc", ".replaced.crc", "moved", "replaced", "other", ".other.crc", "third"):
        (tmp_path / name).write_text(f"of {name}")
    files.write("new", "new")
    files.replace("third", "replaced")
    files.move("other", "moved")
    assert sorted(os.listdir(tmp_path)) == [".moved.crc", "moved", "new", "replaced"]
    assert (tmp_path / ".moved.crc").read_text() == "of .other.crc"
    assert [each.name for each in files.listing()] == ["moved", "new", "replaced"]
    files.delete("moved")
    assert not (tmp_path / ".moved.crc").exists()


def test_file_that_is_replaced_is_there_all_the_time(tmp_path: Path) -> None:
    files = local_files(tmp_path)
    files.write("file", "0")
    over = threading.Event()
    missing: list[str] = []

    def look() -> None:
        while not over.is_set():
            if not (tmp_path / "file").exists():
                missing.append("the file")

    reader = threading.Thread(target=look)
    reader.start()
    try:
        for number in range(tries(200)):
            files.write("scratch", str(number))
            files.replace("scratch", "file")
    finally:
        over.set()
        reader.join(60)
    assert missing == []


def test_what_the_system_refuses_is_a_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    files = local_files(tmp_path / "file")
    with pytest.raises(PipelineError, match=rf"cannot use file:{tmp_path}/file/a/b: (Not a directory|File exists)"):
        files.write("a/b", "x")
    with pytest.raises(PipelineError, match="to the disk: Not a directory"):
        files.sync(["a"])


@pytest.mark.parametrize("text", ["", "{", "[]", "{}"])
def test_damaged_name_of_a_stream_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "metadata").write_text(text)
    with pytest.raises(PipelineError, match=rf"file:{tmp_path}/metadata is damaged: it does not name the stream"):
        Checkpoint(LocalSession(), str(tmp_path)).query()
