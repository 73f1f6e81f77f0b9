"""The log of one partition (Kafka's UnifiedLog).

Owns its reads, retention and deletion. Its parts and its flush are in log_state.py; truncation.py truncates it and
appending.py appends to it. An append, a truncation or a deletion changes all or none of segments, producers and leader
epochs. Each of these owns its own state (log_segments.py, producers/, leader_epochs.py), and queries over them have
their own modules (timestamp_search.py, aborted_transactions.py, retention.py). Never waits, and never knows the caller.

    <topic>-<partition>/   segments (segment/), *.snapshot (producers/producer_snapshots.py),
                           leader-epoch-checkpoint and partition.metadata (checkpoints.py)
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from functools import partial

from kbroker.log import retention
from kbroker.log.aborted_transactions import AbortedTransactions
from kbroker.log.appending import FEW_PRODUCERS, AppendableLog
from kbroker.log.checks_at_first_read import is_whole_from, proven_size
from kbroker.log.files import remove_quietly
from kbroker.log.leader_epochs import LeaderEpochCache
from kbroker.log.log_segments import LogExtent
from kbroker.log.log_slice import EMPTY_SLICE, LogSlice
from kbroker.log.producers.producer_state import ProducerEntry
from kbroker.log.segment.segment import Segment
from kbroker.log.segment.transaction_index import AbortedTxn
from kbroker.log.truncation import AT_ONCE
from kbroker.long_work import turn, whole
from kbroker.protocol.errors import ApiError, ErrorCode


class PartitionLog(AppendableLog):
    """One partition's complete log; offsets are absolute, `size` in bytes, times in ms."""

    __slots__ = ()

    # -- reading ----------------------------------------------------------------------------------------------

    def extent(self) -> LogExtent:
        """Return the facts that readers of the segments need besides the files."""
        return LogExtent(self.log_start_offset, self.log_end_offset, self.leader_epochs.latest, self.may_have_holes)

    def read(self, fetch_offset: int, max_bytes: int, upper_bound: int, *, min_one: bool) -> LogSlice:
        """Return batches from the one that contains `fetch_offset` on, without any that reaches `upper_bound`.

        The result has at most `max_bytes`, and its last batch may be cut off. It is empty if the first batch is larger,
        unless `min_one` is set, which always allows the first batch. Raises ApiError(OFFSET_OUT_OF_RANGE), or
        CORRUPT_MESSAGE if the file is damaged there: of the latest batches written by this process, the first one's
        header is checked.
        """
        if not self.log_start_offset <= fetch_offset <= self.log_end_offset:
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
        if fetch_offset >= upper_bound:
            return EMPTY_SLICE
        segments = self.segments.items
        for index in range(max(bisect_right(self.segments.bases, fetch_offset) - 1, 0), len(segments)):
            segment = segments[index]
            found = segment.find(fetch_offset)
            if found is None:
                if not is_whole_from(self.segments, self.extent(), index, fetch_offset):
                    raise ApiError(ErrorCode.CORRUPT_MESSAGE)  # or the reader would skip data that it cannot see
                continue
            position, first_size = found
            if fetch_offset >= segment.tail_start and not segment.shows(position, first_size, fetch_offset):
                raise ApiError(ErrorCode.CORRUPT_MESSAGE)
            limit = max(max_bytes, first_size) if min_one else max_bytes
            if limit < first_size:
                return EMPTY_SLICE
            known = upper_bound >= self.log_end_offset
            end = segment.size if known else self.segments.end_position(index, upper_bound)
            wanted = min(end - position, limit)
            if segment.found.unproven and fetch_offset < segment.tail_start:
                limit = proven_size(self.segments, self.extent(), index, fetch_offset, position, limit)
            size = min(wanted, limit)
            if size <= 0:
                return EMPTY_SLICE
            return LogSlice(segment, position, size, fetch_offset, upper_bound, size < wanted)
        return EMPTY_SLICE

    def aborted_in(self, piece: LogSlice) -> list[tuple[int, int]]:
        """Return (producer id, first offset) of aborted transactions with records in a slice that was just read."""
        segment, end = piece.segment, piece.end_offset
        if segment is None:
            return []
        index = self.segments.index_of(segment)
        if index >= 0:
            if next(self.segments.aborting_from(index), None) is None:
                return []
            beyond = segment.offset_beyond(piece.position + piece.size)
            end = min(end, beyond, self.segments.end_of(index, end))
        return self.aborted_transactions(piece.start_offset, end)

    def aborted_transactions(self, start_offset: int, end_offset: int) -> list[tuple[int, int]]:
        """Return (producer id, first offset) of aborted transactions that overlap [start, end)."""
        return self._aborted().overlapping(start_offset, end_offset)

    async def aborted_before(self, offset: int) -> list[AbortedTxn]:
        """Return the aborted transactions that began before `offset`; void if segments were removed meanwhile."""
        return await self._aborted().begun_before(offset)

    def _aborted(self) -> AbortedTransactions:
        return AbortedTransactions(self.segments, self.extent(), self._snapshots)

    async def find_timestamp(self, timestamp: int) -> tuple[int, int, int] | None:
        """Return (offset, timestamp, leader epoch) of the first record at or after `timestamp` in ms."""
        return await self._times.first_at(timestamp, self.extent)

    async def find_max_timestamp(self) -> tuple[int, int, int] | None:
        """Return (offset, timestamp, leader epoch) of the first record with the largest timestamp."""
        return await self._times.largest(self.extent)

    def offset_for_timestamp(self, timestamp: int) -> tuple[int, int, int] | None:
        """Run `find_timestamp` to its end at once."""
        return whole(self.find_timestamp(timestamp))

    def max_timestamp_offset(self) -> tuple[int, int, int] | None:
        """Run `find_max_timestamp` to its end at once."""
        return whole(self.find_max_timestamp())

    def proven_epochs(self) -> LeaderEpochCache:
        """Return the leader epochs after comparing them with the batches; raises OSError."""
        if not self.leader_epochs.proven:
            self.leader_epochs.prove(self.segments, self.extent())
        return self.leader_epochs

    # -- offsets ----------------------------------------------------------------------------------------------

    def advance_log_start(self, offset: int, now_ms: int = 0) -> bool:
        """Delete the records below `offset`; False if that changes nothing. Raises ApiError(OFFSET_OUT_OF_RANGE).

        Of many segments only the first few are deleted at once, the others with the next `delete_below_start`.
        """
        if offset > self.high_watermark:
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
        if offset <= self.log_start_offset:
            return False
        self.log_start_offset = offset
        self.leader_epochs.truncate_from_start(offset)
        self.producers.on_high_watermark(offset)
        self._delete_some_below_start(now_ms)
        return True

    # -- housekeeping -----------------------------------------------------------------------------------------

    def delete_old_segments(self, now_ms: int) -> int:
        """Apply retention by start offset, size and time; returns the number of deleted segments.

        Nothing >= HW is touched.
        """
        return whole(self.delete_what_is_due(now_ms))

    async def delete_what_is_due(self, now_ms: int) -> int:
        """Do the same as `delete_old_segments`, in pieces."""
        deleted = await self.delete_below_start(now_ms)
        for count_due in (retention.beyond_size, retention.too_old):
            due = AT_ONCE
            while due == AT_ONCE and self.config.delete:
                due = count_due(self.segments, self.config, self.log_end_offset, self.high_watermark, now_ms, AT_ONCE)
                gone = self._delete_first(due, now_ms)
                deleted += gone
                await turn
                if not gone:
                    break  # for now
        return deleted

    def _delete_first(self, count: int, now_ms: int) -> int:
        if not count:
            return 0
        if count == len(self.segments):
            self.roll(now_ms)
        # The log start moves first, so that a reader below it gets that error, not a missing segment.
        self.log_start_offset = max(self.log_start_offset, self.segments.bases[count])
        self.leader_epochs.truncate_from_start(self.log_start_offset)
        return self._delete_some_below_start(now_ms)

    async def delete_below_start(self, now_ms: int) -> int:
        """Delete segments that lie wholly below the log's start, in pieces; returns how many."""
        deleted = 0
        while some := self._delete_some_below_start(now_ms):
            deleted += some
            await turn
        return deleted

    def _delete_some_below_start(self, now_ms: int) -> int:
        if self._rebuilding is not None:
            return 0  # for now
        below = self.segments.index_at(self.log_start_offset)
        if len(self.producers.entries) > FEW_PRODUCERS and (
            self.producers.taking is not None or self._snapshots.newest_offset in self._snapshots.unsynced
        ):
            # Until that is on disk, a start needs the log for the changes of producers since the previous snapshot.
            below = min(below, self.segments.index_at(self._snapshots.newest_synced))
        if not below:
            return 0
        gone = self.segments.remove_first(min(below, AT_ONCE), self.config, now_ms)
        snapshots = self._snapshots.forget_with_segments([segment.base_offset for segment in gone])
        if snapshots:
            self.segments.doomed.add_garbage(snapshots)
        untold = self.producers.entries and self._snapshots.newest_offset < self.segments.bases[0]
        if untold and self.producers.taking is None:
            # The snapshot due there has failed, and now the log does not contain its producers either.
            self._later(partial(self._snapshot_in_pieces, self.producers.begin_snapshot(self.log_end_offset)))
        return len(gone)

    def exchange_segments(self, old: list[Segment], doomed: list[list[str]], garbage: list[str], now_ms: int) -> None:
        """Replace `old` by compacted files, as Segments.replace does; raises OSError.

        `garbage` are files of theirs that nobody needs.
        """
        self.segments.replace(old, doomed, self.config, now_ms)
        snapshots = [self._snapshots.forget(segment.base_offset) for segment in old[1:]]
        self.segments.doomed.add_garbage(garbage + snapshots)

    def take_doomed(self, now_ms: int, most: int) -> list[str]:
        """Return the files of at most `most` deleted segments that are due, for the caller to remove now."""
        return self.segments.doomed.take(self.config, now_ms, most)

    def purge_deleted(self, now_ms: int) -> int:
        """Remove the due files of deleted segments; returns their number."""
        paths = self.take_doomed(now_ms, sys.maxsize)
        for path in paths:
            remove_quietly(path)
        return len(paths)

    def active_producers(self) -> list[ProducerEntry]:
        return list(self.producers.entries.values())

    def expire_producers(self, now_ms: int, expiration_ms: int) -> int:
        """Drop producers that have been silent for this long; returns their number."""
        return whole(self.producers.expire(now_ms, expiration_ms))

    def release_idle(self, *, force: bool = False) -> None:
        self.segments.release_idle(force=force)

    def move(self, directory: str) -> None:
        self.directory = directory
        self.leader_epochs.move(directory)
        self._snapshots.move(directory)
        self.segments.move(directory)

    def close(self, *, clean: bool = True) -> None:
        """Close the files; a clean close also flushes, snapshots the producers and completes the indexes.

        The files are closed even if this raises OSError or AppendError.
        """
        self.producers.taking = None
        try:
            if clean:
                self.finish_truncation()
            if clean and not self.failed:
                self._take_snapshot(sync=True)
                self.segments.seal_active()
                self.flush()
        finally:
            if self._rebuilding is not None:
                self._rebuilding.close()
                self._rebuilding = None
            self.segments.release()
