"""The shared parts of all partitions of schedule topics on a broker: clock, topics, a thread, and the path to targets.

Owns the thread of the indexes, and the limits on batches that are sent at the same time. Never decides anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol, TypeVar

from kbroker.clock import Clock
from kbroker.cluster_state import TopicState
from kbroker.long_work import ShortTurns
from kbroker.partition import Partition
from kbroker.protocol.errors import ErrorCode
from kbroker.scheduling.index import boot_id

T = TypeVar("T")
Outcome = ErrorCode | Awaitable[ErrorCode]
BATCH_BYTES: Final = 1 << 19
"""The maximum size of a batch in bytes, unless a single record is larger."""
BATCH_RECORDS: Final = 1000


class Deliveries(Protocol):
    """Produces to the targets, on this broker or on another broker (broker/own_produce.py)."""

    def leader_of(self, topic: str, index: int) -> int:
        """Return the broker that leads a partition."""

    async def produce(self, topic: str, index: int, batch: memoryview, topic_id: bytes | None = None) -> Outcome:
        """Produce a batch as a client with acks=all, to the topic with this id."""


class Places(Protocol):
    """Limits the number of batches that are sent at the same time, in total and to one broker (broker/places.py)."""

    def place(self, broker: int) -> AbstractAsyncContextManager[None]:
        """Wait for a place, and keep the place until the `with` block ends."""


class ProducerIds(Protocol):
    """The supply of producer ids."""

    def next(self) -> int:
        """Return an id that was never supplied before; raises ApiError while no id is available."""


class Shared:
    """The parts that the partitions use. `topic` returns a topic by name, `most_bytes` a topic's max.message.bytes."""

    def __init__(
        self,
        clock: Clock,
        topic: Callable[[str], TopicState | None],
        most_bytes: Callable[[TopicState], int],
        producer_ids: ProducerIds,
        deliveries: Deliveries,
        places: Places,
        is_hosted: Callable[[Partition], bool],
    ) -> None:
        self.clock = clock
        self.topic = topic
        self.most_bytes = most_bytes
        self.producer_ids = producer_ids
        self.deliveries = deliveries
        self.places = places
        self.is_hosted = is_hosted
        self.boot = boot_id()
        self._pool: ThreadPoolExecutor | None = None
        self._short_turns: ShortTurns | None = None
        self._is_closed = False

    def call(self, work: Callable[..., T], *args: object) -> asyncio.Future[T]:
        """Run work of an index on the thread. After `close`, raise CancelledError."""
        if self._is_closed:
            raise asyncio.CancelledError  # a long replay of the log was still running when its partition was deleted
        if self._pool is None:
            self._short_turns = ShortTurns()  # SQLite releases the interpreter lock at each step
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="kbroker-schedules")
        return asyncio.get_running_loop().run_in_executor(self._pool, work, *args)

    def close(self) -> None:
        """End the thread after its current work."""
        self._is_closed = True
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
        if self._short_turns is not None:
            self._short_turns.end()

    def partitions(self, topic: str) -> int:
        """Return the number of partitions of a topic; 0 if the topic is unknown."""
        known = self.topic(topic)
        return 0 if known is None else len(known.partitions)
