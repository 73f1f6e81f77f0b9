"""The transaction coordinator's decisions if an append fails or commits late, and the state after a failover."""

from __future__ import annotations

import pytest

from kbroker.protocol.errors import ErrorCode
from kbroker.txn.records import read_value
from kbroker.txn.shard import NO_IDENTITY, Identity
from kbroker.txn.transaction import COMPLETE_ABORT, COMPLETE_COMMIT, PREPARE_COMMIT

from .context import P0, P1, Context, ongoing

CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS
FENCED = ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize("how", ["init", "fence", "add", "end"])
@pytest.mark.parametrize("version", [0, 2])
def test_t15_if_the_append_fails_neither_epoch_nor_state_moves(how: str, version: int) -> None:
    """Kafka had such bugs: KAFKA-9666 and KAFKA-15784."""
    context, producer = ongoing(version)
    if how == "init":
        context.end(producer, True, version)
        context.mark()
        producer = Identity(context.txn().producer_id, context.txn().producer_epoch)
    asks = {
        "init": context.init,
        "fence": context.init,
        "add": lambda: context.add(producer, ("u", 9), version=version),
        "end": lambda: context.end(producer, True, version),
    }
    before = context.txn()
    for lag in (False, True):
        context.lag = lag
        context.fail_with = ErrorCode.NONE if lag else ErrorCode.NOT_ENOUGH_REPLICAS
        context.prepared.clear()
        answer = asks[how]()
        if lag:
            assert context.txn() == before, "nothing holds before it is committed"
            assert context.end(producer, True, 2) is CONCURRENT
            assert context.init() is CONCURRENT
            context.catch_up(ErrorCode.REQUEST_TIMED_OUT)
        else:
            assert answer is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert context.txn() == before
        assert context.prepared == []
    context.lag, context.fail_with = False, ErrorCode.NONE
    assert asks[how]() not in (CONCURRENT, FENCED)


def test_two_ends_at_once_are_one() -> None:
    """Kafka had such bugs: KAFKA-9777 and KAFKA-10080."""
    context, producer = ongoing()
    context.lag = True
    assert context.end(producer) is NO_IDENTITY
    assert context.end(producer) is CONCURRENT
    context.catch_up()
    assert context.prepared == ["id"]
    assert context.end(producer) is CONCURRENT
    context.mark()
    context.mark()
    context.catch_up()
    assert context.txn().state is COMPLETE_COMMIT
    assert sum(read_value("id", value).state is COMPLETE_COMMIT for _, value in context.log) == 1


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("version", [0, 2])
def test_t12_t13_what_was_decided_is_finished_by_whoever_loads_it(commit: bool, version: int) -> None:
    context, producer = ongoing(version)
    context.end(producer, commit, version)
    context.mark(P0)
    other = context.restarted()
    assert other.prepared == ["id"]
    assert other.txn().partitions == {P0, P1}, "markers are not logged, so all are written again"
    assert other.txn().producer_epoch == context.txn().producer_epoch
    other.mark()
    assert other.txn().state is (COMPLETE_COMMIT if commit else COMPLETE_ABORT)


@pytest.mark.parametrize("version", [0, 2])
def test_t12_an_open_transaction_goes_on_after_a_failover(version: int) -> None:
    context, producer = ongoing(version)
    other = context.restarted()
    assert other.prepared == []
    assert other.add(producer, ("u", 0), version=version) is None
    expected = (producer.producer_id, producer.epoch + 1) if version else NO_IDENTITY
    assert other.end(producer, True, version) == expected
    assert other.txn().state is PREPARE_COMMIT
    other.mark()
    assert other.txn().state is COMPLETE_COMMIT


def test_an_unencodable_id_is_refused_and_leaves_nothing() -> None:
    context = Context()
    assert context.init(name="x" * 40_000) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert not context.shard.transactions
    assert not context.shard._pending
