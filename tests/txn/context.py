"""A transaction shard with a manual clock and a log in memory: what the runtime does, without a loop."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import replace
from typing import Any

from kbroker.coordination.batches import record_batch
from kbroker.coordination.outcome import CoordinatorRecord, Outcome, Schedule
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.txn.config import TransactionConfig
from kbroker.txn.records import transaction_record
from kbroker.txn.shard import Identity, TransactionShard
from kbroker.txn.states import COMPLETE_ABORT, COMPLETE_COMMIT
from kbroker.txn.transaction import TopicPartition, Transaction

START_MS = 1_700_000_000_000
P0: TopicPartition = ("t", 0)
P1: TopicPartition = ("t", 1)
TIMEOUT_MS = 60_000


class Context:
    """Decides by a shard, and does with the outcome what the runtime would do.

    `fail_with` makes appends fail, and so does a batch larger than `max_bytes`; `lag` keeps what is appended
    uncommitted until `catch_up`. `prepared` collects the ids whose markers are to be written.
    """

    def __init__(self, level: int = 2, log: Iterable[CoordinatorRecord] = (), now: int = START_MS) -> None:
        self.config = TransactionConfig()
        self.level = level
        self.now = now
        self.log: list[CoordinatorRecord] = []
        self.timers: dict[Hashable, float] = {}
        self.fail_with = ErrorCode.NONE
        self.lag = False
        self.max_bytes = 1 << 20
        self.waiting: list[Outcome] = []
        self.prepared: list[str] = []
        self.ids = 1000
        self.shard = TransactionShard(
            self.config, self, lambda: self.level, self.prepared.append, lambda: self.max_bytes
        )
        for record in log:
            self.shard.replay(len(self.log), -1, *record)
            self.log.append(record)
        self.apply(self.shard.on_loaded(self.now))

    def next(self) -> int:
        """Hand out a producer id."""
        self.ids += 1
        return self.ids

    def avoid(self, used: int) -> None:
        self.ids = max(self.ids, used)

    def restarted(self) -> Context:
        """Return a context whose shard has loaded the log of this one."""
        other = Context(self.level, self.log, self.now)
        other.ids = self.ids + 1000
        return other

    # -- the runtime's part

    def apply(self, outcome: Outcome) -> ErrorCode:
        for timer in outcome.timers:
            if isinstance(timer, Schedule):
                self.timers[timer.key] = self.now + timer.delay_ms
            else:
                self.timers.pop(timer.key, None)
        code = self.fail_with if outcome.records else ErrorCode.NONE
        if outcome.records and len(record_batch(outcome.records, 0, None, self.now)) > self.max_bytes:
            code = ErrorCode.MESSAGE_TOO_LARGE
        if code is ErrorCode.NONE:
            self.log += outcome.records
            if self.lag and outcome.records:
                self.waiting.append(outcome)
                return code
        if outcome.after is not None:
            self.apply(outcome.after(code, self.now))
        return code

    def catch_up(self, code: ErrorCode = ErrorCode.NONE) -> None:
        """Let everything appended be committed, or be given up with `code`."""
        waiting, self.waiting = self.waiting, []
        for outcome in waiting:
            if outcome.after is not None:
                self.apply(outcome.after(code, self.now))

    def advance(self, ms: int) -> None:
        """Let time pass; timers go off in order."""
        until = self.now + ms
        while due := [(when, key) for key, when in self.timers.items() if when <= until]:
            when, key = min(due, key=lambda pair: pair[0])
            self.now = max(self.now, int(when))
            del self.timers[key]
            self.apply(self.shard.on_timer(key, self.now))
        self.now = until

    def ask(self, decide: Any) -> Any:
        """Return the reply to a decision, or the error code that it was refused with."""
        try:
            outcome = decide()
        except ApiError as err:
            return err.code
        code = self.apply(outcome)
        return outcome.reply if code is ErrorCode.NONE else code

    # -- requests

    def init(self, expected: Identity | None = None, name: str = "id", timeout_ms: int = TIMEOUT_MS) -> Any:
        return self.ask(lambda: self.shard.init_producer_id(name, timeout_ms, expected, self.now))

    def add(self, producer: Identity, *partitions: TopicPartition, version: int = 0, name: str = "id") -> Any:
        return self.ask(lambda: self.shard.add_partitions(name, producer, partitions, version, self.now))

    def verify(self, producer: Identity, *partitions: TopicPartition, name: str = "id") -> Any:
        try:
            return self.shard.verify(name, producer, partitions)
        except ApiError as err:
            return err.code

    def end(self, producer: Identity, commit: bool = True, version: int = 0, name: str = "id") -> Any:
        return self.ask(lambda: self.shard.end(name, producer, commit, version, self.now))

    def mark(self, *partitions: TopicPartition, name: str = "id", job: Transaction | None = None) -> Any:
        """Report markers as written; without partitions all that are left."""
        txn = job or self.shard.transactions[name]
        return self.ask(lambda: self.shard.marked(txn, partitions or txn.partitions, self.now))

    def txn(self, name: str = "id") -> Transaction:
        return self.shard.transactions[name]


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
