"""A log that is cut: its indexes, and its producers, which are found again in pieces."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kbroker.log.log_config import LogConfig
from kbroker.log.partition_log import PartitionLog
from kbroker.log.segment.segment import Segment
from tests.log.builders import NOW, batch, open_log
from tests.tries import tries


def entries(segment: Segment) -> tuple[list[tuple[int, int]], list[tuple[int, int]], tuple[int, int]]:
    offsets, times = segment.indexes.open()
    known = segment.indexes.max_timestamp, segment.indexes.max_offset
    return [offsets.get(slot) for slot in range(offsets.count)], [times.get(slot) for slot in range(times.count)], known


@pytest.mark.parametrize("seed", range(tries(30)))
def test_what_is_left_of_the_indexes_is_what_reading_all_again_would_make(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    print(f"seed {seed}")
    log = open_log(tmp_path / "log", config=LogConfig(index_interval_bytes=rng.choice((1, 200, 1000))))
    for _ in range(rng.randrange(1, 60)):
        data = batch(rng.randrange(1, 4), value=bytes(rng.randrange(300)), timestamp=NOW - rng.randrange(10_000))
        log.append_as_leader(data, 0, NOW)
        if rng.random() < 0.05:
            log.release_idle(force=True)
    while log.log_end_offset:
        log.truncate_to(rng.randrange(log.log_end_offset), NOW)
        segment = log.segments.active
        offsets, times, newest = entries(segment)
        segment._rebuild_indexes()
        expected_offsets, expected_times, expected_newest = entries(segment)
        assert (offsets, newest) == (expected_offsets, expected_newest)
        assert set(times) >= set(expected_times), "and what was noted when the files were closed"
        assert times == sorted(times)
        if rng.random() < 0.3:
            log.append_as_leader(batch(timestamp=NOW - rng.randrange(10_000)), 0, NOW)


def produced(log: PartitionLog, count: int) -> None:
    for number in range(count):
        fields = {"producer_id": number % 3, "producer_epoch": 0, "base_sequence": number // 3}
        log.append_as_leader(batch(**fields), 0, NOW)


def known(log: PartitionLog) -> dict[int, int]:
    return {producer: entry.last_sequence for producer, entry in log.producers.entries.items()}


def test_producers_are_found_again_in_pieces_and_the_log_can_be_read_meanwhile(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log")
    produced(log, 3000)
    log.set_high_watermark(2000)
    work = log.truncate_in_pieces(2500, NOW)
    next(work)
    assert log.log_end_offset == 2500
    assert log.read(2400, 1000, 2500, min_one=True).size
    assert log.last_stable_offset == 2000
    assert sum(1 for _ in work) > 5
    assert known(log) == {0: 833, 1: 832, 2: 832}


def test_whoever_needs_the_producers_sooner_gets_them_at_once(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log")
    produced(log, 3000)
    leader = open_log(tmp_path / "leader")
    produced(leader, 2501)
    work = log.truncate_in_pieces(2600, NOW)
    next(work)
    again = log.truncate_in_pieces(2500, NOW)  # what was begun before is void
    next(again)
    assert list(work) == []
    last = memoryview(Path(leader.segments.active.path()).read_bytes())
    log.append_as_follower(last[leader.segments.active.find(2500)[0] :], NOW)  # type: ignore[index]
    assert known(log) == known(leader)
    assert list(again) == []
    next(log.truncate_in_pieces(1000, NOW))
    log.close()
    assert known(open_log(tmp_path / "log", recovery_point=1000)) == {0: 333, 1: 332, 2: 332}
