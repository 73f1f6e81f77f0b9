"""A coordinator's shard as the runtime sees it: the interfaces of the shard and of its log, and the shard's decisions.

Owns the data of a decision (`Outcome`: records to write, answers, timers) and its parts, and the errors that clients
get if the log fails. Nothing in this module does I/O.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from kbroker.protocol.errors import ErrorCode


class CoordinatorRecord(NamedTuple):
    """One record of a coordinator's partition, as bytes; a value of None is a tombstone."""

    key: bytes
    value: bytes | None


class Schedule(NamedTuple):
    """Let a timer expire in `delay_ms`; the new timer replaces any timer with the same key."""

    key: Hashable
    delay_ms: float


class Cancel(NamedTuple):
    """Remove a timer, if it exists."""

    key: Hashable


class Parked:
    """A request that is answered later.

    A shard keeps the request until `Outcome.replies` contains the request and its answer.
    """

    __slots__ = ("answer", "wake")

    def __init__(self) -> None:
        self.answer: Any = None
        self.wake: Callable[[Any], None] | None = None

    def complete(self, answer: Any) -> None:
        """Answer the request; only the first answer counts."""
        if self.answer is None:
            self.answer = answer
            if self.wake is not None:
                self.wake(answer)


class InTransaction(NamedTuple):
    """The transaction to which records belong.

    `guard` is the partition's verification of the transaction (ProducerState).
    """

    producer_id: int
    producer_epoch: int
    guard: object


class EndOfTransaction(NamedTuple):
    """The end of a producer's transaction on a coordinator's partition: a marker to append."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    commit: bool
    transaction_version: int


class Encoded(Protocol):
    """The records of one batch. They are encoded before the decision, because there are many."""

    def batch(self, leader_epoch: int, producer: InTransaction | None, now_ms: int) -> bytes:
        """Return the batch."""

    def __len__(self) -> int:
        """Return the number of records."""


@dataclass(slots=True)
class Outcome:
    """The decision of a shard.

    `refused` is the error if the records could not be built; the decision then counts as a failed append. Without
    `atomic`, a long list of records may be spread over several batches. `encoded` replaces a long list; `apply(offset,
    producer_id)` then has the same effect on the shard as the replay of the records from `offset` on. `producer`
    assigns the records to a transaction. `marker` ends a transaction, and replaces records.
    """

    reply: Any = None
    records: list[CoordinatorRecord] = field(default_factory=list)
    replies: list[tuple[Parked, Any]] = field(default_factory=list)
    timers: list[Schedule | Cancel] = field(default_factory=list)
    after: Callable[[ErrorCode, int], Outcome] | None = None
    replay: bool = True
    atomic: bool = True
    refused: ErrorCode | None = None
    producer: InTransaction | None = None
    marker: EndOfTransaction | None = None
    encoded: Encoded | None = None
    apply: Callable[[int, int], None] | None = None

    @property
    def writes(self) -> bool:
        """Whether there are records or a marker to append, even if they could not be built (`refused`)."""
        return bool(self.records) or self.marker is not None or self.refused is not None or self.encoded is not None

    def when_written(
        self, act: Callable[[Outcome, int], None], otherwise: Callable[[Outcome, int], None] | None = None
    ) -> None:
        """Register `act` to run in `after`, or `otherwise` to run there if the append failed.

        Functions of several calls run in the order of the calls.
        """
        before = self.after

        def after(code: ErrorCode, now_ms: int) -> Outcome:
            out = Outcome() if before is None else before(code, now_ms)
            chosen = act if code is ErrorCode.NONE else otherwise
            if chosen is not None:
                chosen(out, now_ms)
            return out

        self.after = after


_ANSWERS = {
    ErrorCode.NETWORK_EXCEPTION: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


def answerable(code: ErrorCode) -> ErrorCode:
    """Return the error for a client when the coordinator's own log failed with `code`.

    The pairs of errors are the same as in CoordinatorOperationExceptionHelper: a client must not mistake another
    partition's error for an error of its own partition.
    """
    return _ANSWERS.get(code, code)


class UnreadableRecord(Exception):  # noqa: N818 - a state of the log
    """A record is unreadable. Therefore its partition is not served."""

    def __init__(self, offset: int, error: Exception) -> None:
        super().__init__(f"the record at offset {offset} cannot be read: {error or type(error).__name__}")


class Shard(Protocol):
    """A replicated state machine over one partition."""

    @property
    def steps_over_unreadable(self) -> bool:
        """Whether to serve a partition without the records that `replay` cannot read.

        If not, the load of the partition fails.
        """

    def replay(self, offset: int, producer_id: int, key: bytes, value: bytes | None) -> None:
        """Apply a record of the log. Raises Malformed or ValueError if the record is unreadable."""

    def replay_end_transaction(self, producer_id: int, committed: bool) -> None:
        """Apply a transaction marker of the log."""

    def on_loaded(self, now_ms: int) -> Outcome:
        """Begin to serve, after the complete log has been replayed."""

    def on_unloaded(self, now_ms: int) -> Outcome:
        """Stop serving: answer the parked requests."""

    def on_timer(self, key: Hashable, now_ms: int) -> Outcome:
        """Handle a timer that has expired."""


class Writer(Protocol):
    """The log of the coordinator's topic, as the composition root provides it."""

    def partition_count(self) -> int:
        """Return the number of the topic's partitions; 0 if the topic does not exist."""

    def append(
        self, partition: int, batch: bytes, now_ms: int, *, guard: object = ..., transaction_version: int = 0
    ) -> int:
        """Append a batch; return the end offset whose commit ends the wait. Raises an error with a `code`.

        `guard` proves that a transactional batch belongs to an open transaction; `transaction_version` is for the
        markers that end a transaction.
        """

    def max_batch_bytes(self, partition: int) -> int:
        """Return the maximum size of a batch. Raises ApiError if this broker does not lead the partition."""

    def committed(self, partition: int, offset: int) -> Awaitable[None] | None:
        """Return an awaitable that ends when the high watermark reaches `offset`.

        Return None if the high watermark is already there.
        """

    def copied(self, partition: int, offset: int) -> Awaitable[None] | None:
        """Return an awaitable that ends when all in-sync replicas have all records below `offset`.

        There can be few in-sync replicas. Return None if they already have these records. Any leader that is elected
        cleanly then also has these records.
        """

    def end_offset(self, partition: int) -> int:
        """Return the log's end offset. Raises ApiError if this broker does not lead the partition."""

    def read(self, partition: int, begin: int = 0) -> Iterator[memoryview]:
        """Yield the log from an offset to its end, in chunks of complete batches, including uncommitted ones."""

    def ensure_topic(self) -> None:
        """Start to create the topic."""
