"""A shard of the transaction coordinator in the real runtime, and requests to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kbroker.coordination.shard import CoordinatorRecord
from kbroker.protocol.errors import ApiError
from kbroker.txn.marker_sender import RETRY_MS
from kbroker.txn.records import transaction_record
from kbroker.txn.shard import Identity, TransactionConfig, TransactionShard
from kbroker.txn.transaction import COMPLETE_ABORT, COMPLETE_COMMIT, TopicPartition, Transaction
from tests.coordination.still import START_MS, Still

P0: TopicPartition = ("t", 0)
P1: TopicPartition = ("t", 1)
TIMEOUT_MS = 60_000


class Context(Still[TransactionShard]):
    """The transactional ids of a shard. `prepared` collects the ids whose markers have to be written."""

    def __init__(self, level: int = 2, log: Sequence[CoordinatorRecord] = (), now: int = START_MS) -> None:
        self.config = TransactionConfig(id_expiration_ms=36_000_000)  # a week would mean 60,000 checks
        self.level = level
        self.prepared: list[str] = []
        self.ids = 1000
        super().__init__(self._make_shard, log, now)

    def _make_shard(self, _partition: int) -> TransactionShard:
        return TransactionShard(
            self.config, self, lambda: self.level, self.prepared.append, lambda: self.max_bytes, RETRY_MS
        )

    @property
    def max_bytes(self) -> int:
        return self.writer.max_bytes

    @max_bytes.setter
    def max_bytes(self, size: int) -> None:
        self.writer.max_bytes = size

    def next(self) -> int:
        """Return a new producer id."""
        self.ids += 1
        return self.ids

    def avoid(self, used: int) -> None:
        self.ids = max(self.ids, used)

    def restarted(self) -> Context:
        """Return a context whose shard has loaded this context's log."""
        other = Context(self.level, self.log, self.now)
        other.ids = self.ids + 1000
        return other

    # -- requests

    def init(self, expected: Identity | None = None, name: str = "id", timeout_ms: int = TIMEOUT_MS) -> Any:
        return self.ask(lambda shard, now: shard.init_producer_id(name, timeout_ms, expected, now))

    def add(self, producer: Identity, *partitions: TopicPartition, version: int = 0, name: str = "id") -> Any:
        return self.ask(lambda shard, now: shard.add_partitions(name, producer, partitions, version, now))

    def verify(self, producer: Identity, *partitions: TopicPartition, name: str = "id") -> Any:
        try:
            return self.shard.verify(name, producer, partitions)
        except ApiError as err:
            return err.code

    def end(self, producer: Identity, commit: bool = True, version: int = 0, name: str = "id") -> Any:
        return self.ask(lambda shard, now: shard.end(name, producer, commit, version, now))

    def mark(self, *partitions: TopicPartition, name: str = "id", job: Transaction | None = None) -> Any:
        """Report the markers of these partitions as written; without partitions, all remaining markers."""
        txn = job or self.shard.transactions[name]
        return self.ask(lambda shard, now: shard.marked(txn, partitions or txn.partitions, now))

    def txn(self, name: str = "id") -> Transaction:
        return self.shard.transactions[name]


def ongoing(version: int = 0, level: int = 2) -> tuple[Context, Identity]:
    context = Context(level)
    producer = context.init()
    assert context.add(producer, P0, P1, version=version) is None
    return context, producer


def ended(commit: bool, version: int) -> tuple[Context, Identity, Identity]:
    """Return a context with a complete transaction, and the producer's identity before and after its end."""
    context, producer = ongoing(version)
    after = context.end(producer, commit, version)
    context.mark()
    assert context.txn().state is (COMPLETE_COMMIT if commit else COMPLETE_ABORT)
    return context, producer, after if version else producer


def put(context: Context, **changes: object) -> Transaction:
    """Set a state of the transactional id that requests would reach only after a long time."""
    txn = replace(context.shard.transactions.get("id") or Transaction("id", 7, 0, timeout_ms=TIMEOUT_MS), **changes)
    context.shard.replay(0, -1, *transaction_record(txn, 1))
    context.shard._put(txn)
    return txn
