"""Truncation of a log: its indexes, and its producers, which are rebuilt in pieces."""

from __future__ import annotations

import errno
import gc
import os
import random
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from kbroker.log import leader_epochs, log_state
from kbroker.log.append_info import AppendError
from kbroker.log.checkpoints import LEADER_EPOCHS
from kbroker.log.log_config import LogConfig
from kbroker.log.partition_log import PartitionLog
from kbroker.log.segment.segment import Segment
from kbroker.long_work import step
from tests.descriptors import no_descriptors
from tests.log.builders import NOW, batch, offsets_of, open_log, read_all
from tests.own_thread import in_this_thread
from tests.tries import tries
from tests.turns import turns


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
            log.segments.release_idle(force=True)
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
    work.send(None)
    assert log.log_end_offset == 2500
    assert log.read(2400, 1000, 2500, min_one=True).size
    assert log.last_stable_offset == 2000
    assert sum(1 for _ in turns(work)) > 5
    assert known(log) == {0: 833, 1: 832, 2: 832}


def test_whoever_needs_the_producers_sooner_gets_them_at_once(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log")
    produced(log, 3000)
    leader = open_log(tmp_path / "leader")
    produced(leader, 2501)
    work = log.truncate_in_pieces(2600, NOW)
    work.send(None)
    again = log.truncate_in_pieces(2500, NOW)  # work that began before is void
    again.send(None)
    assert step(work)
    last = memoryview(Path(leader.segments.active.path()).read_bytes())
    log.append_as_follower(last[leader.segments.active.find(2500)[0] :], NOW)  # type: ignore[index]
    assert known(log) == known(leader)
    assert step(again)
    log.truncate_in_pieces(1000, NOW).send(None)
    log.close()
    assert known(open_log(tmp_path / "log", recovery_point=1000)) == {0: 333, 1: 332, 2: 332}


def test_a_follower_that_is_cut_waits_for_no_disk_and_a_loss_of_power_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path / "log")
    for epoch in (0, 0, 1, 1, 2):
        log.append_as_leader(batch(), epoch, NOW)
    before = (tmp_path / "log" / LEADER_EPOCHS).read_bytes()
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", in_this_thread(synced.append, os.fsync))
    log.truncate_to(3, NOW)
    log.leader_epochs.assign(2, 3, sync=False)
    log.truncate_to(3, NOW)  # only for the epoch that has no batch
    assert log.leader_epochs.entries == [(0, 0), (1, 2)]
    assert synced == []
    monkeypatch.undo()
    log.append_as_leader(batch(), 5, NOW)
    log.append_as_leader(batch(), 5, NOW)
    log.close()
    (tmp_path / "log" / LEADER_EPOCHS).write_bytes(before)
    again = open_log(tmp_path / "log", clean=False, recovery_point=3)
    assert again.proven_epochs().entries == [(0, 0), (1, 2), (5, 3)]


def test_producers_that_cannot_be_found_again_are_an_error_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: object) -> None:
        raise OSError(errno.EIO, "broken")

    log = open_log(tmp_path / "log")
    produced(log, 10)
    monkeypatch.setattr(log_state, "rebuild_in_pieces", fails)
    with pytest.raises(OSError, match="broken"):
        log.truncate_to(5, NOW)
    log.finish_truncation()  # as before this broker became leader
    with pytest.raises(AppendError):
        log.append_as_leader(batch(), 0, NOW)
    with pytest.raises(AppendError):
        list(turns(log.truncate_fully_in_pieces(20, NOW)))
    log.close()


