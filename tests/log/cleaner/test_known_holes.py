"""It stays known that a log was once compacted; otherwise recovery takes a hole for a loss of records."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.log import checkpoints
from kbroker.log.directories.log_directory import LogDirectory
from kbroker.log.log_config import LogConfig
from tests.log.builders import NOW, batch, committed, offsets_of, read_all

KEY = ("topic", 0)
CONFIG = LogConfig(segment_bytes=300)


def started(directory: Path) -> LogDirectory:
    manager = LogDirectory(str(directory), node_id=0, cluster_id="cluster")
    manager.open()
    manager.load(lambda _topic: CONFIG, NOW)
    return manager


@pytest.fixture
def holes(tmp_path: Path) -> list[int]:
    """Return a log with a hole in its first segment, as compaction leaves it, and the remaining offsets."""
    manager = started(tmp_path)
    log = manager.get_or_create(*KEY, None, CONFIG)
    for _ in range(20):
        log.append_as_leader(batch(), 0, NOW)
    committed(log)
    bases = list(log.segments.bases)
    manager.close(now_ms=NOW)
    first = tmp_path / "topic-0" / f"{bases[0]:020d}.log"
    first.write_bytes(first.read_bytes()[-len(batch()) :])  # all records but the last are superseded
    return list(range(bases[1] - 1, 20))


def crash_twice(directory: Path, holes: list[int]) -> None:
    """Recover twice with the holes: the first start must keep the knowledge for the second."""
    for _ in range(2):
        (directory / checkpoints.CLEAN_SHUTDOWN).unlink(missing_ok=True)
        checkpoints.write_offsets(str(directory / checkpoints.RECOVERY_POINTS), {KEY: 1})
        manager = started(directory)
        assert offsets_of(read_all(manager.logs[KEY])) == holes
        manager.close(clean=False)
    assert KEY in checkpoints.read_offsets(str(directory / checkpoints.CLEANER_OFFSETS))


def test_a_log_that_was_cut_off_below_what_was_clean_keeps_what_recovery_needs_to_know(
    tmp_path: Path, holes: list[int]
) -> None:
    cleaned = str(tmp_path / checkpoints.CLEANER_OFFSETS)
    checkpoints.write_offsets(cleaned, {KEY: 1000})  # the log was longer at that time
    crash_twice(tmp_path, holes)


@pytest.mark.parametrize("content", [b"", b"garbage", b"0\n1\ntopic zero 0\n", b"0\n2\nother 0 5\n", b"\xff\n"])
def test_s6_where_it_cannot_be_read_any_log_may_have_holes(tmp_path: Path, holes: list[int], content: bytes) -> None:
    (tmp_path / checkpoints.CLEANER_OFFSETS).write_bytes(content)
    crash_twice(tmp_path, holes)
