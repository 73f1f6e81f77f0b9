"""The transaction coordinator compared with a simple model: random requests, failures, timeouts and failovers."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kbroker.protocol.errors import ErrorCode
from kbroker.txn.shard import NO_IDENTITY, Identity
from kbroker.txn.transaction import COMPLETE_ABORT, COMPLETE_COMMIT, ONGOING, PREPARE_ABORT, PREPARE_COMMIT
from tests.figures import figure
from tests.tries import tries

from .context import P0, P1, TIMEOUT_MS, Context

PARTITIONS = [P0, P1, ("u", 0)]
STEPS = {"steps": 0}


class Transactions(RuleBasedStateMachine):
    """One transactional id, its current producer, and its earlier producers.

    The rules: a decided outcome never changes; only the current producer decides an outcome; no identity is given
    twice; markers are requested only while an outcome is being written, and always then.
    """

    def __init__(self) -> None:
        super().__init__()
        self.context = Context()
        self.given: set[Identity] = set()
        self.old: list[Identity] = []
        self.producer: Identity | None = None
        self.added: set[tuple[str, int]] = set()
        self.decided: bool | None = None
        self.open = False

    def _is_new(self, answer: Identity) -> None:
        assert answer not in self.given, f"{answer} was given before"
        self.given.add(answer)
        if self.producer is not None:
            self.old.append(self.producer)
        self.producer = answer

    def _busy(self) -> bool:
        return self.decided is not None

    @rule(fail=st.booleans())
    def init(self, fail: bool) -> None:
        STEPS["steps"] += 1
        self.context.fail_with = ErrorCode.NOT_ENOUGH_REPLICAS if fail else ErrorCode.NONE
        answer = self.context.init()
        self.context.fail_with = ErrorCode.NONE
        if self._busy():
            assert answer is ErrorCode.CONCURRENT_TRANSACTIONS
        elif fail:
            assert answer is ErrorCode.COORDINATOR_NOT_AVAILABLE
        elif self.open:
            assert answer is NO_IDENTITY
            self.decided, self.open = False, False
            self.old.append(self.producer or NO_IDENTITY)
            self.producer = None
        else:
            self._is_new(answer)

    @precondition(lambda self: self.producer is not None)
    @rule(partition=st.sampled_from(PARTITIONS), version=st.sampled_from([0, 2]), fail=st.booleans())
    def add(self, partition, version: int, fail: bool) -> None:
        STEPS["steps"] += 1
        assert self.producer is not None
        self.context.fail_with = ErrorCode.NOT_ENOUGH_REPLICAS if fail else ErrorCode.NONE
        answer = self.context.add(self.producer, partition, version=version)
        self.context.fail_with = ErrorCode.NONE
        if self._busy():
            assert answer is ErrorCode.CONCURRENT_TRANSACTIONS
        elif answer is None:
            self.open = True
            self.added.add(partition)
        else:
            assert fail
            assert answer is ErrorCode.COORDINATOR_NOT_AVAILABLE

    @precondition(lambda self: self.producer is not None)
    @rule(commit=st.booleans(), version=st.sampled_from([0, 2]), fail=st.booleans())
    def end(self, commit: bool, version: int, fail: bool) -> None:
        STEPS["steps"] += 1
        assert self.producer is not None
        self.context.fail_with = ErrorCode.NOT_ENOUGH_REPLICAS if fail else ErrorCode.NONE
        records = len(self.context.log)
        answer = self.context.end(self.producer, commit, version)
        self.context.fail_with = ErrorCode.NONE
        if self._busy():
            assert answer is ErrorCode.CONCURRENT_TRANSACTIONS
        elif len(self.context.log) > records:
            assert self.open or (version == 2 and not commit)
            self.decided, self.open = commit, False
            if version == 2:
                self._is_new(answer)
        elif self.open:
            assert fail
            assert answer is ErrorCode.COORDINATOR_NOT_AVAILABLE

    @precondition(lambda self: bool(self.old))
    @rule(data=st.data(), version=st.sampled_from([0, 2]), commit=st.booleans())
    def zombie(self, data, version: int, commit: bool) -> None:
        """A replaced producer changes nothing, whatever it requests."""
        STEPS["steps"] += 1
        who = data.draw(st.sampled_from(self.old))
        records = len(self.context.log)
        assert self.context.add(who, P0, version=version) is not None
        self.context.end(who, commit, version)
        assert len(self.context.log) == records

    @rule(partition=st.sampled_from(PARTITIONS))
    def mark(self, partition) -> None:
        STEPS["steps"] += 1
        if self.context.shard.transactions and self.context.txn().is_prepared:
            self.context.mark(partition)
            self._note_complete()

    @rule()
    def mark_all(self) -> None:
        STEPS["steps"] += 1
        if self.context.shard.transactions and self.context.txn().is_prepared:
            self.context.mark()
            self._note_complete()

    def _note_complete(self) -> None:
        txn = self.context.txn()
        if not txn.is_prepared:
            assert txn.state is (COMPLETE_COMMIT if self.decided else COMPLETE_ABORT)
            self.decided = None
            self.added.clear()

    @rule()
    def fail_over(self) -> None:
        STEPS["steps"] += 1
        given = self.context.ids
        self.context = self.context.restarted()
        assert self.context.ids > given
        assert bool(self.context.prepared) == self._busy()

    @rule()
    def time_out(self) -> None:
        STEPS["steps"] += 1
        self.context.advance(TIMEOUT_MS + 2 * self.context.config.abort_interval_ms)
        if self.open:
            self.decided, self.open = False, False
            self.old.append(self.producer or NO_IDENTITY)
            self.producer = None

    @invariant()
    def what_holds(self) -> None:
        if not self.context.shard.transactions:
            return
        txn = self.context.txn()
        assert (txn.state is ONGOING) == self.open
        assert txn.is_prepared == self._busy()
        if self.decided is not None:
            assert txn.state is (PREPARE_COMMIT if self.decided else PREPARE_ABORT)
            assert txn.partitions <= self.added
        if self.open:
            assert txn.partitions == self.added
        assert not self.context.shard._pending


Transactions.TestCase.settings = settings(max_examples=tries(150), stateful_step_count=50)
TestTransactions = Transactions.TestCase


@pytest.fixture(autouse=True, scope="module")
def told():
    yield
    figure("steps of the transaction coordinator's model", str(STEPS["steps"]))
