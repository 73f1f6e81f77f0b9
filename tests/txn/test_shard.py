"""The transaction coordinator's decisions, in both generations, without sockets or sleeps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kbroker.protocol.errors import ErrorCode
from kbroker.txn.records import read_value, transaction_record
from kbroker.txn.shard import NO_IDENTITY, Identity
from kbroker.txn.transaction import (
    AT_REST,
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    EMPTY,
    FOLLOWS,
    LAST_CLIENT_EPOCH,
    MAX_EPOCH,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    PREPARED,
    Transaction,
)

from .context import P0, P1, START_MS, Context, ended, ongoing, put

CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS
FENCED = ErrorCode.PRODUCER_FENCED
MAPPING = ErrorCode.INVALID_PRODUCER_ID_MAPPING
WRONG_STATE = ErrorCode.INVALID_TXN_STATE


# -- InitProducerId


def test_a_new_id_gets_epoch_0_and_each_further_one_the_next() -> None:
    context = Context()
    first = context.init()
    assert first.epoch == 0
    assert context.init() == (first.producer_id, 1)
    assert context.init() == (first.producer_id, 2)
    assert context.txn().state is EMPTY


def test_a_producer_that_names_its_epoch_keeps_its_id_and_a_retry_gets_the_same() -> None:
    context = Context()
    first = context.init()
    second = context.init(first)
    assert second == (first.producer_id, 1)
    assert context.init(first) == second, "the answer was lost"
    assert context.init(second) == (first.producer_id, 2)
    assert context.init(first) is FENCED


def test_a_producer_whose_epoch_or_id_is_older_is_fenced() -> None:
    context = Context()
    first = context.init()
    context.init()
    context.init()
    assert context.init(first) is FENCED
    assert context.init(Identity(first.producer_id + 5, 0)) is FENCED


def test_an_open_transaction_is_aborted_first() -> None:
    context, producer = ongoing()
    assert context.init() is NO_IDENTITY, "the caller is told to ask again"
    assert context.txn().state is PREPARE_ABORT
    assert context.prepared == ["id"]
    assert context.init() is CONCURRENT
    context.mark()
    again = context.init()
    assert again.producer_id == producer.producer_id
    assert again.epoch == 2


@pytest.mark.parametrize("level", [0, 1, 2])
def test_the_epoch_of_a_fence_is_given_to_nobody(level: int) -> None:
    context, producer = ongoing(level=level)
    context.init()
    assert context.txn().producer_epoch == producer.epoch + 1
    assert context.txn().client_version == (2 if level == 2 else 0)
    context.mark()
    assert context.init().epoch == producer.epoch + 2


def test_used_up_epochs_lead_to_another_producer_id() -> None:
    context = Context()
    put(context, producer_epoch=LAST_CLIENT_EPOCH, state=EMPTY)
    fresh = context.init()
    assert fresh.producer_id != 7
    assert fresh.epoch == 0


def test_a_retry_over_a_change_of_producer_id_gets_the_same() -> None:
    context = Context()
    put(context, producer_epoch=LAST_CLIENT_EPOCH, state=EMPTY)
    old = Identity(7, LAST_CLIENT_EPOCH)
    fresh = context.init(old)
    assert fresh.epoch == 0
    assert context.init(old) == fresh
    assert context.init(Identity(7, LAST_CLIENT_EPOCH - 1)) is FENCED


# -- AddPartitionsToTxn, verification


def test_partitions_are_added_and_verified() -> None:
    context, producer = ongoing()
    assert context.verify(producer, P0, ("u", 0)) == {
        P0: ErrorCode.NONE,
        ("u", 0): ErrorCode.TRANSACTION_ABORTABLE,
    }
    records = len(context.log)
    assert context.add(producer, P0) is None
    assert len(context.log) == records, "what is there is not written again"


def test_strangers_may_not_add() -> None:
    context, producer = ongoing()
    assert context.add(producer, P0, name="other") is MAPPING
    assert context.add(Identity(producer.producer_id + 1, 0), P0) is MAPPING
    assert context.add(Identity(producer.producer_id, 5), P0) is FENCED
    assert context.verify(producer, P0, name="other") is MAPPING
    assert context.verify(Identity(producer.producer_id + 1, 0), P0) is MAPPING
    assert context.verify(Identity(producer.producer_id, 5), P0) is FENCED


def test_nothing_is_added_while_an_outcome_is_written() -> None:
    context, producer = ongoing()
    context.end(producer)
    assert context.add(producer, P0) is CONCURRENT
    assert context.verify(producer, P0) is CONCURRENT


# -- EndTxn: the tables


@pytest.mark.parametrize("commit", [True, False])
def test_t9_version_1_a_retry_is_known_by_the_state(commit: bool) -> None:
    context, producer, _ = ended(commit, 0)
    assert context.end(producer, commit) is NO_IDENTITY, "done already"
    assert context.end(producer, not commit) is WRONG_STATE
    assert context.end(Identity(producer.producer_id, producer.epoch + 1), commit) is FENCED
    assert context.end(Identity(producer.producer_id + 1, producer.epoch), commit) is MAPPING


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("version", [0, 2])
def test_t9_an_end_while_markers_are_written_is_told_to_wait(commit: bool, version: int) -> None:
    context, producer = ongoing(version)
    context.end(producer, commit, version)
    current = Identity(producer.producer_id, context.txn().producer_epoch)
    for asked in (True, False):
        assert context.end(current, asked, version) is CONCURRENT


def test_t9_version_1_an_empty_transaction_has_no_end() -> None:
    context = Context()
    producer = context.init()
    assert context.end(producer, True) is WRONG_STATE
    assert context.end(producer, False) is WRONG_STATE


TABLE_V2 = [
    # state, requested outcome is commit, epoch of a retry (the previous one) or of the current end, answer
    (EMPTY, False, "retry", FENCED),
    (EMPTY, False, "current", "bump"),
    (EMPTY, True, "retry", FENCED),
    (EMPTY, True, "current", WRONG_STATE),
    (COMPLETE_ABORT, False, "retry", "same"),
    (COMPLETE_ABORT, False, "current", "bump"),
    (COMPLETE_ABORT, True, "retry", WRONG_STATE),
    (COMPLETE_ABORT, True, "current", WRONG_STATE),
    (COMPLETE_COMMIT, False, "retry", WRONG_STATE),
    (COMPLETE_COMMIT, False, "current", "bump"),
    (COMPLETE_COMMIT, True, "retry", "same"),
    (COMPLETE_COMMIT, True, "current", WRONG_STATE),
    (ONGOING, True, "retry", FENCED),
    (ONGOING, True, "current", "bump"),
    (ONGOING, False, "retry", FENCED),
    (ONGOING, False, "current", "bump"),
]


@pytest.mark.parametrize(("state", "commit", "which", "answer"), TABLE_V2)
def test_t9_version_2_the_epoch_tells_a_retry_from_the_next_end(state, commit, which, answer) -> None:
    context = Context()
    put(context, producer_epoch=5, state=state, partitions=frozenset({P0}) if state is ONGOING else frozenset())
    got = context.end(Identity(7, 4 if which == "retry" else 5), commit, 2)
    if answer == "bump":
        assert got == (7, 6)
        assert context.txn().state is (PREPARE_COMMIT if commit else PREPARE_ABORT)
    elif answer == "same":
        assert got == (7, 5)
        assert context.txn().state is state
    else:
        assert got is answer
        assert context.txn().state is state


@pytest.mark.parametrize("state", [EMPTY, COMPLETE_ABORT, COMPLETE_COMMIT, ONGOING])
@pytest.mark.parametrize("epoch", [3, 6, 7])
def test_t9_version_2_no_other_epoch_is_let_in(state, epoch) -> None:
    context = Context()
    put(context, producer_epoch=5, state=state)
    assert context.end(Identity(7, epoch), True, 2) is FENCED
    assert context.end(Identity(7, epoch), False, 2) is FENCED


def test_t9_version_2_a_delayed_end_never_ends_a_later_transaction() -> None:
    """KAFKA-17754: a commit is delayed, its retry succeeds, and it arrives during the next transaction."""
    context, producer, after = ended(True, 2)
    assert context.add(after, P0, version=2) is None
    assert context.end(producer, True, 2) is FENCED
    assert context.txn().state is ONGOING


def test_version_2_ends_on_the_last_epoch_with_another_producer_id() -> None:
    context = Context()
    put(context, producer_epoch=LAST_CLIENT_EPOCH, state=EMPTY)
    last = Identity(7, LAST_CLIENT_EPOCH)
    context.add(last, P0, version=2)
    fresh = context.end(last, True, 2)
    assert fresh.producer_id != 7
    assert fresh.epoch == 0
    assert context.txn().producer_epoch == MAX_EPOCH, "the markers' epoch"
    context.mark()
    assert Identity(context.txn().producer_id, context.txn().producer_epoch) == fresh
    assert context.end(last, True, 2) == fresh, "a retry"
    assert context.add(fresh, P0, version=2) is None


def test_an_abort_of_nothing_needs_no_marker() -> None:
    context = Context()
    producer = context.init()
    assert context.end(producer, False, 2) == (producer.producer_id, producer.epoch + 1)
    assert context.txn().partitions == frozenset()
    context.mark()
    assert context.txn().state is COMPLETE_ABORT
    assert context.txn().start_ms == context.now


# -- markers


def test_complete_only_when_every_marker_is_written() -> None:
    context, producer = ongoing()
    context.end(producer)
    context.mark(P0)
    assert context.txn().state is PREPARE_COMMIT
    assert context.txn().partitions == {P1}
    context.prepared.clear()
    context.advance(100)
    assert context.prepared == ["id"], "the rest is tried again"
    context.mark(P1)
    assert context.txn().state is COMPLETE_COMMIT


def test_a_completion_that_cannot_be_written_is_tried_again() -> None:
    context, producer = ongoing()
    context.end(producer)
    context.fail_with = ErrorCode.NOT_ENOUGH_REPLICAS
    context.mark()
    assert context.txn().state is PREPARE_COMMIT
    context.fail_with = ErrorCode.NONE
    context.prepared.clear()
    context.advance(100)
    assert context.prepared == ["id"]
    context.mark()
    assert context.txn().state is COMPLETE_COMMIT


def test_late_news_of_an_earlier_round_change_nothing() -> None:
    context, producer, _ = ended(True, 2)
    job = context.txn()
    producer = Identity(job.producer_id, job.producer_epoch)
    context.add(producer, P0, version=2)
    context.mark(P0, job=replace(job, state=PREPARE_COMMIT))
    assert context.txn().state is ONGOING
    assert context.txn().partitions == {P0}


def test_a_late_answer_about_a_transaction_counts_for_no_later_one_of_the_same_epoch() -> None:
    context, producer = ongoing(1, 1)
    context.end(producer, version=1)
    first = context.txn()
    context.mark(job=first)
    assert context.add(producer, P0, P1, version=1) is None
    context.end(producer, version=1)
    second = context.txn()
    assert (second.producer_epoch, second.state, second.start_ms) == (first.producer_epoch, first.state, first.start_ms)
    context.mark(P0, job=first)
    assert context.shard.to_mark("id") == [P0, P1]
    context.mark(job=second)
    assert context.txn().state is COMPLETE_COMMIT


# -- states and records


@pytest.mark.parametrize("state", [EMPTY, *AT_REST, *PREPARED, ONGOING])
@pytest.mark.parametrize("level", [0, 1, 2])
def test_records_say_what_the_shard_knows(state, level) -> None:
    txn = Transaction(
        "id", 12, 3, timeout_ms=5, state=state, start_ms=START_MS, updated_ms=START_MS + 1, prev_producer_id=11,
        next_producer_id=13, client_version=2, partitions=frozenset() if state is EMPTY else frozenset({P0, P1}),
    )  # fmt: skip
    key, value = transaction_record(txn, level)
    assert key == b"\0\0\0\2id"
    assert value is not None
    assert value[:2] == (b"\0\0" if level == 0 else b"\0\1")
    known = txn if level else replace(txn, prev_producer_id=-1, next_producer_id=-1, client_version=0)
    assert read_value("id", value) == known


def test_every_state_can_be_reached_and_none_is_left_for_nowhere() -> None:
    assert set(FOLLOWS) == {EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT}
    for state in FOLLOWS:
        assert any(state in before for before in FOLLOWS.values()), f"{state.name} leads nowhere"
    with pytest.raises(ValueError, match="cannot follow"):
        Transaction("id", 1, 0).prepared(True, 0, -1, 0)
