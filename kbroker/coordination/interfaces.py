"""What the runtime asks of a coordinator (`Shard`), and of the log of its topic (`Writer`)."""

from __future__ import annotations

from collections.abc import Awaitable, Hashable, Iterator
from typing import Protocol

from kbroker.coordination.outcome import Outcome


class UnreadableRecord(Exception):  # noqa: N818 - a state of the log
    """A record without which a partition is not served."""

    def __init__(self, offset: int, error: Exception) -> None:
        super().__init__(f"the record at offset {offset} cannot be read: {error or type(error).__name__}")


class Shard(Protocol):
    """A replicated state machine over one partition."""

    @property
    def steps_over_unreadable(self) -> bool:
        """Whether a partition is served without the records that `replay` cannot read; else it is not loaded."""

    def replay(self, offset: int, producer_id: int, key: bytes, value: bytes | None) -> None:
        """Apply a record of the log; raises Malformed or ValueError where it cannot be read."""

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

    def copied(self, partition: int, offset: int) -> Awaitable[None] | None:
        """Return what to await until all in-sync replicas have everything below `offset`, however few they are.

        None when they have it already: whoever is elected, but uncleanly, begins with it.
        """

    def read(self, partition: int) -> Iterator[memoryview]:
        """Yield the log from start to end, in chunks of whole batches, also what is not committed yet."""

    def ensure_topic(self) -> None:
        """Start to create the topic."""
