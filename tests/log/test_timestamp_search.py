"""The search by time in slices: how it decompresses stored batches, and changes of the log meanwhile."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

from kbroker.log.files import FileHandle
from kbroker.log.log_config import LogConfig
from kbroker.log.partition_log import PartitionLog
from kbroker.long_work import turn, whole
from kbroker.protocol.compression import CODEC_NAMES
from kbroker.protocol.records import compute_crc
from tests.log.bombs import BASE, minimal, numbered
from tests.log.builders import HOUR, NOW, batch, committed, delete_due, first_at, largest, open_log, purge

T = TypeVar("T")


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    """Return a log that accepts lying headers, as old logs contain them."""
    return open_log(tmp_path / "topic-0", config=LogConfig(record_validation="header"))


def claiming(records: bytes, max_timestamp: int) -> bytes:
    """Return a batch whose header claims a larger timestamp than its records have."""
    changed = bytearray(records)
    struct.pack_into(">q", changed, 35, max_timestamp)
    struct.pack_into(">I", changed, 17, compute_crc(changed))
    return bytes(changed)


def counted(work: Coroutine[Any, Any, T]) -> tuple[T, int]:
    """Return the result of work, and the number of its steps."""
    steps = 0
    while True:
        try:
            work.send(None)
        except StopIteration as end:
            return end.value, steps
        steps += 1


@pytest.mark.parametrize("codec", range(5))
def test_a_stored_bomb_is_searched_in_slices(log: PartitionLog, codec: int) -> None:
    """No record of the bomb is late enough, so the search reads all of them, and continues after it."""
    log.append_as_leader(claiming(minimal(20_000, codec), BASE + 50), 0, NOW)
    log.append_as_leader(batch(3, timestamp=BASE + 10), 0, NOW)
    tracemalloc.start()
    found, steps = counted(log.find_timestamp(BASE + 11))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == (20_001, BASE + 11, 0)
    assert steps > 30, CODEC_NAMES[codec]
    assert peak < 1 << 20, "less than objects for all of them"


def test_the_first_of_many(log: PartitionLog) -> None:
    log.append_as_leader(numbered(200_000, base_timestamp=BASE), 0, NOW)
    found, steps = counted(log.find_timestamp(BASE))
    assert (found, steps <= 3) == ((0, BASE, 0), True)


def test_what_lies_between_two_slices(log: PartitionLog) -> None:
    """Truncated, deleted, appended: the search answers for the log's state at the time when it reads it."""
    log.append_as_leader(claiming(minimal(50_000), BASE + 50), 0, NOW)
    log.append_as_leader(batch(3, timestamp=BASE + 10), 0, NOW)
    for change, expected in (
        (lambda: log.append_as_leader(batch(1, timestamp=BASE + 40), 0, NOW), (50_003, BASE + 40, 0)),
        (lambda: log.truncate_to(50_000), None),
        (lambda: log.append_as_leader(batch(1, timestamp=BASE + 60), 0, NOW), (50_000, BASE + 60, 0)),
        (lambda: log.truncate_fully(70_000), None),
    ):
        search = log.find_timestamp(BASE + 30)
        for _ in range(5):
            search.send(None)
        change()
        assert whole(search) == expected
        if expected is None and log.log_start_offset == 0:
            assert whole(log.find_max_timestamp()) is None, "no record has the timestamp that the header claims"


def test_a_header_that_lies_does_not_stop_the_search(log: PartitionLog) -> None:
    for _ in range(5):
        log.append_as_leader(claiming(batch(2, timestamp=BASE), BASE + 1000), 0, NOW)
        log.roll(NOW)
    log.append_as_leader(batch(1, timestamp=BASE + 500), 0, NOW)
    assert first_at(log, BASE + 400) == (10, BASE + 500, 0)
    assert first_at(log, BASE + 600) is None


def of_many_segments(directory: Path, count: int) -> PartitionLog:
    """Return a log with one record in each segment, as a start finds it."""
    config = LogConfig(segment_bytes=80, file_delete_delay_ms=0, retention_ms=1)
    log = open_log(directory, config=config)
    for number in range(count):
        log.append_as_leader(batch(timestamp=BASE + number), 0, NOW)
    log.close()
    return committed(open_log(directory, config=config))


@pytest.mark.long
@pytest.mark.parametrize("largest", [False, True])
def test_many_segments_are_opened_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, largest: bool) -> None:
    log = of_many_segments(tmp_path / "many-0", 300)
    opened = 0
    init = FileHandle.__init__

    def counting(*arguments: Any) -> None:
        nonlocal opened
        opened += 1
        init(*arguments)

    monkeypatch.setattr(FileHandle, "__init__", counting)
    work = log.find_max_timestamp() if largest else log.find_timestamp(BASE + 290)
    before, most = 0, 0

    async def watched() -> Any:
        nonlocal before, most
        while True:
            try:
                work.send(None)
            except StopIteration as end:
                return end.value
            most, before = max(most, opened - before), opened
            await turn

    assert whole(watched()) == ((299, BASE + 299, 0) if largest else (290, BASE + 290, 0))
    assert opened >= 290
    assert most < 30


@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("steps", [1, 3, 6])
def test_segments_that_go_between_two_slices(tmp_path: Path, steps: int, largest: bool) -> None:
    log = of_many_segments(tmp_path / "many-0", 100)
    work = log.find_max_timestamp() if largest else log.find_timestamp(BASE + 60)
    for _ in range(steps):
        work.send(None)
    log.advance_log_start(50, NOW)
    delete_due(log, BASE + 80)
    log.append_as_leader(batch(timestamp=BASE + 200), 0, NOW)
    found = whole(work)
    if largest:
        assert found in ((99, BASE + 99, 0), (100, BASE + 200, 0))
    else:
        assert found is not None
        assert found[0] >= 60


def test_deleted_segments_are_not_kept_by_a_search(tmp_path: Path) -> None:
    log = open_log(tmp_path / "many-0", config=LogConfig(segment_bytes=80, file_delete_delay_ms=0, retention_ms=1))
    for number in range(40):
        log.append_as_leader(batch(timestamp=BASE + number), 0, NOW)
    committed(log)
    assert first_at(log, BASE + 20) == (20, BASE + 20, 0)
    assert largest(log) == (39, BASE + 39, 0)
    assert delete_due(log, NOW + HOUR) == 40
    assert purge(log, NOW + HOUR) == 160
    assert log.segments.active.files.count == 1
