"""The interfaces of the runtime to a coordinator (`Shard`), and to the log of its topic (`Writer`)."""

from __future__ import annotations

from collections.abc import Awaitable, Hashable, Iterator
from typing import Protocol

from kbroker.coordination.outcome import Outcome


class UnreadableRecord(Exception):  # noqa: N818 - a state of the log
    """An unreadable record, which keeps its partition from being served."""

    def __init__(self, offset: int, error: Exception) -> None:
        super().__init__(f"the record at offset {offset} cannot be read: {error or type(error).__name__}")


class Shard(Protocol):
    """A replicated state machine over one partition."""

    @property
    def steps_over_unreadable(self) -> bool:
        """Whether a partition is served without the records that `replay` cannot read; otherwise it is not loaded."""

    def replay(self, offset: int, producer_id: int, key: bytes, value: bytes | None) -> None:
        """Apply a record of the log; raises Malformed or ValueError if it cannot be read."""

    def replay_end_transaction(self, producer_id: int, committed: bool) -> None:
        """Apply a transaction marker of the log."""

    def on_loaded(self, now_ms: int) -> Outcome:
        """Begin to serve: the whole log is replayed."""

    def on_unloaded(self, now_ms: int) -> Outcome:
        """Stop serving: answer the parked requests."""

    def on_timer(self, key: Hashable, now_ms: int) -> Outcome:
        """Handle a timer that has expired."""


class Writer(Protocol):
    """The log of the coordinator's topic, as the composition root provides it."""

    def partition_count(self) -> int:
        """Return how many partitions the topic has; 0 when it does not exist."""

    def append(
        self, partition: int, batch: bytes, now_ms: int, *, guard: object = ..., transaction_version: int = 0
    ) -> int:
        """Append a batch; return the end offset to wait for. Raises an error with a `code`.

        `guard` proves that a transactional batch belongs to an open transaction; `transaction_version` is for the
        markers that end one.
        """

    def max_batch_bytes(self, partition: int) -> int:
        """Return the maximum size of a batch; raises ApiError if this broker does not lead the partition."""

    def committed(self, partition: int, offset: int) -> Awaitable[None] | None:
        """Return an awaitable that ends when the high watermark reaches `offset`; None if it has."""

    def copied(self, partition: int, offset: int) -> Awaitable[None] | None:
        """Return an awaitable that ends when all in-sync replicas have everything below `offset`, however few they are.

        None if they have it already: then any leader that is elected cleanly has it.
        """

    def read(self, partition: int) -> Iterator[memoryview]:
        """Yield the log from start to end, in chunks of whole batches, including uncommitted ones."""

    def ensure_topic(self) -> None:
        """Start to create the topic."""
