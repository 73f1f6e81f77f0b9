"""One partition with remote storage without a broker: a log, a store in a directory, and the shards of the metadata."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from kbroker.log.log_config import LogConfig
from kbroker.log.tier import Tier
from kbroker.partition import Partition
from kbroker.protocol.errors import ApiError
from kbroker.remote.segments import RemoteSegments
from kbroker.remote.store import open_store
from kbroker.tiers.followed_metadata import RemoteMetadata
from kbroker.tiers.metadata import Owner
from kbroker.tiers.reading import RemoteReader
from kbroker.tiers.settings import TierSettings
from kbroker.tiers.shared import Shared, Use
from kbroker.tiers.tiered_partition import TieredPartition
from tests.coordination.world import ManualClock
from tests.log.builders import NOW, batch, committed, delete_due, open_log
from tests.tiers.records import MemorySource, Topic

SIZE = len(batch())
TIERED = LogConfig(segment_bytes=SIZE * 2, local_retention_bytes=SIZE * 4, remote_storage_enable=True)
"""Two records are a segment, and two segments stay on the local disk."""
SETTINGS = TierSettings(
    url="", options={}, interval_ms=0, copies_at_once=1, deletes_at_once=1, copy_rate=1 << 40, reads_at_once=2,
    reads_waiting=100, retry_ms=0, longest_retry_ms=0, index_bytes=1 << 20, cache_bytes=1 << 24,
    state_interval_ms=0,
)  # fmt: skip


async def known(metadata: RemoteMetadata, owner: Owner) -> RemoteSegments:
    """Return the segments of a partition once they are known."""
    async with asyncio.timeout(10):
        while True:
            with contextlib.suppress(ApiError):
                return metadata.segments(owner)
            await asyncio.sleep(0)


class World:
    """What a broker has of a tiered partition. Create it in an event loop, and call `load` first."""

    def __init__(self, directory: Path, config: LogConfig = TIERED) -> None:
        self.store = directory / "store"
        self.store.mkdir(exist_ok=True)
        self.log = open_log(directory / "topic-0", config=config)
        self.clock = ManualClock()
        self.clock.ms = NOW
        self.partition = Partition("topic", b"t" * 16, 0, self.log)
        self.partition.leading = True
        self.synced: list[int] = []
        """The end of what was known to be copied, at each sync of the metadata."""
        self.fails: OSError | None = None
        """The error of a sync of the metadata, after some that succeed."""
        self.succeed = 0
        self.topic = Topic()
        self.use = Use.ON
        self.shared = Shared(
            1, SETTINGS, open_store(f"file://{self.store}"), "",
            RemoteMetadata(1, MemorySource(self.topic), self.clock), self.clock, lambda _partition: True, lambda: None,
            self._sync, self._use_of, 0, asyncio.Semaphore(1), asyncio.Semaphore(1),
        )  # fmt: skip
        self.tiered = TieredPartition(self.partition, self.shared)
        self.reader = RemoteReader(self.shared, str(directory / "chunks"))

    async def load(self) -> None:
        """Wait until the remote segments are known."""
        await known(self.shared.metadata, self.tiered.owner)

    async def _use_of(self, _owner: Owner) -> Use:
        return self.use

    async def _sync(self, _index: int) -> None:
        self.synced.append(self.tier.end_offset)
        if self.fails is not None:
            self.succeed -= 1
            if self.succeed < 0:
                error, self.fails, self.succeed = self.fails, None, 0
                raise error

    @property
    def tier(self) -> Tier:
        assert self.log.tier is not None
        return self.log.tier

    @property
    def segments(self) -> RemoteSegments:
        return self.shared.metadata.segments(self.tiered.owner)

    @property
    def objects(self) -> list[int]:
        """The base offsets of the objects in the store."""
        return sorted(int(each.name[:20]) for each in self.store.rglob("*") if each.is_file())

    def append(self, count: int, epoch: int = 0, timestamp: int = NOW, *, flush: bool = True) -> None:
        """Append committed batches of one record, and bring them to the disk."""
        for _ in range(count):
            self.log.append_as_leader(batch(timestamp=timestamp), epoch, NOW)
        committed(self.log)
        if flush:
            self.log.flush()

    async def round(self) -> None:
        """Do a round that must succeed."""
        await self.tiered.round()
        assert not self.tiered.error

    def retain(self) -> None:
        """Apply local retention."""
        delete_due(self.log, NOW)
        self.log.take_deleted(NOW + 3_600_000, 1000)

    async def close(self) -> None:
        await self.shared.metadata.close()
        self.reader.close()
        await self.shared.store.close()
        self.log.close()
