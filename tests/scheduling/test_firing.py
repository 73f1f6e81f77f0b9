"""The choice of the records of one batch: their timestamp, and what is found in pieces of the log."""

from __future__ import annotations

import asyncio
import itertools
from array import array
from pathlib import Path

import pytest

from kbroker.log import record_walk
from kbroker.log.append_info import COORDINATOR
from kbroker.log.partition_log import PartitionLog
from kbroker.long_work import in_slices
from kbroker.protocol.compression import GZIP
from kbroker.protocol.records import HEADER_SIZE, build_batch, iter_batches, read_records
from kbroker.schedules.marks import Due, Dues, Intent
from kbroker.scheduling.firing import Chosen, Source, SourceGone
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


@pytest.mark.parametrize("compiled", [True, False])
def test_damaged_records_are_lost_and_hold_nothing_up(
    tmp_path: Path, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is read from a damaged batch is delivered neither as it is nor with a new checksum."""
    if not compiled:
        monkeypatch.setattr(record_walk, "find", None)
        monkeypatch.setattr(record_walk, "deliver", None)
    log = filled(tmp_path)
    path = Path(log.segments[0].path())
    good = path.read_bytes()
    (_, first), (following, second) = itertools.islice(iter_batches(good), 2)
    assert (first.last_offset, second.last_offset) == (0, 7)
    for place in range(following + HEADER_SIZE, following + second.size, 3):
        for byte in (0, 3, 0x7F, 0xFF, good[place] ^ 1):
            path.write_bytes(good[:place] + bytes((byte,)) + good[place + 1 :])
            if byte == good[place]:
                continue
            chosen = choose(log, list(range(30)))
            assert values(chosen) == [0, *range(8, 30)]
            assert [row.offset for row in chosen.lost] == list(range(1, 8))
            intent = Intent(1, 0, 0, b"i" * 16, "a", 0, Dues.of(Due(offset, NOW) for offset in range(30)))
            with pytest.raises(SourceGone):
                asyncio.run(in_slices(Source("later", 0, log).again(intent, NOW)))
    path.write_bytes(good[: following + 16] + b"\x07" + good[following + 17 :])  # the magic number
    assert values(choose(log, [0, 1, 2, 29])) == [0, 29]
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
