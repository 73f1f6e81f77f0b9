"""What a coordinator's shard decided: records to write, answers, timers.

Owns the data of a decision (`Outcome`) and its parts. Nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

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


class Encoded(Protocol):
    """Records of one batch that were encoded before the decision, as there are many."""

    def batch(self, leader_epoch: int, producer: InTransaction | None, now_ms: int) -> bytes:
        """Return the batch."""

    def __len__(self) -> int:
        """Return how many records there are."""


@dataclass(slots=True)
class Outcome:
    """What a shard decided.

    `refused` says that records could not even be built, which counts as a failed append. Without `atomic` a long list
    of records may be spread over several batches. `encoded` stands in the place of a long one; `apply(offset,
    producer_id)` then does to the shard what replaying it from `offset` on would. `producer` makes the records part of
    a transaction; `marker` ends one, and stands in the place of records.
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
        """Whether anything is to be appended, or would be if it could be built."""
        return bool(self.records) or self.marker is not None or self.refused is not None or self.encoded is not None

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