def test_a_log_that_is_dropped_while_it_is_cut_leaves_nothing_unawaited(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    log = open_log(tmp_path / "log", config=MANY)
    produced(log, 200)
    work = log.truncate_in_pieces(5, NOW)
    work.send(None)
    work.close()
    log.close(clean=False)
    del log, work
    gc.collect()
    assert [str(each.message) for each in recwarn if each.category is RuntimeWarning] == []  # other tests leave sockets


MANY = LogConfig(segment_bytes=300)
"""Some segments for a hundred records."""


def test_a_log_of_many_segments_begins_again_in_pieces(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log", config=MANY)
    produced(log, 200)
    log.set_high_watermark(50)
    counts = [len(log.segments)]
    assert counts[0] > 40
    for _ in turns(log.truncate_fully_in_pieces(5000, NOW)):
        counts.append(len(log.segments))
        assert log.log_start_offset == log.segments.bases[0] <= log.high_watermark
        assert log.read(log.log_start_offset, 1000, 200, min_one=True).size
    assert max(before - after for before, after in pairwise(counts)) <= 8
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (5000, 5000, 5000)
    assert (len(log.segments), known(log)) == (1, {})
    produced(log, 3)
    log.close()
    again = open_log(tmp_path / "log", config=MANY)
    assert (again.log_start_offset, again.log_end_offset) == (5000, 5003)


def test_a_log_that_was_beginning_again_when_the_broker_died_goes_on_with_what_is_left(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log", config=MANY)
    produced(log, 200)
    work = log.truncate_fully_in_pieces(5000, NOW)
    work.send(None)
    work.send(None)
    start = log.log_start_offset
    log.close()
    again = open_log(tmp_path / "log", config=MANY, clean=False)
    assert (again.log_start_offset, again.log_end_offset) == (start, 200)


def test_many_segments_are_cut_off_in_pieces(tmp_path: Path) -> None:
    log, plain = (open_log(tmp_path / name, config=MANY) for name in ("log", "plain"))
    for each in (log, plain):
        produced(each, 200)
    counts = [len(log.segments)]
    counts.extend(len(log.segments) for _ in turns(log.truncate_in_pieces(31, NOW)))
    plain.truncate_to(31, NOW)
    assert counts[-1] < 12 < counts[0]
    assert max(before - after for before, after in pairwise(counts)) <= 8
    assert (log.log_end_offset, known(log)) == (plain.log_end_offset, known(plain)) == (31, known(plain))
    for each in (log, plain):
        produced_again = batch(producer_id=7, producer_epoch=0, base_sequence=0)
        each.append_as_leader(produced_again, 0, NOW)
    assert [segment.base_offset for segment in log.segments] == [segment.base_offset for segment in plain.segments]


def at_its_offset(offset: int) -> memoryview:
    leaders = bytearray(batch())
    leaders[:8] = offset.to_bytes(8, "big")
    leaders[12:16] = bytes(4)  # leader epoch 0
    return memoryview(leaders)


@pytest.mark.parametrize("call", ["rename", "ftruncate"])
@pytest.mark.parametrize("fully", [False, True])
def test_nothing_is_appended_behind_what_a_cut_that_failed_half_way_has_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, fully: bool
) -> None:
    if fully and call == "ftruncate":
        call = "open"  # of the segment with which the log continues
    log = open_log(tmp_path / "log", config=LogConfig(segment_bytes=500))
    produced(log, 50)
    end, passing = log.log_end_offset, 10 if call == "rename" else 0
    system_call = getattr(os, call)

    def failing(*args: Any, **kw: Any) -> Any:
        nonlocal passing
        passing -= 1
        if passing < 0 and (call != "open" or args[1] & os.O_CREAT):
            raise OSError(errno.EIO, "no more")
        return system_call(*args, **kw)

    monkeypatch.setattr(os, call, failing)
    cut = partial(log.truncate_fully, 1000, NOW) if fully else partial(log.truncate_to, 11, NOW)
    with pytest.raises(OSError, match="no more"):
        cut()
    monkeypatch.undo()
    with pytest.raises(AppendError, match="truncation"):
        log.append_as_follower(at_its_offset(end), NOW)
    log.close(clean=False)
    again = open_log(tmp_path / "log", clean=False)
    offsets = offsets_of(read_all(again))
    assert offsets == list(range(again.log_start_offset, again.log_end_offset))


@pytest.mark.parametrize("fully", [False, True])
def test_a_cut_whose_epochs_could_not_be_written_is_half_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fully: bool
) -> None:
    """The producers are as before, and would answer for records that are gone."""
    log = open_log(tmp_path / "log", config=LogConfig(segment_bytes=500))
    produced(log, 20)
    log.append_as_leader(batch(), 3, NOW)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(leader_epochs, "write_epochs", full)
    cut = partial(log.truncate_fully, 1000, NOW) if fully else partial(log.truncate_to, 11, NOW)
    with pytest.raises(OSError, match="Too many"):
        cut()
    monkeypatch.undo()
    for again in (cut, partial(log.append_as_follower, at_its_offset(1000), NOW)):
        with pytest.raises(AppendError, match="truncation"):
            again()
    assert log.log_start_offset <= log.high_watermark <= log.log_end_offset


def test_a_cut_for_which_no_descriptor_is_left_changes_nothing_and_is_made_later(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log", config=LogConfig(segment_bytes=500))
    produced(log, 50)
    log.segments.release_idle(force=True)
    with no_descriptors(), pytest.raises(OSError, match="Too many open files"):
        log.truncate_to(11, NOW)
    assert log.log_end_offset == 50
    log.truncate_to(11, NOW)
    assert offsets_of(read_all(log)) == list(range(11))
    log.append_as_follower(at_its_offset(11), NOW)
