"""What a coordinator's shard and the runtime around it say to each other.

Owns the data of a decision (`Outcome`), the two seams (`Shard`, `Writer`), and two facts that all coordinators share:
which partition a key belongs to, and what clients are told when the coordinator's own log fails. Nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, TypeVar, cast

from kbroker.protocol.errors import ErrorCode


class CoordinatorRecord(NamedTuple):
    """One record of a coordinator's partition, as bytes; a value of None is a tombstone."""

    key: bytes
    value: bytes | None


class Schedule(NamedTuple):
    """Let a timer go off in `delay_ms`; one of the same key is replaced."""

    key: Hashable
    delay_ms: float


class Cancel(NamedTuple):
    """Forget a timer, if there is one."""

    key: Hashable


class Parked:
    """A request whose answer comes later. A shard keeps it and names it in `Outcome.replies`."""

    __slots__ = ("answer", "wake")

    def __init__(self) -> None:
        self.answer: Any = None
        self.wake: Callable[[Any], None] | None = None

    def complete(self, answer: Any) -> None:
        """Answer; only the first answer counts."""
        if self.answer is None:
            self.answer = answer
            if self.wake is not None:
                self.wake(answer)


class InTransaction(NamedTuple):
    """Whose transaction records belong to. `guard` is what the partition's verification gave (see ProducerState)."""

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


@dataclass(slots=True)
class Outcome:
    """What a shard decided.

    `refused` says that records could not even be built, which counts as a failed append. Without `atomic` a long list
    of records may be spread over several batches. `producer` makes the records part of a transaction; `marker` ends
    one, and stands in the place of records.
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

    @property
    def writes(self) -> bool:
        """Whether anything is to be appended, or would be if it could be built."""
        return bool(self.records) or self.marker is not None or self.refused is not None

    def when_written(
        self, act: Callable[[Outcome, int], None], otherwise: Callable[[Outcome, int], None] | None = None
    ) -> None:
        """Let `act` (or `otherwise`, if the append failed) add to the outcome of `after`, behind what is there."""
        before = self.after

        def after(code: ErrorCode, now_ms: int) -> Outcome:
            out = Outcome() if before is None else before(code, now_ms)
            chosen = act if code is ErrorCode.NONE else otherwise
            if chosen is not None:
                chosen(out, now_ms)
            return out

        self.after = after


class Shard(Protocol):
    """A replicated state machine over one partition."""

    def replay(self, offset: int, producer_id: int, key: bytes, value: bytes | None) -> None:
        """Apply a record of the log."""

    def replay_end_transaction(self, producer_id: int, committed: bool) -> None:
        """Apply a transaction marker of the log."""

    def on_loaded(self, now_ms: int) -> Outcome:
        """Begin to serve: all of the log is replayed."""

    def on_unloaded(self, now_ms: int) -> Outcome:
        """Stop serving: answer what is parked."""

    def on_timer(self, key: Hashable, now_ms: int) -> Outcome:
        """Decide what a timer means."""


class Writer(Protocol):
    """The log of the coordinator's topic, as the composition root provides it."""

    def partition_count(self) -> int:
        """Return how many partitions the topic has; 0 when it does not exist."""

    def append(
        self, partition: int, batch: bytes, now_ms: int, *, guard: object = ..., transaction_version: int = 0
    ) -> int:
        """Append a batch; return the end offset to wait for. Raises an error with a `code`.

        `guard` proves that a transactional batch belongs to an open transaction; `transaction_version` counts for the
        markers that end one.
        """

    def max_batch_bytes(self, partition: int) -> int:
        """Return how large a batch may be; raises ApiError where the partition is not led here."""

    def committed(self, partition: int, offset: int) -> Awaitable[None] | None:
        """Return what to await until the high watermark is at `offset`; None when it is there already."""

    def read(self, partition: int) -> Iterator[memoryview]:
        """Yield the log from start to end, in chunks of whole batches."""

    def ensure_topic(self) -> None:
        """Start to create the topic."""


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
    """Return what clients are told when the coordinator's own log failed with `code`.

    The pairs are those of CoordinatorOperationExceptionHelper: a client must not read another partition's trouble as
    its own.
    """
    return _ANSWERS.get(code, code)


def java_hash(text: str) -> int:
    """Return Java's String.hashCode: over UTF-16 units, signed 32 bit."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for i in range(0, len(units), 2):
        value = (31 * value + (units[i] << 8) + units[i + 1]) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


@lru_cache(maxsize=8192)
def partition_for(key: str, count: int) -> int:
    """Return the partition that coordinates `key`: Utils.abs(hash) modulo `count` (abs of the least integer is 0)."""
    value = java_hash(key)
    return 0 if value == -(1 << 31) else abs(value) % count


R = TypeVar("R")
T = TypeVar("T")


def then(answer: R | Awaitable[R], finish: Callable[[R], T]) -> T | Awaitable[T]:
    """Return what `finish` makes of an answer, at once where the answer is already there."""
    if hasattr(answer, "__await__"):
        return _finish_later(cast("Awaitable[R]", answer), finish)
    return finish(answer)


async def _finish_later(answer: Awaitable[R], finish: Callable[[R], T]) -> T:
    return finish(await answer)
