"""The choice of the records of one batch: their timestamp, and what is found in pieces of the log."""

from __future__ import annotations

import asyncio
from array import array
from pathlib import Path

import pytest

from kbroker.log import record_walk
from kbroker.log.append_info import COORDINATOR
from kbroker.log.partition_log import PartitionLog
from kbroker.long_work import in_slices
from kbroker.protocol.compression import GZIP
from kbroker.protocol.records import build_batch, read_records
from kbroker.scheduling.firing import Chosen, Source
from kbroker.scheduling.index import DueRows
from kbroker.scheduling.lanes import Choice, LaneState
from tests.log.builders import NOW, open_log
from tests.scheduling.world import CONFIG, topic_of

HEADERS = (("x-delay", b"5"), ("x-deliver-to", b"a"))


def choose(log: PartitionLog, offsets: list[int], due_ms: int = NOW, now_ms: int = NOW, count: int = 1) -> Chosen:
    rows = DueRows(array("q", offsets), array("q", [due_ms] * len(offsets)), None, None)
    choice = Choice(topic_of("a", count), {}, LaneState())
    return asyncio.run(in_slices(Source("later", 0, log).choose(rows, "a", choice, 1 << 20, now_ms)))


def filled(folder: Path) -> PartitionLog:
    """Return a log with the values 0 to 99, in batches of 1, 7 and 20 records, some of them compressed."""
    log = open_log(folder, config=CONFIG)
    begin = 0
    for number, size in enumerate((1, 7, 20, 1, 1, 20, 20, 7, 3, 20)):
        records = [(NOW, None, b"%d" % value, HEADERS) for value in range(begin, begin + size)]
        codec = GZIP if number % 3 == 2 else 0
        log.append_as_leader(bytearray(build_batch(records, codec=codec)), 0, NOW, origin=COORDINATOR)
        begin += size
    return log


def values(chosen: Chosen) -> list[int]:
    batch = asyncio.run(in_slices(chosen.batch(1, 0)))
    return [int(each.value or b"") for each in read_records(batch, max_bytes=1 << 20)]


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(
    "offsets", [list(range(100)), list(range(99, -1, -1)), list(range(0, 100, 3)), [50, 2, 51, 99]]
)
def test_records_are_found_wherever_they_are(
    tmp_path: Path, offsets: list[int], compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setattr(record_walk, "find", None)
        monkeypatch.setattr(record_walk, "deliver", None)
    log = filled(tmp_path)
    chosen = choose(log, offsets)
    assert values(chosen) == offsets
    assert list(chosen.dues.offsets) == offsets
    log.close()


def test_what_is_not_there_any_more_is_lost_and_holds_nothing_up(tmp_path: Path) -> None:
    log = filled(tmp_path)
    chosen = choose(log, [5, 500, 6])
    assert (values(chosen), [row.offset for row in chosen.lost]) == ([5, 6], [500])
    log.close()


def test_the_timestamp_is_not_before_the_time_although_the_clock_went_back(tmp_path: Path) -> None:
    """A refused record is tried again by the clock of that moment, which may be before the time of the record."""
    log = filled(tmp_path)
    assert choose(log, [1, 2], due_ms=NOW + 5000).now_ms == NOW + 5000
    log.close()
