"""The guard under which a transaction begins on a partition: without it, a batch could open one that no marker ends."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from kbroker.log.append_info import AppendError, AppendInfo
from kbroker.log.partition_log import PartitionLog
from kbroker.log.producers.producer_state import MAX_VERIFICATIONS, UNCHECKED
from kbroker.protocol.errors import ErrorCode
from tests.log.builders import NOW, batch, open_log
from tests.log.producers.test_producer_state import PID, end_txn

HOUR = 3_600_000


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    return open_log(tmp_path / "topic-0")


def begin(log: PartitionLog, *, epoch: int = 0, sequence: int = 0, epoch_bump: bool = False, pid: int = PID) -> Any:
    return log.producers.begin_verification(pid, epoch, sequence, epoch_bump, NOW)


def append(log: PartitionLog, guard: object, *, epoch: int = 0, sequence: int = 0, pid: int = PID) -> AppendInfo:
    data = batch(producer_id=pid, producer_epoch=epoch, base_sequence=sequence, transactional=True)
    return log.append_as_leader(data, 0, NOW, guard=guard)


def refused(log: PartitionLog, guard: object, **options: Any) -> ErrorCode:
    end = log.log_end_offset
    with pytest.raises(AppendError) as caught:
        append(log, guard, **options)
    assert log.log_end_offset == end
    assert log.producers.first_unstable == -1
    return caught.value.code


def test_a_transaction_begins_with_its_guard_and_goes_on_without(log: PartitionLog) -> None:
    guard = begin(log)
    assert append(log, guard).base_offset == 0
    assert begin(log, sequence=1) is None, "it is open"
    assert append(log, None, sequence=1).base_offset == 1


def test_without_a_guard_nothing_begins(log: PartitionLog) -> None:
    assert refused(log, None) is ErrorCode.INVALID_TXN_STATE
    assert refused(log, object()) is ErrorCode.INVALID_TXN_STATE
    begin(log)
    assert refused(log, None) is ErrorCode.INVALID_TXN_STATE
    assert append(log, UNCHECKED).base_offset == 0, "verification is switched off"


def test_t11_a_guard_from_before_the_marker_opens_nothing(log: PartitionLog) -> None:
    """The coordinator verified the transaction, then the transaction ended, and only then is the batch appended."""
    guard = begin(log)
    end_txn(log, commit=False)
    assert refused(log, guard) is ErrorCode.INVALID_TXN_STATE


def test_t11_a_guard_is_of_one_transaction_only(log: PartitionLog) -> None:
    """ABA: the answer for an old transaction arrives while the producer's next transaction is being verified."""
    stale = begin(log)
    end_txn(log, commit=False)
    fresh = begin(log)
    assert refused(log, stale) is ErrorCode.INVALID_TXN_STATE
    assert append(log, fresh).base_offset == 1


def test_version_2_a_marker_leaves_the_guard_of_the_next_transaction(log: PartitionLog) -> None:
    """The marker has the next transaction's epoch, which may be in verification; an older guard is removed."""
    old = begin(log, epoch=0, epoch_bump=True)
    append(log, old, epoch=0)
    following = begin(log, epoch=1, epoch_bump=True)
    end_txn(log, commit=True, epoch=1, version=2)
    assert append(log, following, epoch=1).base_offset == 2

    late = begin(log, epoch=1, epoch_bump=True, pid=PID + 1)
    end_txn(log, commit=True, epoch=2, version=2, pid=PID + 1)
    with pytest.raises(AppendError) as caught:
        append(log, late, epoch=1, pid=PID + 1)
    assert caught.value.code is ErrorCode.INVALID_PRODUCER_EPOCH


def test_t4_an_older_epoch_does_not_even_get_a_guard(log: PartitionLog) -> None:
    append(log, begin(log, epoch=3), epoch=3)
    with pytest.raises(AppendError) as caught:
        begin(log, epoch=2)
    assert caught.value.code is ErrorCode.INVALID_PRODUCER_EPOCH


def test_what_was_seen_first_comes_first(log: PartitionLog) -> None:
    """KAFKA-14920: a batch whose verification failed is sent again; the batch after it must not overtake it."""
    guard = begin(log, sequence=0)
    assert begin(log, sequence=1) is guard
    assert refused(log, guard, sequence=1) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert append(log, guard, sequence=0).base_offset == 0
    assert append(log, None, sequence=1).base_offset == 1


def test_version_2_begins_with_sequence_0_where_nothing_is_known(log: PartitionLog) -> None:
    guard = begin(log, sequence=4, epoch_bump=True)
    assert refused(log, guard, sequence=4) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    other = begin(log, sequence=4, pid=PID + 1)
    assert append(log, other, sequence=4, pid=PID + 1).base_offset == 0, "version 1 may begin anywhere"


def test_a_new_epoch_starts_the_order_anew(log: PartitionLog) -> None:
    guard = begin(log, epoch=0, sequence=7)
    assert begin(log, epoch=1, sequence=0) is guard
    assert guard.lowest_sequence == 0
    assert append(log, guard, epoch=1, sequence=0).base_offset == 0


def test_guards_of_producers_that_never_come_do_not_pile_up(log: PartitionLog) -> None:
    for pid in range(1000):
        begin(log, pid=pid)
    log.expire_producers(NOW + HOUR, HOUR)
    for pid in range(1000):
        assert refused(log, None, pid=pid) is ErrorCode.INVALID_TXN_STATE
    assert not log.producers._verifications


def test_guards_that_anybody_may_ask_for_are_bounded(log: PartitionLog) -> None:
    """While the coordinator is unavailable, nobody knows whether a producer id was allocated."""
    for pid in range(3 * MAX_VERIFICATIONS):
        begin(log, pid=pid)
    assert len(log.producers._verifications) == MAX_VERIFICATIONS
    pid = 3 * MAX_VERIFICATIONS
    assert append(log, begin(log, pid=pid), pid=pid).base_offset == 0


def test_the_earliest_open_transaction_is_known_in_whatever_order_they_end(tmp_path: Path) -> None:
    seed = 20261121
    print(f"seed {seed}")
    rng = random.Random(seed)
    log = open_log(tmp_path / "topic-0")
    begun: dict[int, int] = {}
    for _ in range(400):
        pid = rng.randrange(30)
        if pid in begun and rng.random() < 0.6:
            end_txn(log, commit=rng.random() < 0.5, pid=pid)
            del begun[pid]
        elif pid not in begun:
            known = log.producers.entries.get(pid)
            begun[pid] = append(log, UNCHECKED, pid=pid, sequence=known.last_sequence + 1 if known else 0).base_offset
        log.set_high_watermark(log.log_end_offset)
        assert log.producers.first_unstable == min(begun.values(), default=-1)
        if rng.random() < 0.1:
            entries = list(log.producers.entries.values())
            rng.shuffle(entries)
            log.producers.reset(entries)
            assert log.producers.first_unstable == min(begun.values(), default=-1)
