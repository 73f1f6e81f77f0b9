"""A leader's batches, appended unchanged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker.log.append_info import CLIENT, COORDINATOR, AppendError
from kbroker.log.log_config import LogConfig
from kbroker.log.partition_log import PartitionLog
from kbroker.log.recovery import LastStop
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.records import build_batch, build_marker, iter_batches
from tests.log.builders import first_at

NOW = 1_700_000_000_000
CONFIG = LogConfig(segment_bytes=2000, index_interval_bytes=100)
Make = Callable[..., PartitionLog]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def make(name: str, config: LogConfig = CONFIG, **options: int) -> PartitionLog:
        directory = tmp_path / name
        directory.mkdir(exist_ok=True)
        return PartitionLog(str(directory), "t", 0, config, now_ms=NOW, stop=LastStop(**options))

    return make


def lead(log: PartitionLog, count: int = 1, epoch: int = 0, **fields: int) -> None:
    records = build_batch([(NOW + each, b"k", b"v" * 50, ()) for each in range(count)], **fields)
    log.append_as_leader(records, epoch, NOW, origin=CLIENT)


def batches(log: PartitionLog) -> list[memoryview]:
    found = []
    for segment in log.segments:
        data = memoryview(Path(segment.path()).read_bytes())
        found += [data[position : position + header.size] for position, header in iter_batches(data)]
    return found


def copy(source: PartitionLog, target: PartitionLog, begin: int = 0) -> None:
    for batch in batches(source)[begin:]:
        target.append_as_follower(batch, NOW)


def content(log: PartitionLog) -> bytes:
    return b"".join(Path(segment.path()).read_bytes() for segment in log.segments)


def test_a_copy_is_the_same_byte_for_byte_and_knows_the_same(make: Make) -> None:
    leader, follower = make("leader"), make("follower")
    for number in range(40):
        fields = {"producer_id": number % 3, "producer_epoch": 0, "base_sequence": number // 3}
        lead(leader, 1, number // 15, **fields)
    copy(leader, follower)
    assert content(follower) == content(leader)
    assert follower.segments.bases == leader.segments.bases
    assert len(follower.segments) > 1
    assert follower.log_end_offset == leader.log_end_offset == 40
    assert follower.leader_epochs.entries == leader.leader_epochs.entries == [(0, 0), (1, 15), (2, 30)]
    assert follower.producers.entries.keys() == leader.producers.entries.keys()
    for each, entry in follower.producers.entries.items():
        assert entry.batches == leader.producers.entries[each].batches
    assert follower.high_watermark == 0
    assert first_at(follower, NOW) == first_at(leader, NOW)
    follower.close()
    assert make("follower", recovery_point=40).log_end_offset == 40


def test_transactions_and_their_ends(make: Make) -> None:
    leader, follower = make("leader"), make("follower")
    for number, commit in enumerate((True, False)):
        records = build_batch(
            [(NOW, b"k", b"v", ())], producer_id=7, producer_epoch=0, base_sequence=number, transactional=True
        )
        leader.append_as_leader(records, 0, NOW)
        end = build_marker(producer_id=7, producer_epoch=0, commit=commit, coordinator_epoch=0, timestamp=NOW)
        leader.append_as_leader(end, 0, NOW, origin=COORDINATOR)
    for log in (leader, follower):
        if log is follower:
            copy(leader, follower)
        log.set_high_watermark(4)
    assert follower.aborted_transactions(0, 4) == leader.aborted_transactions(0, 4) == [(7, 2)]
    assert follower.last_stable_offset == 4


def test_what_is_damaged_or_out_of_place_changes_nothing(make: Make) -> None:
    leader, follower = make("leader"), make("follower")
    for epoch in (3, 3, 3):
        lead(leader, 2, epoch)
    first, second, third = batches(leader)
    follower.append_as_follower(first, NOW)
    before = content(follower)
    older = bytearray(second)
    older[12:16] = (2).to_bytes(4)
    negative = bytearray(second)
    negative[0:8] = (-1).to_bytes(8, signed=True)
    for wrong in (
        bytes(second[:-1]) + b"?",
        second[:-1],
        second[:20],
        bytes(second) + b"?",
        older,
        negative,
        first,
        bytes(second[:16]) + b"\x01" + bytes(second[17:]),
    ):
        with pytest.raises(AppendError) as refused:
            follower.append_as_follower(memoryview(wrong), NOW)
        assert refused.value.code is ErrorCode.CORRUPT_MESSAGE
    assert content(follower) == before
    assert follower.log_end_offset == 2
    follower.append_as_follower(second, NOW)
    follower.append_as_follower(third, NOW)
    assert content(follower) == content(leader)


def test_holes_that_compaction_left_stay(make: Make) -> None:
    leader, follower = make("leader"), make("follower")
    for _ in range(6):
        lead(leader)
    for batch in batches(leader)[::2]:
        follower.append_as_follower(batch, NOW)
    assert follower.log_end_offset == 5
    assert follower.may_have_holes
    follower.set_high_watermark(5)
    assert follower.read(1, 10_000, 5, min_one=True).size > 0


def test_a_log_that_begins_within_a_batch_takes_all_of_it(make: Make) -> None:
    leader, follower = make("leader"), make("follower")
    for _ in range(3):
        lead(leader, 5, 2)
    follower.truncate_fully(7, NOW)
    damaged = bytearray(batches(leader)[1])
    damaged[-1] ^= 1
    with pytest.raises(AppendError):
        follower.append_as_follower(memoryview(damaged), NOW)
    assert (follower.log_start_offset, follower.log_end_offset) == (7, 7)
    copy(leader, follower, 1)
    assert (follower.log_start_offset, follower.high_watermark, follower.log_end_offset) == (7, 7, 15)
    assert follower.segments.bases == [5]
    assert follower.leader_epochs.entries == [(2, 7)]


def test_a_cut_at_the_end_forgets_an_epoch_in_which_nothing_was_written(make: Make) -> None:
    log = make("log")
    lead(log, 2, 1)
    log.leader_epochs.assign(5, 2)
    log.truncate_to(2, NOW)
    assert log.leader_epochs.entries == [(1, 0)]
    assert log.log_end_offset == 2


def test_a_full_disk_leaves_the_log_as_it_was(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    leader, follower = make("leader"), make("follower")
    lead(leader)
    (batch,) = batches(leader)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("kbroker.log.segment.segment.os.pwrite", full)
        with pytest.raises(AppendError) as refused:
            follower.append_as_follower(batch, NOW)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert follower.log_end_offset == 0
    follower.append_as_follower(batch, NOW)
    assert content(follower) == content(leader)


def test_an_idle_log_is_stable_to_its_high_watermark_again_after_a_crash_and_after_a_cut(make: Make) -> None:
    """The high watermark might never move again, so transactions that ended below it must count as ended."""
    log = make("log")
    records = build_batch([(NOW, b"k", b"v", ())], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    log.append_as_leader(records, 0, NOW)
    end = build_marker(producer_id=7, producer_epoch=0, commit=True, coordinator_epoch=0, timestamp=NOW)
    log.append_as_leader(end, 0, NOW, origin=COORDINATOR)
    log.set_high_watermark(2)
    lead(log, 3, 1)
    log.flush()
    again = make("log", high_watermark=2)
    assert (again.high_watermark, again.last_stable_offset) == (2, 2)
    again.truncate_to(2, NOW)
    assert (again.log_end_offset, again.high_watermark, again.last_stable_offset) == (2, 2, 2)
