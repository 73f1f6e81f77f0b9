"""The log of one partition (Kafka's UnifiedLog).

Owns its appends, as a leader and as a follower, the roll to a new segment, its reads, retention and deletion. Its
state, flush and truncation are in log_state.py. An append, a truncation or a deletion changes the segments, the
producers and the leader epochs, or none of them. Each of these owns its own state (log_segments.py, producers/,
leader_epochs.py), and queries over them have their own modules (timestamp_search.py, aborted_transactions.py). Never
checks a batch itself (append_validation.py, record_validation.py), never waits, and never knows the caller.

    <topic>-<partition>/   segments (segment/), *.snapshot (producers/producer_snapshots.py),
                           leader-epoch-checkpoint and partition.metadata (checkpoints.py)
"""

from __future__ import annotations

import logging
import struct
from bisect import bisect_right
from functools import partial

from kbroker.failpoints import passed
from kbroker.log.aborted_transactions import AbortedTransactions
from kbroker.log.append_info import CLIENT, COORDINATOR, AppendError, AppendInfo, AppendOrigin
from kbroker.log.append_validation import (
    beyond_segment,
    check_header,
    check_own,
    check_replicated,
    needs_other_codec,
    needs_walk,
    stamp,
    trim,
)
from kbroker.log.checks_at_first_read import batch_at, is_whole_from, proven_size
from kbroker.log.leader_epochs import LeaderEpochCache
from kbroker.log.log_segments import LogExtent
from kbroker.log.log_slice import EMPTY_SLICE, LogSlice
from kbroker.log.log_state import AT_ONCE, LogState
from kbroker.log.producers.producer_rebuild import aborted_entry
from kbroker.log.producers.producer_state import UNCHECKED, CompletedTxn, ProducerEntry, SnapshotTaking
from kbroker.log.record_check import NO_CHECKS, RecordChecks
from kbroker.log.record_validation import Opened, TakesLonger, is_in_order, open_and_judge, open_at_once, open_batch
from kbroker.log.segment.segment import Segment
from kbroker.log.segment.transaction_index import AbortedTxn
from kbroker.log.segment_swap import announce_swap, complete_swap
from kbroker.long_work import turn, whole
from kbroker.protocol.errors import ApiError, ErrorCode, Malformed
from kbroker.protocol.records import CONTROL_BIT, LOG_OVERHEAD, BatchHeader, parse_header, read_marker

_put_prefix = struct.Struct(">qii").pack_into
_prefix = struct.Struct(">qii").pack
_LATEST_PRODUCE = 13
_HELD_COUNTED = 128
"""Of the segments that are kept only because of pending records, at most this number are counted."""
FEW_PRODUCERS = 500
"""The maximum number of producers in a snapshot that a roll writes immediately. The write takes half a millisecond."""

logger = logging.getLogger(__name__)


