"""The transaction coordinator's decisions, in both generations, without sockets or sleeps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kbroker.protocol.errors import ErrorCode
from kbroker.txn.records import read_value, transaction_record
from kbroker.txn.shard import NOBODY, Identity
from kbroker.txn.states import (
    AT_REST,
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    EMPTY,
    FOLLOWS,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    PREPARED,
)
from kbroker.txn.transaction import LAST_CLIENT_EPOCH, MAX_EPOCH, Transaction

from .context import P0, P1, START_MS, TIMEOUT_MS, Context

CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS
FENCED = ErrorCode.PRODUCER_FENCED
MAPPING = ErrorCode.INVALID_PRODUCER_ID_MAPPING
WRONG_STATE = ErrorCode.INVALID_TXN_STATE


def ongoing(version: int = 0, level: int = 2) -> tuple[Context, Identity]:
    context = Context(level)
    producer = context.init()
    assert context.add(producer, P0, P1, version=version) is None
    return context, producer


def ended(commit: bool, version: int) -> tuple[Context, Identity, Identity]:
    """Return a context with a complete transaction, the producer that ended it, and what it goes on with."""
    context, producer = ongoing(version)
    after = context.end(producer, commit, version)
    context.mark()
    assert context.txn().state is (COMPLETE_COMMIT if commit else COMPLETE_ABORT)
    return context, producer, after if version else producer


def put(context: Context, **changes: object) -> Transaction:
    """Bring the id into a state that would take long to reach."""
    txn = replace(context.shard.transactions.get("id") or Transaction("id", 7, 0, timeout_ms=TIMEOUT_MS), **changes)
    context.shard.replay(0, -1, *transaction_record(txn, 1))
    context.shard._put(txn)
    return txn


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
    assert context.init() is NOBODY, "the caller is told to ask again"
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
    assert context.end(producer, commit) is NOBODY, "done already"
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
    # state, commit asked, retry (the epoch before) or current, answer
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
    """KAFKA-17754: a commit is kept back, its retry succeeds, and it arrives within the next transaction."""
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


# -- time


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


@pytest.mark.parametrize("max_bytes", [300, 5_000, 1 << 20])
def test_long_ids_are_forgotten_whatever_the_largest_batch(max_bytes: int) -> None:
    """500 ids of 4 kB make 2 MB, more than max.message.bytes allows by default."""
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
    """An abort by the coordinator is of version 2, whatever the producer spoke, and its record a little larger."""
    for max_bytes in range(1_000, 1_008):
        context = Context()
        producer = context.init()
        context.max_bytes = max_bytes
        for i in range(1_000):
            refused = context.add(producer, ("t", i), version=0)
            if refused is not None:
                break
        assert refused is ErrorCode.MESSAGE_TOO_LARGE
        assert context.txn().partitions == {("t", n) for n in range(i)}
        assert i > 100
        context.advance(TIMEOUT_MS + 2 * context.config.abort_interval_ms)
        assert context.txn().state is PREPARE_ABORT
        context.mark()
        assert context.txn().state is COMPLETE_ABORT


# -- what failed, what is loaded


@pytest.mark.parametrize("how", ["init", "fence", "add", "end"])
@pytest.mark.parametrize("version", [0, 2])
def test_t15_if_the_append_fails_neither_epoch_nor_state_moves(how: str, version: int) -> None:
    """KAFKA-9666, KAFKA-15784."""
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
            assert answer is ErrorCode.NOT_ENOUGH_REPLICAS
        assert context.txn() == before
        assert context.prepared == []
    context.lag, context.fail_with = False, ErrorCode.NONE
    assert asks[how]() not in (CONCURRENT, FENCED)


def test_two_ends_at_once_are_one() -> None:
    """KAFKA-9777, KAFKA-10080."""
    context, producer = ongoing()
    context.lag = True
    assert context.end(producer) is NOBODY
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
    expected = (producer.producer_id, producer.epoch + 1) if version else NOBODY
    assert other.end(producer, True, version) == expected
    assert other.txn().state is PREPARE_COMMIT
    other.mark()
    assert other.txn().state is COMPLETE_COMMIT


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


def test_an_unencodable_id_is_refused_and_leaves_nothing() -> None:
    context = Context()
    assert context.init(name="x" * 40_000) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert not context.shard.transactions
    assert not context.shard._pending
