"""The topic `__remote_log_metadata` in memory, for several brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.records import parse_header
from kbroker.tiers.followed_metadata import Piece, Want


class Topic:
    """The committed batches of each partition, and the leaders."""

    def __init__(self, partitions: int = 4) -> None:
        self.id = b"m" * 16
        self.batches: list[list[bytes]] = [[] for _ in range(partitions)]
        self.ends = [0] * partitions
        self.leaders = [1] * partitions
        self.changed = asyncio.Event()

    def append(self, partition: int, batch: bytes) -> None:
        """Append a batch, and wake the readers."""
        self.batches[partition].append(self.ends[partition].to_bytes(8, "big") + batch[8:])
        self.ends[partition] += parse_header(batch).record_count
        self.wake()

    def wake(self) -> None:
        """Let all readers read again."""
        self.changed.set()
        self.changed = asyncio.Event()


class MemorySource:
    """One broker's access to the topic."""

    def __init__(self, topic: Topic, broker_id: int = 1) -> None:
        self.topic = topic
        self.broker_id = broker_id
        self.is_known = True
        """Whether the broker knows the topic."""
        self.knows_ends = True
        """Whether the leaders know the ends of the committed records."""
        self.refusal = ErrorCode.NONE
        """The result of all writes, which then write nothing."""
        self.fails_after = ErrorCode.NONE
        """The result of all writes, which nevertheless write."""
        self.is_deaf = False
        """Whether reads return nothing."""
        self.created = 0

    def partition_count(self) -> int:
        return len(self.topic.batches) if self.is_known else 0

    def topic_id(self) -> bytes:
        return self.topic.id

    def ensure_topic(self) -> None:
        self.created += 1

    def leader_of(self, partition: int) -> int:
        return self.topic.leaders[partition]

    def leads(self, partition: int) -> bool:
        return self.leader_of(partition) == self.broker_id

    async def bounds(self, leader: int, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
        return {each: (0, self.topic.ends[each]) for each in partitions if self.knows_ends}

    async def read(self, leader: int, wants: Sequence[Want], wait_ms: int) -> list[Piece]:
        changed = self.topic.changed
        found = [] if self.is_deaf else [piece for want in wants if (piece := self._piece(leader, want)) is not None]
        if not found:
            try:
                async with asyncio.timeout(min(wait_ms, 20) / 1000):
                    await changed.wait()
            except TimeoutError:
                pass
        return found

    def _piece(self, leader: int, want: Want) -> Piece | None:
        if self.topic.leaders[want.partition] != leader:
            return Piece(want.partition, code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if want.offset > self.topic.ends[want.partition]:
            return Piece(want.partition, is_elsewhere=True)
        found = b"".join(
            each for each in self.topic.batches[want.partition] if parse_header(each).last_offset >= want.offset
        )
        return Piece(want.partition, memoryview(found)) if found else None

    async def write(self, partition: int, batch: memoryview) -> ErrorCode:
        await asyncio.sleep(0)
        if self.refusal is ErrorCode.NONE:
            self.topic.append(partition, bytes(batch))
        return self.refusal or self.fails_after