class PartitionLog(LogState):
    """One partition's complete log; offsets are absolute, `size` in bytes, times in ms."""

    __slots__ = ()

    # -- appending --------------------------------------------------------------------------------------------

    def append_as_leader(
        self,
        records: memoryview | bytes | bytearray,
        leader_epoch: int,
        now_ms: int,
        *,
        origin: AppendOrigin = CLIENT,
        request_version: int = _LATEST_PRODUCE,
        transaction_version: int = 0,
        guard: object = UNCHECKED,
        opened: Opened | None = None,
        patient: bool = True,
        checks: RecordChecks = NO_CHECKS,
    ) -> AppendInfo:
        """Append one batch at the next offsets; if it raises AppendError, nothing has changed.

        If the buffer is writable, the base offset and the leader epoch are written to it. `transaction_version` applies
        to the markers that end a transaction; `guard` (producer_state.py) applies to the batches that open a
        transaction.

        If the check of the records takes too long for one step, and the caller is not `patient`, this raises
        TakesLonger with the remaining work. The caller does that work and calls again with the result as `opened`,
        which is valid unless the topic's settings have changed. `checks` are used if the topic requires a check of its
        own. If this check has no immediate result, TakesLonger is also raised.
        """
        if self._trouble.refusal is not None:
            raise AppendError(ErrorCode.KAFKA_STORAGE_ERROR, detail=self._trouble.refusal)
        if self.is_unmarked and origin is CLIENT:
            raise AppendError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        rules = self._rules
        batch = memoryview(records)
        if opened is not None and opened.rules is rules and opened.is_judged >= rules.judges_records:
            batch, walks = opened.batch, False
            header = parse_header(batch)
        elif origin is COORDINATOR:
            header = check_own(batch, rules)
            walks = needs_other_codec(header, rules)
        else:
            header = check_header(batch, rules, origin, request_version)
            if header[1] + LOG_OVERHEAD != len(batch):
                batch = trim(batch)
            walks = rules.checks_records or needs_walk(header, rules, now_ms)
            if rules.judges_records and origin is CLIENT:
                check = checks.under(self.config)
                if not (check.is_quick and is_in_order(batch, header, rules, now_ms, check)):
                    raise TakesLonger(open_and_judge(batch, header, rules, now_ms, check))
                walks = False
            walks = walks and not is_in_order(batch, header, rules, now_ms)
        if walks:
            if patient:
                opened = whole(open_batch(batch, header, rules, now_ms, origin))
            else:
                opened = open_at_once(batch, header, rules, now_ms, origin)
            batch = opened.batch
            header = parse_header(batch)
        if rules.log_append_time and not header[5] & CONTROL_BIT:
            batch = stamp(batch, header, now_ms)
            header = parse_header(batch)
        size = len(batch)
        if size > rules.segment_bytes:
            raise beyond_segment(size, rules)
        if header[9] >= 0:
            return self._append_of_producer(batch, header, leader_epoch, now_ms, origin, transaction_version, guard)
        return self._write(batch, header, leader_epoch, now_ms, None)

    def _append_of_producer(
        self,
        batch: memoryview,
        header: BatchHeader,
        leader_epoch: int,
        now_ms: int,
        origin: AppendOrigin,
        transaction_version: int,
        guard: object,
    ) -> AppendInfo:
        producers, offset = self.producers, self.log_end_offset
        if not header[5] & CONTROL_BIT:
            repeated = producers.check_batch(header, origin, guard)
            if repeated is not None:
                first, last = repeated.first_offset, repeated.last_offset
                return AppendInfo(first, last, repeated.timestamp, self.earliest_offset, True)
            info = self._write(batch, header, leader_epoch, now_ms, None)
            producers.apply_batch(header, offset)
            return info
        try:
            marker = read_marker(batch)
        except Malformed as error:
            raise AppendError(ErrorCode.INVALID_RECORD, detail=str(error)) from error
        if marker is None:
            return self._write(batch, header, leader_epoch, now_ms, None)
        producers.check_marker(header, marker, origin, transaction_version)
        completed = producers.preview_marker(header, marker, offset)
        info = self._write(batch, header, leader_epoch, now_ms, completed)
        producers.apply_marker(header, marker, offset)
        return info

    def _write(
        self, batch: memoryview, header: BatchHeader, leader_epoch: int, now_ms: int, completed: CompletedTxn | None
    ) -> AppendInfo:
        offset = self.log_end_offset
        last_offset = offset + header[6]
        size = len(batch)
        config = self.config
        segment = self.segments.active
        try:
            if leader_epoch != self.leader_epochs.written:
                self.leader_epochs.assign(leader_epoch, offset, sync=False)
            if segment.should_roll(size, last_offset, header[8], now_ms, config.segment_bytes, self._rules.segment_ms):
                segment = self._roll(now_ms)
            if completed is not None and completed.aborted:
                # Write the entry before the marker itself: an entry without a marker is removed later, but a marker
                # without an entry would never get an entry.
                segment.txns.append(aborted_entry(completed, self.producers))
            if batch.readonly:
                buffers = (_prefix(offset, header[1], leader_epoch), batch[16:])
                segment.append(buffers, size, last_offset, header[8])
            else:
                _put_prefix(batch, 0, offset, header[1], leader_epoch)
                segment.append((batch,), size, last_offset, header[8])
        except OSError as error:
            raise self._append_failed(error, completed, now_ms) from error
        self.log_end_offset = last_offset + 1
        if last_offset + 1 - self.recovery_point >= config.flush_messages:
            self.flush(now_ms, snapshots=False)
        start = self.log_start_offset if self.tier is None else self.earliest_offset
        return AppendInfo(offset, last_offset, now_ms if self._rules.log_append_time else -1, start)

    def append_as_follower(self, batch: memoryview, now_ms: int) -> None:
        """Append a batch from the leader, byte for byte; if it raises AppendError, nothing has changed.

        The batch keeps the leader's offset and epoch; there may be holes, as in a compacted log. If an empty log starts
        within the batch, the complete batch is appended (Kafka: ReplicaManager's UnexpectedAppendOffset). The records
        before the log start stay hidden, as in the leader's log.
        """
        if self._rebuilding is not None:
            self.finish_truncation()
        if self._trouble.refusal is not None:
            raise AppendError(ErrorCode.KAFKA_STORAGE_ERROR, detail=self._trouble.refusal)
        header = check_replicated(batch, self.leader_epochs.latest)
        start, end = self.log_start_offset, self.log_end_offset
        if header.base_offset >= end:
            self._append_as_is(batch, header, now_ms)
        elif start == end <= header.last_offset:
            self.truncate_fully(header.base_offset, now_ms)
            try:
                self._append_as_is(batch, header, now_ms)
            except AppendError:
                self.truncate_fully(start, now_ms)
                raise
            self.log_start_offset = start
            self.high_watermark = max(self.high_watermark, start)
            self.leader_epochs.truncate_from_start(start)
        else:
            detail = f"a batch of the leader's begins at {header.base_offset}, the log ends at {end}"
            raise AppendError(ErrorCode.CORRUPT_MESSAGE, detail=detail)

    def _append_as_is(self, batch: memoryview, header: BatchHeader, now_ms: int) -> None:
        offset, producers, marker, completed = header.base_offset, self.producers, None, None
        if header.producer_id >= 0 and header.is_control:
            try:
                marker = read_marker(batch)
            except Malformed as error:
                raise AppendError(ErrorCode.CORRUPT_MESSAGE, detail=str(error)) from error
            if marker is not None:
                completed = producers.preview_marker(header, marker, offset)
        config, segment, last_offset = self.config, self.segments.active, header.last_offset
        try:
            if offset > self.log_end_offset and not self.may_have_holes:
                self._on_holes()
                self.may_have_holes = True
            if header.leader_epoch != self.leader_epochs.written:
                self.leader_epochs.assign(header.leader_epoch, offset, sync=False)
            age_ms = self._rules.segment_ms
            if segment.should_roll(
                header.size, last_offset, header.max_timestamp, now_ms, config.segment_bytes, age_ms
            ):
                segment = self._roll(now_ms)
            if completed is not None and completed.aborted:
                # the entry is written before the marker, as in `_write`
                segment.txns.append(aborted_entry(completed, producers))
            segment.append((batch,), header.size, last_offset, header.max_timestamp)
        except OSError as error:
            raise self._append_failed(error, completed, now_ms) from error
        self.log_end_offset = last_offset + 1
        if marker is not None:
            producers.apply_marker(header, marker, offset)
        elif header.producer_id >= 0 and not header.is_control:
            producers.apply_batch(header, offset)
        if last_offset + 1 - self.recovery_point >= config.flush_messages:
            self.flush(now_ms, snapshots=False)

    def _append_failed(self, error: OSError, completed: CompletedTxn | None, now_ms: int) -> AppendError:
        if completed is not None and completed.aborted:
            try:
                self.segments.active.txns.truncate_to(self.log_end_offset)
            except OSError as second:
                self.refuse_appends(f"the transaction index could not be cut back after: {second}")
        self._trouble.append_failed(error, now_ms)
        return AppendError(ErrorCode.KAFKA_STORAGE_ERROR, detail=str(error))

    def roll(self, now_ms: int) -> None:
        """If the last segment is not empty, start a new segment at the end of the log. Raises OSError."""
        if self.segments.active.size:
            self._roll(now_ms)

    def _roll(self, now_ms: int) -> Segment:
        self.finish_truncation()
        old, offset = self.segments.active, self.log_end_offset
        if old.base_offset == offset:
            # The active segment is empty and has the right base offset: only its age is reset, and its files are
            # created again.
            old.start_again(now_ms)
            return old
        segment = self.segments.add(offset, self.config, now_ms)
        passed("roll.created")
        try:
            old.seal()
            passed("roll.sealed")
            if len(self.producers.entries) <= FEW_PRODUCERS:
                self._take_snapshot(sync=False)
            elif self.producers.taking is None:  # otherwise the next snapshot includes this roll
                self._later(partial(self._snapshot_in_pieces, self.producers.begin_snapshot(offset)))
        except OSError as error:
            # Sealing and the snapshot only save time later: indexes are checked, and the log contains the data of the
            # snapshot.
            logger.warning("%s-%d: rolling at %d: %s", self.topic, self.partition, offset, error)
        return segment

    async def _snapshot_in_pieces(self, taking: SnapshotTaking) -> None:
        producers, taken = self.producers, False
        try:
            taken = await self._snapshots.take_in_pieces(taking, lambda: producers.taking is taking)
        except OSError as error:
            logger.warning("%s-%d: snapshot of the producers: %s", self.topic, self.partition, error)
        finally:
            producers.end_snapshot(taking)
        if taken:
            self.segments.directory_changed = True  # the next flush must make the snapshot's name durable
            if taking.offset not in self.segments.bases:
                self._snapshots.outlive(taking.offset)
            if taking.offset < self.segments.active.base_offset:  # later rolls took no snapshot
                self._later(partial(self._snapshot_in_pieces, producers.begin_snapshot(self.log_end_offset)))

    def _take_snapshot(self, *, sync: bool) -> None:
        self._snapshots.take(self.producers.entries.values(), self.log_end_offset, sync=sync)

    # -- reading ----------------------------------------------------------------------------------------------

    def extent(self) -> LogExtent:
        """Return the facts that readers of the segments need in addition to the files."""
        return LogExtent(self.log_start_offset, self.log_end_offset, self.leader_epochs.latest, self.may_have_holes)

    def read(self, fetch_offset: int, max_bytes: int, upper_bound: int, *, min_one: bool) -> LogSlice:
        """Return the batches from the batch with `fetch_offset` up to the last batch that ends before `upper_bound`.

        The result has at most `max_bytes`, and its last batch may be cut off. With `min_one` the result always contains
        the first batch. Without `min_one` it is empty if the first batch is larger. Raises ApiError:
        OFFSET_OUT_OF_RANGE, OFFSET_MOVED_TO_TIERED_STORAGE, or CORRUPT_MESSAGE if the file is damaged there. For the
        latest batches, which this process has written itself, only the header of the first returned batch is checked.
        """
        if not self.log_start_offset <= fetch_offset <= self.log_end_offset:
            is_remote = self.earliest_offset <= fetch_offset < self.log_start_offset
            raise ApiError(ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE if is_remote else ErrorCode.OFFSET_OUT_OF_RANGE)
        if fetch_offset >= upper_bound:
            return EMPTY_SLICE
        segments = self.segments.items
        for index in range(max(bisect_right(self.segments.bases, fetch_offset) - 1, 0), len(segments)):
            segment = segments[index]
            found = segment.find(fetch_offset)
            if found is None:
                if not is_whole_from(self.segments, self.extent(), index, fetch_offset):
                    raise ApiError(ErrorCode.CORRUPT_MESSAGE)  # otherwise the reader would skip unreadable data
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
        if not isinstance(segment, Segment):
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
        return [(txn.producer_id, txn.first_offset) for txn in self._aborted().overlapping(start_offset, end_offset)]

    async def aborted_entries(self, start_offset: int, end_offset: int) -> list[AbortedTxn]:
        """Return the aborted transactions that overlap [start, end), with their markers' offsets. Raises OSError."""
        return await self._aborted().overlapping_in_pieces(start_offset, end_offset)

    def abort_markers(self, start_offset: int, end_offset: int) -> list[int]:
        """Return the offsets of the markers of aborted transactions in [start, end), in order."""
        return self._aborted().markers(start_offset, end_offset)

    async def aborted_before(self, offset: int) -> list[AbortedTxn]:
        """Return the aborted transactions that began before `offset`.

        The result is invalid if segments were removed meanwhile.
        """
        return await self._aborted().begun_before(offset)

    def _aborted(self) -> AbortedTransactions:
        return AbortedTransactions(self.segments, self.extent(), self._snapshots)

    async def find_timestamp(self, timestamp: int) -> tuple[int, int, int] | None:
        """Return (offset, timestamp, leader epoch) of the first record with a timestamp of at least `timestamp` ms."""
        return await self._times.first_at(timestamp, self.extent)

    async def find_max_timestamp(self) -> tuple[int, int, int] | None:
        """Return (offset, timestamp, leader epoch) of the first record with the largest timestamp."""
        return await self._times.largest(self.extent)

    def timestamp_before(self, offset: int) -> int:
        """Return the largest timestamp in ms of the last batch before an offset; -1 if there is none."""
        found = batch_at(self.segments, self.extent(), offset - 1) if offset > self.log_start_offset else None
        return -1 if found is None else found[2].max_timestamp

    def proven_epochs(self) -> LeaderEpochCache:
        """Compare the leader epochs with the batches, and return them. Raises OSError."""
        if not self.leader_epochs.proven:
            self.leader_epochs.prove(self.segments, self.extent())
        return self.leader_epochs

    # -- offsets ----------------------------------------------------------------------------------------------

    def advance_log_start(self, offset: int, now_ms: int = 0) -> bool:
        """Delete the records before `offset`; return whether anything changed. Raises ApiError (OFFSET_OUT_OF_RANGE).

        If there are many segments, this call deletes only the first few. The next `delete_below_start` deletes the
        other segments.
        """
        if offset > self.high_watermark:
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
        if offset <= self.earliest_offset:
            return False
        if self.tier is not None:
            self.tier.start_offset = offset
        if offset <= self.log_start_offset:
            self.leader_epochs.truncate_from_start(offset)
            return True  # its segments are in remote storage
        self.log_start_offset = offset
        self.leader_epochs.truncate_from_start(offset)
        self.producers.on_high_watermark(offset)
        self._delete_some_below_start(now_ms)
        return True

    # -- housekeeping -----------------------------------------------------------------------------------------

    async def delete_old_segments(self, now_ms: int) -> int:
        """Apply retention by start offset, size and time, in pieces; return the number of deleted segments.

        Segments with records that consumers cannot read yet are kept.
        """
        deleted = await self.delete_below_start(now_ms)
        readable_end = await self.readable_end(now_ms)
        held = 0
        if self.config.copies and min(readable_end, self.high_watermark) >= self.log_end_offset:
            self._close_active_if_due(now_ms)
        for count_due in (self._beyond_size, self._too_old):
            due = AT_ONCE
            while due == AT_ONCE and (self.config.delete or self.config.copies):
                limit = min(readable_end, self.high_watermark)
                if self.kept_from is not None:
                    held = max(held, count_due(limit, now_ms, _HELD_COUNTED))
                    limit = min(limit, self.kept_from)
                limit = min(limit, self._deletable_end())
                due = count_due(limit, now_ms, AT_ONCE)
                removed = self._delete_first(due, now_ms)
                deleted += removed
                await turn
                if not removed:
                    break  # for now
        self._note_held(max(held - deleted, 0))
        return deleted

    def _deletable_end(self) -> int:
        """Return the offset before which the state of remote storage allows the deletion of local segments."""
        config, tier = self.config, self.tier
        if config.copies:
            return 0 if tier is None else tier.end_offset
        # The end of the copied segments in remote storage must be known: readers must not continue after a gap.
        is_unknown = config.remote_storage_enable and tier is not None and tier.end_offset < 0
        return 0 if is_unknown else self.log_end_offset

    def _close_active_if_due(self, now_ms: int) -> None:
        """Close the last segment if it may leave the disk: only closed segments are copied. Raises OSError."""
        config, active = self.config, self.segments.active
        is_old = config.kept_locally_ms >= 0 and active.size and active.written_ms() < now_ms - config.kept_locally_ms
        if is_old or (config.kept_locally_bytes == 0 and active.size):
            self.roll(now_ms)

    def _beyond_size(self, limit: int, _now_ms: int, most: int) -> int:
        """Return the number of segments, among the first `most`, that exceed the size to keep on the local disk."""
        config = self.config
        kept = config.kept_locally_bytes if config.remote_storage_enable else config.retention_bytes
        return self.segments.beyond_size(kept, self.log_end_offset, limit, most)

    def _too_old(self, limit: int, now_ms: int, most: int) -> int:
        """Return how many of the first `most` segments are too old to stay on the local disk. Raises OSError."""
        config = self.config
        kept_ms = config.kept_locally_ms if config.remote_storage_enable else config.retention_ms
        return self.segments.too_old(now_ms - kept_ms, self.log_end_offset, limit, most) if kept_ms >= 0 else 0

    def _note_held(self, segments: int) -> None:
        """Note the number of bytes in the first segments that retention keeps only because of pending records."""
        before, self.held_bytes = self.held_bytes, sum(segment.size for segment in self.segments[:segments])
        if self.held_bytes and not before:
            text = "%s-%d: retention keeps %d bytes, because records from offset %s on wait for their time"
            logger.warning(text, self.topic, self.partition, self.held_bytes, self.kept_from)

    def _delete_first(self, count: int, now_ms: int) -> int:
        if not count:
            return 0
        if count == len(self.segments):
            self.roll(now_ms)
        # Move the log start first, so that a reader at a removed offset gets OFFSET_OUT_OF_RANGE instead of an error
        # about a missing segment.
        self.log_start_offset = max(self.log_start_offset, self.segments.bases[count])
        if self.tier is not None and self.tier.is_led and self.log_start_offset > self.tier.end_offset:
            self.tier.start_offset = max(self.tier.start_offset, self.log_start_offset)  # nothing was copied meanwhile
        self.leader_epochs.truncate_from_start(self.earliest_offset)
        return self._delete_some_below_start(now_ms)

    async def delete_below_start(self, now_ms: int) -> int:
        """Delete segments that end before the log's start, in pieces; return the number of deleted segments."""
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
            # Until the newest snapshot is on disk, a start needs the log to replay the producers' changes since the
            # previous snapshot.
            below = min(below, self.segments.index_at(self._snapshots.newest_synced))
        if not below:
            return 0
        removed = self.segments.remove_first(min(below, AT_ONCE), self.config, now_ms)
        snapshots = self._snapshots.forget_with_segments([segment.base_offset for segment in removed])
        if snapshots:
            self.segments.deleted_files.add_garbage(snapshots)
        is_uncovered = self.producers.entries and self._snapshots.newest_offset < self.segments.bases[0]
        if is_uncovered and self.producers.taking is None:
            # The snapshot of an earlier roll has failed, and the log does not contain that snapshot's producers any
            # more.
            self._later(partial(self._snapshot_in_pieces, self.producers.begin_snapshot(self.log_end_offset)))
        return len(removed)

    def replace_segments(self, old: list[Segment], now_ms: int) -> None:
        """Replace the neighbouring segments `old` by the `.cleaned` segment with the first base offset. Raises OSError.

        If the first step (segment_swap.py) fails, nothing has changed. If a later step fails, the log refuses all
        appends, and the next start examines the disk.
        """
        paths = announce_swap(self.directory, old[0].base_offset)
        try:
            marked = complete_swap(paths, old)
            self.segments.replace(old, [files for files, _ in marked], self.config, now_ms)
            snapshots = [self._snapshots.forget(segment.base_offset) for segment in old[1:]]
        except OSError as error:
            self.refuse_appends(f"compacted segments could not be swapped in: {error}")
            raise
        # The new segment's indexes have already replaced the indexes of the first old segment.
        garbage = [path for _, indexes in marked[1:] for path in indexes]
        self.segments.deleted_files.add_garbage(garbage + snapshots)

    def take_deleted(self, now_ms: int, most: int) -> list[str]:
        """Return the files of at most `most` due deleted segments; the caller must remove the files now."""
        return self.segments.deleted_files.take(self.config, now_ms, most)

    def active_producers(self) -> list[ProducerEntry]:
        return list(self.producers.entries.values())

    def expire_producers(self, now_ms: int, expiration_ms: int) -> int:
        """Remove producers that have sent no batch for this time; return the number of removed producers."""
        return whole(self.producers.expire(now_ms, expiration_ms))

    def move(self, directory: str) -> None:
        self.directory = directory
        self.leader_epochs.move(directory)
        self._snapshots.move(directory)
        self.segments.move(directory)

    def close(self, *, clean: bool = True) -> None:
        """Close the files; a clean close also flushes, writes a producer snapshot and completes the indexes.

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
