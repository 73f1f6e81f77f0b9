"""The partitions with remote storage on a broker: their rounds, and the deletion of unneeded remote segments.

Owns the choice of the partitions, the time of their rounds, and the reader. Also owns the deletion of two kinds of
remote segments: the segments of deleted topics, and the segments of topics that no longer use remote storage, if this
broker does not host the partition. Never copies: copying.py does.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator
from typing import Final

from kbroker.log.log_slice import LogSlice
from kbroker.long_work import begun_in_slices, turn
from kbroker.partition import Partition
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.remote.object_format import folder_of
from kbroker.remote.segment import DeleteState
from kbroker.remote.store_errors import StoreError
from kbroker.tiers.earlier_state import EarlierState, read_earlier_state
from kbroker.tiers.metadata import Owner
from kbroker.tiers.reading import RemoteReader
from kbroker.tiers.settings import TierSettings
from kbroker.tiers.shared import Shared, Use
from kbroker.tiers.tiered_partition import TieredPartition, delete_segment

log = logging.getLogger(__name__)

_LOOK_MS: Final = 5_000
"""The time in ms between two searches for unneeded remote segments. After failures it is longer."""
_AT_ONCE: Final = 200
"""The maximum number of partitions that a tick checks."""
_BEGUN_AT_ONCE: Final = 20
"""The maximum number of rounds that a tick begins."""


class Tiers:
    """Follows the partitions from their hosting until `close`."""

    def __init__(self, shared: Shared, directory: str) -> None:
        """`directory` is for the chunks that were read."""
        self.shared = shared
        self.reader = RemoteReader(shared, directory)
        self._followed: dict[tuple[str, int], TieredPartition] = {}
        self._rounds: dict[TieredPartition, asyncio.Task[None]] = {}
        self._turns: deque[TieredPartition] = deque()
        """The followed partitions in the order in which ticks check them."""
        self._cleaning: asyncio.Task[None] | None = None
        self._cleaned: Owner | None = None
        self._unneeded: dict[Owner, tuple[Use, float]] = {}
        """The partitions with unneeded segments, and the monotonic time in ms since which this is known."""
        self._clean_ms = 0.0
        self._clean_fails = 0
        self._is_closed = False

    def __iter__(self) -> Iterator[TieredPartition]:
        return iter(self._followed.values())

    def configure(self, settings: TierSettings) -> None:
        """Use other settings from now on. Running copies and deletions continue."""
        before, shared = self.shared.settings, self.shared
        shared.settings = settings
        if settings.copies_at_once != before.copies_at_once:
            shared.copies = asyncio.Semaphore(settings.copies_at_once)
        if settings.deletes_at_once != before.deletes_at_once:
            shared.deletions = asyncio.Semaphore(settings.deletes_at_once)
        if settings.copy_rate != before.copy_rate:
            shared.copy_after = 0.0
        if settings.reads_at_once != before.reads_at_once:
            self.reader.limit(settings.reads_at_once)

    def hosted(self, partition: Partition) -> None:
        """Follow a partition that is hosted from now on, if its topic uses remote storage."""
        if partition.log.tier is not None and not self._is_closed:
            followed = self._followed[partition.key] = TieredPartition(partition, self.shared)
            self._turns.append(followed)

    def reconfigured(self, partition: Partition) -> None:
        """Record that a partition's configs have changed."""
        followed = self._followed.get(partition.key)
        if followed is None or followed.partition is not partition:
            self.hosted(partition)
        else:
            followed.retry()

    async def batches_at(self, partition: Partition, offset: int, most: int) -> LogSlice | bytes:
        """Return batches from an offset on, or an empty result if they do not arrive in time. Raises ApiError."""
        until = asyncio.get_running_loop().time() + self.shared.deadline_s
        owner = Owner(partition.topic, partition.topic_id, partition.index)
        found = await self.reader.read(owner, partition.log, offset, most, min_one=True, committed=False, until=until)
        return found.records

    async def offset_at(self, partition: Partition, timestamp: int) -> int | None:
        """Return the offset of the first remote record that is not older than a timestamp in ms; None without one.

        Raises ApiError.
        """
        until = asyncio.get_running_loop().time() + self.shared.deadline_s
        owner = Owner(partition.topic, partition.topic_id, partition.index)
        try:
            found = await self.reader.first_at(owner, partition.log, timestamp, until)
        except TimeoutError:
            raise ApiError(ErrorCode.REQUEST_TIMED_OUT) from None
        return None if found is None else found[0]

    async def earlier_state(self, partition: Partition, epoch: int, offset: int) -> EarlierState:
        """Return the state behind the remote records up to an offset of a leader epoch. Raises ApiError."""
        owner = Owner(partition.topic, partition.topic_id, partition.index)
        return await read_earlier_state(self.shared, owner, epoch, offset)

    async def lag(self) -> tuple[int, int]:
        """Return the size in bytes and the greatest age in ms of data that are not copied yet, for all partitions."""
        total, oldest_ms = 0, 0
        for followed in list(self):
            if followed.is_current():
                size, age_ms = followed.lag()
                total, oldest_ms = total + size, max(oldest_ms, age_ms)
            await turn
        return total, oldest_ms

    def tick(self) -> None:
        """Begin a limited number of the rounds that are due."""
        if self._is_closed:
            return
        self.shared.metadata.tick()
        loop = asyncio.get_running_loop()
        begun = 0
        for _ in range(min(len(self._turns), _AT_ONCE)):
            if begun == _BEGUN_AT_ONCE:
                break
            followed = self._turns.popleft()
            if followed not in self._rounds:
                if not self.shared.is_hosted(followed.partition) or followed.partition.log.tier is None:
                    if self._followed.get(followed.partition.key) is followed:
                        del self._followed[followed.partition.key]
                    continue
                if followed.is_due and followed.owner != self._cleaned:
                    task = self._rounds[followed] = loop.create_task(followed.round())
                    task.add_done_callback(lambda _task, done=followed: self._rounds.pop(done, None))  # type: ignore[misc]
                    begun += followed.partition.leading  # a follower's round does nothing long
            self._turns.append(followed)
        now_ms = self.shared.clock.monotonic_ms()
        if now_ms >= self._clean_ms and (self._cleaning is None or self._cleaning.done()):
            self._clean_ms = now_ms + max(
                _LOOK_MS, min(_LOOK_MS << self._clean_fails, self.shared.settings.longest_retry_ms)
            )
            self._cleaning = loop.create_task(begun_in_slices(self._clean))

    async def _clean(self) -> None:
        """Delete the remote segments of deleted topics, and of topics without remote storage."""
        failed, led = None, self.shared.metadata.led()
        known = set(led)
        self._unneeded = {owner: since for owner, since in self._unneeded.items() if owner in known}
        for owner in led:
            await turn
            followed = self._followed.get((owner.topic, owner.partition))
            if followed is not None and followed.owner == owner and followed in self._rounds:
                continue
            self._cleaned = owner
            try:
                await self._clean_one(owner)
            except (StoreError, ApiError, OSError) as error:
                self.shared.counts.failures += 1
                failed = f"{owner}: {error}"
            except Exception:
                log.exception("%s: remote segments are not all deleted", owner)
            finally:
                self._cleaned = None
        if failed is not None and not self._clean_fails:
            log.warning("some unneeded remote segments are not deleted yet; the deletion is retried: %s", failed)
        self._clean_fails = 0 if failed is None else min(self._clean_fails + 1, 10)

    async def _clean_one(self, owner: Owner) -> None:
        """Delete the segments of a partition whose topic is deleted or does not use remote storage.

        A followed partition deletes its segments itself when its topic does not use remote storage any more.
        """
        use = await self.shared.use_of(owner)
        now_ms = self.shared.clock.monotonic_ms()
        if use is Use.ON or self._unneeded.get(owner, (Use.ON, 0.0))[0] is not use:
            self._unneeded.pop(owner, None)
        if use is Use.ON or now_ms < self._unneeded.setdefault(owner, (use, now_ms))[1] + self.shared.grace_ms:
            return
        if use is Use.DELETED:
            await self._delete_partition(owner)
        elif use is Use.OFF and not self._is_followed(owner):
            for each in self.shared.metadata.segments(owner).all():
                if await self.shared.use_of(owner) is not Use.OFF or self._is_followed(owner):
                    return
                await delete_segment(self.shared, owner, each)

    def _is_followed(self, owner: Owner) -> bool:
        followed = self._followed.get((owner.topic, owner.partition))
        return followed is not None and followed.owner == owner

    async def _delete_partition(self, owner: Owner) -> None:
        metadata = self.shared.metadata
        for state in (DeleteState.DELETE_PARTITION_MARKED, DeleteState.DELETE_PARTITION_STARTED):
            await metadata.decide(owner, lambda shard, now, state=state: shard.advance_deletion(owner, state, now))  # type: ignore[misc]
        for each in metadata.segments(owner).all():
            await delete_segment(self.shared, owner, each)
        # An interrupted copy may have left an object after the deletion of its segment.
        async for found in self.shared.store.list(folder_of(owner.topic_id, owner.partition, self.shared.prefix)):
            await self.shared.store.delete(found.name, deadline_s=self.shared.deadline_s)
        finished = DeleteState.DELETE_PARTITION_FINISHED
        await metadata.decide(owner, lambda shard, now: shard.advance_deletion(owner, finished, now))
        log.info("%s: the topic was deleted, and now its remote segments are also deleted", owner)

    async def close(self) -> None:
        """Stop everything. An unfinished copy is removed after the next start."""
        self._is_closed = True
        tasks = [*self._rounds.values(), *([] if self._cleaning is None else [self._cleaning])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.shared.metadata.close()
        self.reader.close()
        await self.shared.store.close()
