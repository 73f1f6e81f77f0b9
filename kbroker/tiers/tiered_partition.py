"""One partition with remote storage: the choice of segments to copy and to delete.

Owns the rounds. A leader's round reads the metadata of remote segments, removes the remains of unfinished work, copies
closed segments, and applies retention to both tiers. A follower's round only learns which segments are copied, so that
they may leave this disk too. Also owns the pauses after failures. A round never begins while another runs. The local
disk loses only segments with a readable copy. The log itself applies this rule (log/partition_log.py), with the end
offset that a round sets.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Final

from kbroker.failpoints import passed
from kbroker.long_work import each, in_slices, turn
from kbroker.partition import Partition
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.remote.object_format import ObjectName
from kbroker.remote.segment import RemoteSegment, SegmentState
from kbroker.remote.segments import RemoteSegments
from kbroker.remote.store_errors import StoreError, StoreTooSlowError
from kbroker.tiers.copying import copy_segment
from kbroker.tiers.metadata import Owner
from kbroker.tiers.shared import Shared

log = logging.getLogger(__name__)

NOWHERE: Final = 2**63 - 1
"""The start offset of a remote part without any record."""
_COPIES_A_ROUND: Final = 20
"""The maximum number of copies before a round applies retention."""
_CREDIT_MS: Final = 1_000
"""The time in ms whose unused rate a later copy may use."""
_SHORT_WAIT_MS: Final = 500
"""The maximum time in ms for which a round waits for the limit of the rate. After a longer wait a new round begins."""
_LINGERING_MS: Final = 3_000
"""The time in ms for which the store may continue an abandoned call."""
_LOADING_MS: Final = 200
"""The pause in ms before the next round while the records about segments are being loaded."""
_DOUBT_MS: Final = 60_000
"""The time in ms for which a leader does not believe that all remote segments have vanished."""
_FINISHED: Final = SegmentState.COPY_SEGMENT_FINISHED


class TieredPartition:
    """The remote part of a partition that this broker leads or follows."""

    def __init__(self, partition: Partition, shared: Shared) -> None:
        self.partition = partition
        self.owner = Owner(partition.topic, partition.topic_id, partition.index)
        self._shared = shared
        self._not_before = 0.0
        self._fails = 0
        self._pause_ms = 0.0
        self._has_more = False
        """Whether the last round has left segments that are due."""
        self._is_wanted_again = False
        self._was_leading = partition.leading
        self._doubted_from = 0.0
        """The time at which no remote segment was known, although the log says that there are some; otherwise 0."""
        self.error = ""
        """The error of the last round; empty after a success."""

    @property
    def is_due(self) -> bool:
        """Whether a round may begin. A new leader or follower begins at once."""
        is_new = self.partition.leading is not self._was_leading
        return is_new or self._shared.clock.monotonic_ms() >= self._not_before

    def is_current(self) -> bool:
        """Whether this broker still leads the partition, with remote storage."""
        return self.partition.leading and self._is_here()

    def _is_here(self) -> bool:
        return self._shared.is_hosted(self.partition) and self.partition.log.tier is not None

    def retry(self) -> None:
        """Let a round begin immediately. If a round is running, the new round begins after its end."""
        self._not_before = 0.0
        self._is_wanted_again = True

    async def round(self) -> None:
        """Run one round, and further rounds while segments are due.

        A failure is logged, and increases the wait until the next round.
        """
        await self._one_round()
        while self._has_more:
            await self._one_round()

    async def _one_round(self) -> None:
        self._is_wanted_again = self._has_more = False
        self._was_leading = self.partition.leading
        self._pause_ms = self._shared.settings.interval_ms
        try:
            if not await self._round():
                self._not_before = self._shared.clock.monotonic_ms() + min(_LOADING_MS, self._pause_ms)
                return
        except (StoreError, OSError, ApiError) as error:
            self._failed(str(error), _LINGERING_MS if isinstance(error, StoreTooSlowError) else 0)
        except Exception as error:
            log.exception("%s: remote storage", self.owner)
            self._failed(str(error))
        else:
            if self.error:
                log.info("%s: remote storage is in use again", self.owner)
            self.error, self._fails = "", 0
            pause_ms = 0 if self._is_wanted_again else self._pause_ms
            self._not_before = self._shared.clock.monotonic_ms() + pause_ms

    def lag(self) -> tuple[int, int]:
        """Return the size in bytes of closed segments that are not copied, and the age in ms of the first of them."""
        partition_log = self.partition.log
        if partition_log.tier is None or not partition_log.config.copies:
            return 0, 0
        segments = partition_log.segments
        waiting = segments[segments.index_at(max(partition_log.tier.end_offset, 0)) : -1]
        if not waiting:
            return 0, 0
        size = sum(each.size for each in waiting)
        try:
            return size, max(self._shared.clock.now_ms() - waiting[0].written_ms(), 0)
        except OSError as error:
            partition_log.report_failure(error)
            return size, 0

    def _failed(self, reason: str, least_ms: int = 0) -> None:
        settings = self._shared.settings
        self._has_more = False
        self._shared.counts.failures += 1
        if not self.error:
            log.warning("%s: remote storage fails, and is tried again: %s", self.owner, reason)
        self.error = reason
        pause_ms = max(min(settings.retry_ms * 2**self._fails, settings.longest_retry_ms), least_ms)
        self._fails = min(self._fails + 1, 30)
        self._not_before = self._shared.clock.monotonic_ms() + pause_ms

    async def _round(self) -> bool:
        """Run a round; return False if it must wait until the records about segments are known."""
        tier = self.partition.log.tier
        if tier is None or not self._is_here():
            return True
        tier.is_led = self.partition.leading
        try:
            segments = self._shared.metadata.segments(self.owner)
        except ApiError:  # the records are being loaded
            return False
        if not tier.is_led:
            await in_slices(self._follow(segments))
            return True
        await in_slices(self._learn(segments))
        if not self.partition.log.config.remote_storage_enable:
            await self._leave(segments)
            return True
        await self._remove_useless(segments)
        if self.partition.log.config.copies and await self._copy_due():
            await self._remove_useless(segments)  # retention must not count replaced copies
        await self._expire()
        return True

    def _doubts(self) -> bool:
        """Whether to wait before earlier records count as lost.

        The records about segments may come from a broker that does not know yet that it leads no more.
        """
        now_ms = self._shared.clock.monotonic_ms()
        self._doubted_from = self._doubted_from or now_ms
        return now_ms < self._doubted_from + _DOUBT_MS

    async def _follow(self, segments: RemoteSegments) -> None:
        """Learn at a follower which segments are copied. The leader determines the first offset of the remote part."""
        partition_log = self.partition.log
        tier = partition_log.tier
        assert tier is not None
        if not partition_log.config.remote_storage_enable:
            partition_log.leader_epochs.truncate_from_start(partition_log.log_start_offset)
            partition_log.tier = None
            return
        await self._restore_epochs(segments)
        end = await self._end_of_copies(segments)
        if tier.start_offset == NOWHERE and end:
            tier.start_offset = partition_log.log_start_offset  # before local retention moves the log's start
        tier.end_offset, tier.size = end, segments.size(_FINISHED)

    async def _leave(self, segments: RemoteSegments) -> None:
        """Delete all segments from remote storage, because the topic does not use remote storage any more."""
        partition_log = self.partition.log
        tier = partition_log.tier
        assert tier is not None
        tier.start_offset, tier.end_offset = NOWHERE, -1
        partition_log.leader_epochs.truncate_from_start(partition_log.log_start_offset)
        self._shared.save_log_starts()
        self.partition.poke()
        for segment in segments.all():
            if partition_log.config.remote_storage_enable:
                return  # the topic uses remote storage again: the next round reads what is left there
            await delete_segment(self._shared, self.owner, segment)
        if not partition_log.config.remote_storage_enable:
            partition_log.tier = None

    async def _learn(self, segments: RemoteSegments) -> None:
        """Set the start offset, the end offset and the size of the log's remote part."""
        partition_log = self.partition.log
        tier = partition_log.tier
        assert tier is not None
        await self._restore_epochs(segments)
        first = await self._first(segments)
        end = await self._end(segments, first)
        if end > max(tier.end_offset, 0):
            # Before a segment may be deleted from the disk, the record about its copy must survive a loss of power.
            await self._shared.sync_metadata(self._shared.metadata.place(self.owner))
        # Without remote records only the local log exists: earlier records do not reappear.
        known = partition_log.log_start_offset if tier.start_offset == NOWHERE else tier.start_offset
        if end < partition_log.log_start_offset and end and not partition_log.config.copies:
            known = partition_log.log_start_offset  # the records in between have left the disk without a copy
        tier.end_offset = end
        tier.size = segments.size(_FINISHED)
        # Leader epochs may be wrong, so also keep segments that the log's epochs do not reach.
        starts = [found.start_offset for found in (first, segments.first()) if found is not None]
        if starts or known == partition_log.log_start_offset:
            self._doubted_from = 0.0
        elif self._doubts():
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "no remote segment is known, although there were some")
        tier.start_offset = max(known, min(starts)) if starts else NOWHERE

    async def _end_of_copies(self, segments: RemoteSegments) -> int:
        return await self._end(segments, await self._first(segments))

    async def _end(self, segments: RemoteSegments, first: RemoteSegment | None) -> int:
        """Return the offset before which all segments of this log are copied. `first` is the first copied segment."""
        partition_log = self.partition.log
        if first is None or first.start_offset > partition_log.log_start_offset:
            return 0  # there are local records before the copied records
        begin = partition_log.log_start_offset
        at = await self._found_from(segments, begin)
        if at > begin:
            return at
        entries = partition_log.leader_epochs.entries
        ends = [*(start for _, start in entries[1:]), partition_log.log_end_offset]
        for (epoch, _), epoch_end in reversed([*zip(entries, ends, strict=bool(entries))]):
            last = segments.last(epoch)
            await turn
            if last is not None:
                return min(last.end_in_epoch(epoch) + 1, epoch_end, begin)
        return 0

    async def _found_from(self, segments: RemoteSegments, at: int) -> int:
        """Return the end of the copied records from an offset on.

        Local records may leave the disk only if each of them is found. A copy with other bounds can leave a gap.
        """
        entries = self.partition.log.leader_epochs.entries
        ends = [*(start for _, start in entries[1:]), self.partition.log.log_end_offset]
        for (epoch, start), epoch_end in zip(entries, ends, strict=bool(entries)):
            while start <= at < epoch_end and (found := segments.find(epoch, at)) is not None:
                at = min(found.end_in_epoch(epoch) + 1, epoch_end)
                await turn
        return at

    async def _first(self, segments: RemoteSegments) -> RemoteSegment | None:
        """Return the first readable segment with records of this log.

        After a loss of power the log may lack its copied end, and continue with another leader epoch.
        """
        partition_log = self.partition.log
        entries = partition_log.leader_epochs.entries
        ends = [*(start for _, start in entries[1:]), NOWHERE]
        for (epoch, start), end in zip(entries, ends, strict=bool(entries)):
            found = segments.first_from(epoch, start, end)
            await turn
            if found is not None:
                return found
        return None

    async def _restore_epochs(self, segments: RemoteSegments) -> None:
        """Restore the leader epochs of remote records before the local log, if the log's file of epochs was lost."""
        partition_log = self.partition.log
        first, earliest, local = segments.first(), partition_log.earliest_offset, partition_log.log_start_offset
        if first is None or first.end_offset < earliest or first.start_offset >= local:
            return
        if partition_log.leader_epochs.epoch_for_offset(max(first.start_offset, earliest)) >= 0:
            return
        starts: dict[int, int] = {}
        for segment in segments.all():
            if segment.state is _FINISHED:
                for epoch, start in segment.epochs:
                    starts[epoch] = min(start, starts.get(epoch, start))
            await turn
        partition_log.leader_epochs.prepend(sorted(each for each in starts.items() if each[1] < local))

    # -- copying

    async def _copy_due(self) -> bool:
        """Copy segments that are due; return whether a copy was made."""
        shared, partition_log = self._shared, self.partition.log
        left, is_copied = _COPIES_A_ROUND, False
        while self.is_current() and partition_log.config.copies:
            if not left:
                self._has_more = True
                break
            left -= 1
            tier, segments = partition_log.tier, partition_log.segments
            assert tier is not None
            place = segments.index_at(max(tier.end_offset, 0))
            segment = segments[place]
            end = segments.end_of(place, partition_log.log_end_offset)
            if segment is segments.active or end > partition_log.last_stable_offset or not self._is_late(place):
                break
            if end > partition_log.recovery_point:
                break  # after a loss of power, other records could get the offsets of the copied records
            if not await self._may_copy():
                break
            if not (self.is_current() and partition_log.config.copies and segments.index_of(segment) == place):
                continue
            async with shared.copies:
                begin_ms = shared.clock.monotonic_ms()
                if not await copy_segment(shared, self.owner, partition_log, segment, end):
                    break
            shared.counts.copied_bytes += segment.size
            duration_ms = segment.size * 1000 / shared.settings.copy_rate
            shared.copy_after = max(begin_ms - _CREDIT_MS, shared.copy_after) + duration_ms
            tier.start_offset = min(tier.start_offset, max(segment.base_offset, partition_log.log_start_offset))
            tier.size += segment.size
            # Behind a gap there may be copies already.
            tier.end_offset = await in_slices(self._found_from(shared.metadata.segments(self.owner), end))
            is_copied = True
        return is_copied

    async def _may_copy(self) -> bool:
        """Wait for the limit of the rate. Return False if the next round must wait for it."""
        wait_ms = self._shared.copy_after - self._shared.clock.monotonic_ms()
        if wait_ms > _SHORT_WAIT_MS:
            self._pause_ms = min(wait_ms, self._pause_ms)
            return False
        await asyncio.sleep(max(wait_ms, 0) / 1000)
        return True

    def _is_late(self, place: int) -> bool:
        """Whether a closed segment has reached the age or the lag that the topic requires before a copy (KIP-1241)."""
        partition_log = self.partition.log
        config, segments = partition_log.config, partition_log.segments
        lag_ms = config.kept_locally_ms if config.remote_copy_lag_ms < 0 else config.remote_copy_lag_ms
        lag_bytes = config.kept_locally_bytes if config.remote_copy_lag_bytes < 0 else config.remote_copy_lag_bytes
        if lag_ms >= 0 and self._shared.clock.now_ms() - segments[place].written_ms() >= lag_ms:
            return True
        if lag_bytes < 0:
            return False
        later, index = 0, len(segments) - 1
        while later < lag_bytes and index > place:  # count from the end: after a long outage, many segments wait
            later += segments[index].size
            index -= 1
        return later >= lag_bytes

    # -- deleting

    async def _remove_useless(self, segments: RemoteSegments) -> None:
        """Delete the remains of earlier copies and deletions, and replaced copies.

        No copy of this partition is in progress.
        """
        for found in await in_slices(each(segments.useless(), lambda segment: segment)):
            # A segment of several leader epochs is found several times.
            if self.is_current() and segments.get(found.id) is not None:
                await delete_segment(self._shared, self.owner, found)
        partition_log = self.partition.log
        while self.is_current() and (first := segments.first()) and first.end_offset < partition_log.earliest_offset:
            await delete_segment(self._shared, self.owner, first)

    async def _expire(self) -> None:
        """Delete the first segments while they are before the log's start, are too old, or exceed the retained size."""
        partition_log = self.partition.log
        while self.is_current():
            tier = partition_log.tier
            segments = self._shared.metadata.segments(self.owner)
            first = await in_slices(self._first(segments))
            if first is None or tier is None:
                return
            behind = self._behind(first)
            if behind > partition_log.earliest_offset:
                if not (partition_log.config.delete and self._is_expired(first, segments)):
                    return
                partition_log.advance_log_start(min(behind, partition_log.high_watermark), self._shared.clock.now_ms())
                self.partition.poke()
            await delete_segment(self._shared, self.owner, first)
            await in_slices(self._learn(self._shared.metadata.segments(self.owner)))

    def _behind(self, first: RemoteSegment) -> int:
        """Return the offset behind the records that a segment shares with this log.

        The segment may have records of a leader epoch that this log has lost.
        """
        partition_log = self.partition.log
        entries, own = partition_log.leader_epochs.entries, dict(first.epochs)
        at = max(first.start_offset, partition_log.earliest_offset)
        for (epoch, start), end in zip(entries, [*(start for _, start in entries[1:]), NOWHERE], strict=bool(entries)):
            if epoch in own and start <= at < end:
                at = max(at, min(first.end_in_epoch(epoch) + 1, end))
        return at

    def _is_expired(self, first: RemoteSegment, segments: RemoteSegments) -> bool:
        partition_log = self.partition.log
        config, tier = partition_log.config, partition_log.tier
        assert tier is not None
        if config.retention_ms >= 0 and first.max_timestamp_ms < self._shared.clock.now_ms() - config.retention_ms:
            return True
        if config.retention_bytes < 0:
            return False
        place = partition_log.segments.index_at(max(tier.end_offset, 0))
        only_here = sum(each.size for each in partition_log.segments[place:])
        return segments.size(_FINISHED) + only_here - first.size >= config.retention_bytes


async def delete_segment(shared: Shared, owner: Owner, segment: RemoteSegment) -> None:
    """Delete a segment that no client may read any more. Raises StoreError and ApiError; a later round then retries."""
    started, finished = SegmentState.DELETE_SEGMENT_STARTED, SegmentState.DELETE_SEGMENT_FINISHED
    if segment.state is not started and not await shared.metadata.decide(
        owner, lambda shard, now: shard.advance(owner, segment, started, now)
    ):
        return  # the segment has another state by now
    # Without this sync, a loss of power could restore the segment's record without its object.
    await shared.sync_metadata(shared.metadata.place(owner))
    passed("tiers.deletion_announced")
    async with shared.deletions:
        await shared.store.delete(object_name(shared, owner, segment), deadline_s=shared.deadline_s)
    passed("tiers.deleted")
    begun = replace(segment, state=started)
    await shared.metadata.decide(owner, lambda shard, now: shard.advance(owner, begun, finished, now))
    shared.counts.deleted += 1


def object_name(shared: Shared, owner: Owner, segment: RemoteSegment) -> str:
    """Return the name of a segment's object."""
    return ObjectName(owner.topic_id, owner.partition, segment.start_offset, segment.id).text(shared.prefix)
