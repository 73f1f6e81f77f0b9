"""A name becomes a path only if a topic may have that name; nothing outside a log directory is changed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from kbroker.log.directories.deleted_partitions import Remover
from kbroker.log.directories.log_directory import LogDirectory
from kbroker.log.directories.log_manager import LogManager
from kbroker.log.directories.partition_dir_names import NewPartition, entries_of, make_ahead, partition_path
from kbroker.topic_names import partition_fault
from tests.log.builders import NOW, batch
from tests.log.directories.test_log_directory import CONFIG, TOPIC_ID, loaded

NAMES = [
    ".", "..", "../evil", "../outside/t", "sub/t", "/absolute", "", "nul\0", "new\nline", "a b", "é", "x" * 250,
    "..\\evil", "t/../../outside/t",
]  # fmt: skip


def snapshot(directory: Path) -> dict[str, tuple[float, bytes | None]]:
    """Return everything below a directory, with modification times and contents."""
    return {
        str(path.relative_to(directory)): (path.lstat().st_mtime_ns, path.read_bytes() if path.is_file() else None)
        for path in sorted(directory.rglob("*"))
    }


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """Create a directory beside the log directory: another broker's partition, and a file that belongs to no log."""
    other = loaded(tmp_path / "outside")
    other.get_or_create("t", 0, TOPIC_ID, CONFIG).append_as_leader(batch(), 0, NOW)
    other.close()
    (tmp_path / "evil-0").mkdir()
    (tmp_path / "evil-0" / "precious.txt").write_text("not a log")
    return tmp_path


def create(logs: LogDirectory, name: str) -> None:
    logs.get_or_create(name, 0, TOPIC_ID, CONFIG)


def create_without_id(logs: LogDirectory, name: str) -> None:
    logs.get_or_create(name, 0, None, CONFIG)


def make(logs: LogDirectory, name: str) -> None:
    make_ahead(logs.directory, NewPartition((name, 0), TOPIC_ID))


@pytest.mark.parametrize("way", [create, create_without_id, make])
@pytest.mark.parametrize("name", NAMES)
def test_no_such_name_becomes_a_path(outside: Path, name: str, way: Callable[[LogDirectory, str], None]) -> None:
    logs = loaded(outside / "data")
    before = snapshot(outside)
    with pytest.raises(OSError, match="no topic can be named"):
        way(logs, name)
    assert snapshot(outside) == before
    assert not logs.logs
    assert partition_fault(name, 0) is not None
    logs.close()


def test_no_partition_has_a_negative_number(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="no partition -1"):
        partition_path(str(tmp_path), "t", -1)
    assert partition_path(str(tmp_path), "t", 0) == f"{tmp_path}/t-0"


@pytest.mark.parametrize("suffix", ["", ".0123456789abcdef0123456789abcdef-delete", ".0123-future"])
def test_links_are_not_followed(outside: Path, suffix: str) -> None:
    data = outside / "data"
    data.mkdir()
    os.symlink(outside / "outside" / "t-0", data / f"t-0{suffix}")
    before = snapshot(outside / "outside")
    found = entries_of(str(data))
    assert (found.partitions, found.futures, found.deleted) == ([], [], [])
    logs = loaded(data)
    assert not logs.logs
    if not suffix:
        with pytest.raises(OSError, match="is a link"):
            logs.get_or_create("t", 0, TOPIC_ID, CONFIG)
    logs.tick(NOW + 10**9)
    logs.close()
    assert snapshot(outside / "outside") == before


@pytest.mark.parametrize("in_cluster", [False, True])
def test_a_partition_without_a_place_takes_no_directory_offline(tmp_path: Path, in_cluster: bool) -> None:
    logs = LogDirectory(str(tmp_path / "data"), node_id=1, cluster_id="cluster", in_cluster=in_cluster)
    dirs = LogManager([logs], logs.directory)
    fatal: list[str] = []
    dirs.events = SimpleNamespace(logs_failed=fatal.append)  # type: ignore[assignment]
    dirs.open()
    dirs.load(lambda _topic: CONFIG, NOW, lambda *_: True)
    (tmp_path / "elsewhere").mkdir()
    os.symlink(tmp_path / "elsewhere", tmp_path / "data" / "t-0")
    for name in ("t", "../evil"):
        with pytest.raises(OSError, match=r"is a link|no topic"):
            dirs.get_or_create(name, 0, TOPIC_ID, CONFIG)
    assert not fatal
    assert not logs.failure
    dirs.get_or_create("t", 1, TOPIC_ID, CONFIG)
    dirs.close()
    assert not list((tmp_path / "elsewhere").iterdir())


def test_directories_of_names_that_no_topic_has_are_no_partitions(tmp_path: Path) -> None:
    for name in ("..-0", "a b-0", "new\nline-0", "é-1"):
        (tmp_path / name).mkdir()
    (tmp_path / "t-0").mkdir()
    assert [key for key, _ in entries_of(str(tmp_path)).partitions] == [("t", 0)]


def test_what_is_no_file_of_a_log_is_not_removed(tmp_path: Path) -> None:
    doomed, foreign, link = tmp_path / "t-0.1-delete", tmp_path / "t-1.1-delete", tmp_path / "elsewhere"
    link.mkdir()
    (link / "precious.txt").write_text("not a log")
    for each in (doomed, foreign):
        each.mkdir()
        for name in (
            "00000000000000000000.log", "00000000000000000000.index", "00000000000000000000.timeindex.deleted",
            "00000000000000000007.snapshot", "00000000000000000000.log.cleaned", "00000000000000000000.txnindex.swap",
            "leader-epoch-checkpoint", "leader-epoch-checkpoint.tmp", "partition.metadata",
        ):  # fmt: skip
            (each / name).write_bytes(b"x")
    (foreign / "notes.txt").write_text("not a log")
    (foreign / "sub").mkdir()
    os.symlink(link, foreign / "00000000000000000000.log.swap")
    remover = Remover()
    remover.remove([str(doomed), str(foreign)])
    remover.wait()
    remover.close()
    assert not doomed.exists()
    assert {path.name for path in foreign.iterdir()} == {"notes.txt", "sub", "00000000000000000000.log.swap"}
    assert (link / "precious.txt").read_text() == "not a log"
