"""The transaction coordinator's decisions that depend on time: timeouts of transactions, and expiry of unused ids."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.protocol.errors import ErrorCode
from kbroker.txn.shard import Identity
from kbroker.txn.transaction import COMPLETE_ABORT, ONGOING, PREPARE_ABORT

from .context import P0, TIMEOUT_MS, Context, ongoing

FENCED = ErrorCode.PRODUCER_FENCED
WRONG_STATE = ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize(("level", "version"), [(0, 0), (1, 0), (2, 0), (2, 2)])
def test_t10_a_transaction_that_takes_too_long_is_aborted_and_its_producer_fenced(level: int, version: int) -> None:
    context, producer = ongoing(version, level)
    context.advance(TIMEOUT_MS)
    assert context.txn().state is ONGOING, "not before its time"
    context.advance(context.config.abort_interval_ms + 1)
    assert context.txn().state is PREPARE_ABORT
    assert context.txn().producer_epoch == producer.epoch + 1
    context.mark()
    assert context.end(producer, True, version) is (WRONG_STATE if version else FENCED)
    assert context.end(Identity(producer.producer_id, producer.epoch - 1), True, version) is FENCED
    assert context.txn().state is COMPLETE_ABORT
    assert context.add(producer, P0, version=version) is FENCED


def test_timeouts_go_on_after_an_append_that_failed() -> None:
    context, producer = ongoing()
    context.fail_with = ErrorCode.NOT_ENOUGH_REPLICAS
    context.advance(TIMEOUT_MS + 2 * context.config.abort_interval_ms)
    assert context.txn().state is ONGOING
    assert context.txn().producer_epoch == producer.epoch
    context.fail_with = ErrorCode.NONE
    context.advance(context.config.abort_interval_ms)
    assert context.txn().state is PREPARE_ABORT
    assert context.txn().producer_epoch == producer.epoch + 1, "one epoch, however often it was tried"


def test_ids_are_forgotten_unless_in_use() -> None:
    context = Context()
    for i in range(1200):
        context.init(name=f"idle-{i}")
    context.init(name="busy", timeout_ms=2**31 - 1)
    busy = Identity(context.txn("busy").producer_id, 0)
    context.add(busy, P0, name="busy")
    context.advance(context.config.id_expiration_ms + 2 * context.config.expiration_interval_ms)
    assert list(context.shard.transactions) == ["busy"]
    assert list(context.restarted().shard.transactions) == ["busy"]
    assert context.init(name="idle-3").epoch == 0


def test_ids_are_kept_when_their_tombstones_cannot_be_written() -> None:
    context = Context()
    context.init()
    context.fail_with = ErrorCode.KAFKA_STORAGE_ERROR
    context.advance(context.config.id_expiration_ms + 2 * context.config.expiration_interval_ms)
    assert "id" in context.shard.transactions
    context.fail_with = ErrorCode.NONE
    assert context.init().epoch == 1
    context.advance(context.config.id_expiration_ms + 2 * context.config.expiration_interval_ms)
    assert not context.shard.transactions


@pytest.mark.long
@pytest.mark.parametrize("max_bytes", [300, 5_000, 1 << 20])
def test_long_ids_are_forgotten_whatever_the_largest_batch(max_bytes: int) -> None:
    """300 ids of 4 kB make 1.2 MB, more than max.message.bytes allows by default."""
    context = Context()
    names = [f"{i:04}" + "x" * (200 if max_bytes < 5_000 else 4_000) for i in range(300)]
    for name in names:
        context.init(name=name)
    context.max_bytes = max_bytes
    context.advance(context.config.id_expiration_ms + 2 * context.config.expiration_interval_ms)
    assert not context.shard.transactions
    assert not context.restarted().shard.transactions


def test_an_id_that_cannot_be_forgotten_does_not_keep_the_others() -> None:
    context = Context()
    for name in ("a", "b" * 500, "c"):
        context.init(name=name)
    context.max_bytes = 400
    context.advance(context.config.id_expiration_ms + 2 * context.config.expiration_interval_ms)
    assert list(context.shard.transactions) == ["b" * 500]
    context.max_bytes = 1 << 20
    context.advance(context.config.expiration_interval_ms)
    assert not context.shard.transactions


@pytest.mark.long
def test_looks_for_overdue_and_unused_ids_are_made_in_pieces() -> None:
    context = Context()
    for i in range(7_000):
        producer = context.init(name=f"id-{i}", timeout_ms=2**31 - 1 if i % 2 else TIMEOUT_MS)
        context.add(producer, P0, name=f"id-{i}")
    turns = 0

    def looks(kind: str) -> int:
        nonlocal turns
        turns = 1
        while not (out := context.shard.on_timer((kind,), context.now + 10 * TIMEOUT_MS)).timers[0].delay_ms:
            turns += 1
            aborts.extend(out.timers[1:])
        aborts.extend(out.timers[1:])
        return turns

    aborts: list[Any] = []
    assert looks("timeouts") > 2
    assert sorted(timer.key[1] for timer in aborts) == sorted(f"id-{i}" for i in range(0, 7_000, 2))
    assert looks("expire") > 2


def test_what_fits_into_the_log_can_be_ended() -> None:
    """The coordinator aborts with version 2, whatever version the producer uses; its record is slightly larger."""
    for max_bytes in range(1_000, 1_008):
        context = Context()
        producer = context.init()
        context.max_bytes = max_bytes
        for i in range(1_000):
            refused = context.add(producer, ("t", i), version=0)
            if refused is not None:
                break
        assert refused is ErrorCode.UNKNOWN_SERVER_ERROR
        assert context.txn().partitions == {("t", n) for n in range(i)}
        assert i > 100
        context.advance(TIMEOUT_MS + 2 * context.config.abort_interval_ms)
        assert context.txn().state is PREPARE_ABORT
        context.mark()
        assert context.txn().state is COMPLETE_ABORT
