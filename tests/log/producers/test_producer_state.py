"""Idempotence and transactions, as a single partition sees them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kbroker.log.append_info import COORDINATOR, AppendError, AppendInfo
from kbroker.log.log_config import LogConfig
from kbroker.log.partition_log import PartitionLog
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.records import build_marker
from tests.log.builders import NOW, batch, committed, delete_due, open_log

PID = 77


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    return open_log(tmp_path / "topic-0")


def produce(
    log: PartitionLog, sequence: int, count: int = 1, *, epoch: int = 0, pid: int = PID, **kw: Any
) -> AppendInfo:
    records = batch(count, producer_id=pid, producer_epoch=epoch, base_sequence=sequence, **kw)
    return log.append_as_leader(records, 0, NOW)


def code_of(log: PartitionLog, *args: Any, **kw: Any) -> ErrorCode:
    end = log.log_end_offset
    with pytest.raises(AppendError) as caught:
        produce(log, *args, **kw)
    assert log.log_end_offset == end
    return caught.value.code


def end_txn(
    log: PartitionLog, commit: bool, *, pid: int = PID, epoch: int = 0, coordinator: int = 0, version: int = 0
) -> None:
    marker = build_marker(
        producer_id=pid, producer_epoch=epoch, commit=commit, coordinator_epoch=coordinator, timestamp=NOW
    )
    log.append_as_leader(marker, 0, NOW, origin=COORDINATOR, transaction_version=version)


def reopened(log: PartitionLog, *, clean: bool) -> PartitionLog:
    if clean:
        log.close()
    return open_log(Path(log.directory), clean=clean, config=log.config)


def test_t1_retries_answer_the_first_offsets(log: PartitionLog) -> None:
    first = [produce(log, sequence, 2) for sequence in range(0, 14, 2)]
    log.append_as_leader(batch(), 0, NOW)
    end = log.log_end_offset
    for index, sequence in enumerate(range(0, 14, 2)):
        if index < 2:
            assert code_of(log, sequence, 2) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "older than five batches"
        else:
            again = produce(log, sequence, 2)
            assert (again.base_offset, again.last_offset) == (first[index].base_offset, first[index].last_offset)
            assert again.duplicate
    assert log.log_end_offset == end
    assert code_of(log, 12, 1) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "only the exact batch is a duplicate"


@pytest.mark.parametrize("clean", [True, False])
def test_t1_five_batches_survive_a_restart(log: PartitionLog, clean: bool) -> None:
    infos = [produce(log, sequence) for sequence in range(30)]
    produce(log, 0, pid=5)
    log = reopened(log, clean=clean)
    for sequence in range(25, 30):
        assert produce(log, sequence).base_offset == infos[sequence].base_offset
    assert code_of(log, 24) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    produce(log, 30)
    assert code_of(log, 25) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("snapshots", ["kept", "lost", "broken"])
def test_t1_survives_restarts(log: PartitionLog, clean: bool, snapshots: str) -> None:
    log.update_config(LogConfig(segment_bytes=1000))
    infos = [produce(log, sequence) for sequence in range(30)]
    if clean:
        log.close()
    for path in Path(log.directory).glob("*.snapshot"):
        if snapshots == "lost":
            path.unlink()
        elif snapshots == "broken":
            path.write_bytes(path.read_bytes()[:-1] + b"!")
    log = open_log(Path(log.directory), clean=clean, config=log.config)
    for sequence in range(29, 29 - len(log.active_producers()[0].batches), -1):
        again = produce(log, sequence)
        assert again.duplicate
        assert again.base_offset == infos[sequence].base_offset
    assert produce(log, 30).base_offset == 30
    assert code_of(log, 32) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_snapshots_are_kept_where_they_save_work(log: PartitionLog) -> None:
    log.update_config(LogConfig(segment_bytes=1000))
    for sequence in range(40):
        produce(log, sequence)
    log.close()
    expected = [*log.segments.bases[1:], 40]
    for _ in range(2):
        log = open_log(Path(log.directory), config=log.config)
        assert log._snapshots.offsets == expected, "one at the base of each segment, and the newest"
        log.close()
    (Path(log.directory) / f"{log.segments.bases[2] + 1:020d}.snapshot").write_bytes(b"stray")
    assert open_log(Path(log.directory), config=log.config)._snapshots.offsets == expected


def test_t2_sequences_wrap(log: PartitionLog) -> None:
    top = 2**31 - 1
    produce(log, top - 3, 3)
    first = produce(log, top, 3)
    assert produce(log, 2).base_offset == 6
    assert produce(log, top, 3).base_offset == first.base_offset
    assert log.active_producers()[0].last_sequence == 2


def test_t3_gaps(log: PartitionLog) -> None:
    produce(log, 500)
    assert log.log_end_offset == 1, "a producer that nothing is known of may start anywhere"
    for sequence in (0, 499, 502, 2**31 - 1):
        assert code_of(log, sequence) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    produce(log, 501)


def test_t4_epochs(log: PartitionLog) -> None:
    produce(log, 0, epoch=3)
    assert code_of(log, 1, epoch=2) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert code_of(log, 1, epoch=4) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    produce(log, 0, epoch=4)
    assert code_of(log, 0, epoch=3) == ErrorCode.INVALID_PRODUCER_EPOCH
    produce(log, 1, epoch=4)


def test_coordinators_need_no_sequence(log: PartitionLog) -> None:
    records = batch(producer_id=PID, producer_epoch=1)
    log.append_as_leader(records, 0, NOW, origin=COORDINATOR)
    log.append_as_leader(records, 0, NOW, origin=COORDINATOR)
    with pytest.raises(AppendError) as caught:
        log.append_as_leader(batch(producer_id=PID, producer_epoch=0), 0, NOW, origin=COORDINATOR)
    assert caught.value.code == ErrorCode.INVALID_PRODUCER_EPOCH


def test_producers_expire(log: PartitionLog) -> None:
    produce(log, 5)
    produce(log, 0, pid=2, transactional=True)
    assert log.expire_producers(NOW + 999, 1000) == 0
    assert log.expire_producers(NOW + 1000, 1000) == 1
    assert [entry.producer_id for entry in log.active_producers()] == [2], "an open transaction keeps its producer"
    produce(log, 9)


def test_deleted_records_leave_the_producer(log: PartitionLog) -> None:
    log.update_config(LogConfig(segment_bytes=300, retention_ms=1000))
    for sequence in range(10):
        produce(log, sequence)
    delete_due(committed(log), NOW + 10_000)
    assert log.log_start_offset == 10
    for clean in (True, False):
        log = reopened(log, clean=clean)
        assert produce(log, 9).duplicate


def test_active_producers(log: PartitionLog) -> None:
    produce(log, 0, 3, epoch=2, transactional=True)
    entry = log.active_producers()[0]
    assert (entry.producer_id, entry.producer_epoch, entry.last_sequence) == (PID, 2, 2)
    assert (entry.last_timestamp, entry.coordinator_epoch, entry.current_txn_first_offset) == (NOW + 2, -1, 0)
    end_txn(log, True, epoch=2, coordinator=6)
    assert (entry.coordinator_epoch, entry.current_txn_first_offset) == (6, -1)


def test_t6_t7_last_stable_offset(log: PartitionLog) -> None:
    log.append_as_leader(batch(2), 0, NOW)
    produce(log, 0, transactional=True)
    produce(log, 0, pid=2, transactional=True)
    committed(log)
    assert log.last_stable_offset == 2
    end_txn(log, True)
    assert log.last_stable_offset == 2, "the marker is not replicated"
    committed(log)
    assert log.last_stable_offset == 3
    end_txn(log, False, pid=2)
    committed(log)
    assert log.last_stable_offset == log.high_watermark == 6
    assert log.aborted_transactions(0, 6) == [(2, 3)]
    assert log.aborted_transactions(0, 3) == []
    assert log.aborted_in(log.read(0, 1 << 20, 6, min_one=True)) == [(2, 3)]


def test_t14_writes_outside_the_open_transaction(log: PartitionLog) -> None:
    produce(log, 0, transactional=True)
    assert code_of(log, 1) == ErrorCode.INVALID_TXN_STATE
    end_txn(log, False)
    produce(log, 1)


def test_t13_markers_of_old_coordinators(log: PartitionLog) -> None:
    produce(log, 0, transactional=True)
    end_txn(log, True, coordinator=5)
    with pytest.raises(AppendError) as caught:
        end_txn(log, True, coordinator=4)
    assert caught.value.code == ErrorCode.TRANSACTION_COORDINATOR_FENCED


def test_a_marker_of_no_coordinator_of_a_producer_that_nobody_knows(log: PartitionLog) -> None:
    for epoch in (-(1 << 31), -2):
        with pytest.raises(AppendError) as caught:
            end_txn(log, True, coordinator=epoch)
        assert caught.value.code == ErrorCode.TRANSACTION_COORDINATOR_FENCED
    end_txn(log, True, coordinator=-1)


def test_markers_of_transactions_version_2(log: PartitionLog) -> None:
    produce(log, 0, epoch=1, transactional=True)
    with pytest.raises(AppendError) as caught:
        end_txn(log, True, epoch=1, version=2)
    assert caught.value.code == ErrorCode.INVALID_PRODUCER_EPOCH
    end_txn(log, True, epoch=2, version=2)
    end_txn(log, True, epoch=2, version=2)
    assert code_of(log, 1, epoch=1) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert code_of(log, 1, epoch=2) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    produce(log, 0, epoch=2, transactional=True)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("lost", ["", "*.txnindex", "*.snapshot"])
def test_aborted_transactions_survive(log: PartitionLog, clean: bool, lost: str) -> None:
    """S3, bug 13: transactions over several segments are found from any offset, even if any index is lost."""
    log.update_config(LogConfig(segment_bytes=500))
    aborted = []
    for turn in range(6):
        first = produce(log, 0, epoch=turn, transactional=True).base_offset
        for sequence in range(1, 6):
            produce(log, sequence, epoch=turn, transactional=True)
            log.append_as_leader(batch(), 0, NOW)
        end_txn(log, turn % 2 == 0, epoch=turn)
        if turn % 2:
            aborted.append((first, log.log_end_offset - 1))
    produce(log, 0, epoch=6, transactional=True)
    committed(log)
    stable = log.last_stable_offset
    if clean:
        log.close()
    for path in Path(log.directory).glob(lost) if lost else []:
        path.unlink()
    log = committed(open_log(Path(log.directory), clean=clean, config=log.config))
    assert log.last_stable_offset == stable == log.log_end_offset - 1
    for start in range(stable):
        expected = [(PID, first) for first, last in aborted if last >= start]
        assert log.aborted_transactions(start, stable) == expected


def test_truncation_into_an_open_transaction(log: PartitionLog) -> None:
    """Bug 9: after a truncation, the producer state equals a replay of the log."""
    for sequence in range(4):
        produce(log, sequence)
    produce(log, 4, transactional=True)
    end_txn(log, False)
    log.truncate_to(5)
    assert committed(log).last_stable_offset == 4
    assert log.aborted_transactions(0, 9) == []
    log.truncate_to(3)
    assert committed(log).last_stable_offset == 3
    assert produce(log, 3).base_offset == 3
