"""The log of one partition (Kafka's UnifiedLog).

Owns its offsets, and keeps segments, producers and leader epochs true to them: an append, a truncation or a deletion
changes all or none of them. Each of these owns its own state (log_segments.py, producers/, leader_epochs.py), and what
is only asked of them is beside it (timestamp_search.py, aborted_transactions.py, retention.py). Never waits, never
knows who asks, and never moves the high watermark of itself.

    <topic>-<partition>/   segments (segment/), *.snapshot (producers/producer_snapshots.py),
                           leader-epoch-checkpoint and partition.metadata (checkpoints.py)

log_start_offset <= last_stable_offset <= high_watermark <= log_end_offset, at all times.
"""

from __future__ import annotations

import errno
import logging
import struct
import sys
import uuid
from bisect import bisect_right
from collections.abc import Callable
from itertools import chain

from kbroker.divided import Divided, whole
from kbroker.failpoints import passed
from kbroker.log import checkpoints, retention
from kbroker.log.aborted_transactions import AbortedTransactions
from kbroker.log.append_info import CLIENT, COORDINATOR, AppendError, AppendInfo, AppendOrigin
from kbroker.log.append_validation import (
    BatchRules,
    check_header,
    check_own,
    check_replicated,
    needs_other_codec,
    needs_walk,
    stamp,
    trim,
)
from kbroker.log.checks_at_first_read import is_whole_from, proven_size
from kbroker.log.disk_errors import DiskTrouble
from kbroker.log.files import remove_quietly
from kbroker.log.flush_task import FlushTask
from kbroker.log.leader_epochs import LeaderEpochCache
from kbroker.log.log_config import LogConfig
from kbroker.log.log_segments import LogExtent
from kbroker.log.log_slice import EMPTY_SLICE, LogSlice
from kbroker.log.open_files import OpenFiles
from kbroker.log.producers.producer_rebuild import aborted_entry, rebuild_in_pieces
from kbroker.log.producers.producer_state import CompletedTxn, ProducerEntry, ProducerState
from kbroker.log.producers.snapshot_taking import SnapshotTaking
from kbroker.log.producers.verification_guard import UNCHECKED
from kbroker.log.record_validation import Opened, open_at_once, open_batch
from kbroker.log.recovery import load_log
from kbroker.log.segment.segment import Segment
from kbroker.log.segment.transaction_index import AbortedTxn
from kbroker.log.timestamp_search import TimestampSearch
from kbroker.protocol.control_records import read_marker
from kbroker.protocol.errors import ApiError, ErrorCode, Malformed
from kbroker.protocol.records import CONTROL_BIT, LOG_OVERHEAD, BatchHeader, parse_header

_put_prefix = struct.Struct(">qii").pack_into
_prefix = struct.Struct(">qii").pack
_LATEST_PRODUCE = 13
_NOT_OPENED = frozenset({errno.EMFILE, errno.ENFILE})
"""What keeps a file from being opened, and no fsync ever says."""
_FEW_PRODUCERS = 500
"""Up to so many are written down at once when a segment is rolled, in half a millisecond."""
_AT_ONCE = 8
"""Segments deleted in one go: each takes five renames, so that this is about a millisecond."""

logger = logging.getLogger(__name__)


class PartitionLog:
    """One partition's log; offsets are absolute, `size` in bytes, times in ms."""

    __slots__ = (
        "_later",
        "_rebuilding",
        "_rules",
        "_snapshots",
        "_times",
        "_trouble",
        "config",
        "directory",
        "high_watermark",
        "last_flush_ms",
        "leader_epochs",
        "log_end_offset",
        "log_start_offset",
        "may_have_holes",
        "partition",
        "producers",
        "recovery_point",
        "segments",
        "topic",
        "topic_id",
        "truncations",
    )

    def __init__(
        self,
        directory: str,
        topic: str,
        partition: int,
        config: LogConfig,
        *,
        now_ms: int,
        topic_id: uuid.UUID | None = None,
        clean: bool = True,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        high_watermark: int = 0,
        compacted: bool = False,
        uncompacted_from: int | None = None,
        progress: Callable[[int], None] | None = None,
        on_disk_error: Callable[[OSError], None] = lambda _error: None,
        files: OpenFiles | None = None,
        later: Callable[[Divided[None]], None] = whole,
    ) -> None:
        """Open the directory, which must exist; the offsets are what the checkpoints say.

        `compacted` tells that the log has been compacted at some time, and may have holes; no segment has that begins
        at `uncompacted_from` or later (None: nobody knows). `progress` hears of the bytes that recovery has read,
        `on_disk_error` of every failure of the disk from then on: whoever keeps the directory decides what it means for
        the others in it. `files` bounds how many segments have files open, of this log and of others; without it the
        log has a bound of its own. A log that has just been opened holds no file.
        `later` is given work that an append must not wait for, to be done in pieces.
        """
        self.topic = topic
        self.partition = partition
        self.directory = directory
        self.config = config
        self._rules = BatchRules(f"{topic}-{partition}", config)
        self.may_have_holes = compacted or config.compact
        """Whether the log is compacted, or has been: then offsets between two batches may be missing."""
        loaded = load_log(
            directory,
            config,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            clean=clean,
            now_ms=now_ms,
            files=OpenFiles() if files is None else files,
            compacted=self.may_have_holes,
            uncompacted_from=uncompacted_from,
            progress=progress,
        )
        self.segments = loaded.segments
        self.leader_epochs = loaded.epochs
        self.producers = loaded.producers
        self._snapshots = loaded.snapshots
        self._later = later
        self._rebuilding: Divided[None] | None = None  # the producers, as they are after a truncation
        self._times = TimestampSearch(self.segments)
        self._trouble = DiskTrouble(self._rules.name, on_disk_error)
        self.log_start_offset = loaded.log_start_offset
        self.log_end_offset = loaded.log_end_offset
        self.recovery_point = loaded.recovery_point
        self.high_watermark = min(max(high_watermark, self.log_start_offset), self.log_end_offset)
        self.producers.on_high_watermark(self.high_watermark)  # which may never move again
        self.last_flush_ms = now_ms
        self.truncations = 0
        self.topic_id = checkpoints.read_topic_id(directory)
        if self.topic_id is None and topic_id is not None:
            self.set_topic_id(topic_id)

    @property
    def last_stable_offset(self) -> int:
        """Where a reader of committed transactions has to stop."""
        unstable = self.producers.first_unstable
        if unstable < 0:
            return self.high_watermark
        return min(self.high_watermark, max(unstable, self.log_start_offset))

    @property
    def size(self) -> int:
        """Bytes of all log files."""
        return self.segments.size

    def set_topic_id(self, topic_id: uuid.UUID) -> None:
        """Write down whose log this is; raises OSError."""
        checkpoints.write_topic_id(self.directory, topic_id)
        self.topic_id = topic_id

    def update_config(self, config: LogConfig) -> None:
        """Use other settings from now on; index settings count from the next segment on."""
        self.config = config
        self.may_have_holes |= config.compact
        self._rules = BatchRules(self._rules.name, config)

    # -- appending --------------------------------------------------------------------------------------------

    def append_as_leader(
        self,
        records: memoryview | bytes | bytearray,
        leader_epoch: int,
        now_ms: int,
        *,
        origin: AppendOrigin = CLIENT,
        full_validation: bool = False,
        request_version: int = _LATEST_PRODUCE,
        transaction_version: int = 0,
        guard: object = UNCHECKED,
        opened: Opened | None = None,
        patient: bool = True,
    ) -> AppendInfo:
        """Append one batch, which gets the next offsets; raises AppendError, and then nothing has changed.

        A writable buffer is written to: base offset and leader epoch are put into it. `transaction_version` counts for
        the markers that end a transaction, `guard` (verification_guard.py) for the batches that open one.

        Where records must be looked at for longer than a moment, whoever is not `patient` gets TakesLonger with the
        work, and comes back with what it brought: `opened`, which counts unless the topic's settings have changed.
        """
        if self._trouble.refusal is not None:
            raise AppendError(ErrorCode.KAFKA_STORAGE_ERROR, detail=self._trouble.refusal)
        rules = self._rules
        batch = memoryview(records)
        if opened is not None and opened.rules is rules:
            batch, walks = opened.batch, False
            header = parse_header(batch)
        elif origin is COORDINATOR:
            header = check_own(batch, rules)
            walks = needs_other_codec(header, rules)
        else:
            header = check_header(batch, rules, origin, request_version)
            if header[1] + LOG_OVERHEAD != len(batch):
                batch = trim(batch)
            walks = full_validation or needs_walk(header, rules, now_ms)
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
        if size > self.config.segment_bytes:
            detail = f"batch of {size} bytes exceeds segment.bytes {self.config.segment_bytes}"
            raise AppendError(ErrorCode.RECORD_LIST_TOO_LARGE, detail=detail)
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
                return AppendInfo(first, last, repeated.timestamp, self.log_start_offset, True)
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
                # Before the marker itself: an entry too many is taken back, a marker without an entry would be lost.
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
        return AppendInfo(offset, last_offset, now_ms if self._rules.log_append_time else -1, self.log_start_offset)

    def append_as_follower(self, batch: memoryview, now_ms: int) -> None:
        """Append one batch of the leader's, byte for byte; raises AppendError, and then nothing has changed.

        It stands at the offset that the leader gave it, with the leader's epoch: there may be holes, as in a log that
        was compacted. A log that is empty, and begins within the batch, takes all of it (Kafka: ReplicaManager's
        UnexpectedAppendOffset); what lies before its start stays out of sight, as at the leader.
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
            if header.leader_epoch != self.leader_epochs.written:
                self.leader_epochs.assign(header.leader_epoch, offset, sync=False)
            age_ms = self._rules.segment_ms
            if segment.should_roll(
                header.size, last_offset, header.max_timestamp, now_ms, config.segment_bytes, age_ms
            ):
                segment = self._roll(now_ms)
            if completed is not None and completed.aborted:
                segment.txns.append(aborted_entry(completed, producers))  # first, as in `_write`
            segment.append((batch,), header.size, last_offset, header.max_timestamp)
        except OSError as error:
            raise self._append_failed(error, completed, now_ms) from error
        if offset > self.log_end_offset:
            self.may_have_holes = True
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

    @property
    def failed(self) -> bool:
        """Whether appends are refused because what is on disk can no longer be known."""
        return self._trouble.refusal is not None

    def refuse_appends(self, reason: str) -> None:
        """Take no more appends: what is on disk can no longer be known."""
        self._trouble.refuse(reason)

    def report_failure(self, error: OSError) -> None:
        """Hear of a read that failed, of whoever asked for it."""
        self._trouble.report(error)

    def roll(self, now_ms: int) -> None:
        """Begin a new segment at the end of the log, unless the last one is empty; raises OSError."""
        if self.segments.active.size:
            self._roll(now_ms)

    def _roll(self, now_ms: int) -> Segment:
        self.finish_truncation()
        old, offset = self.segments.active, self.log_end_offset
        if old.base_offset == offset:
            # An empty segment whose base suits, but which cannot take the batch: only its age and files start again.
            old.start_again(now_ms)
            return old
        segment = self.segments.add(offset, self.config, now_ms)
        passed("roll.created")
        try:
            old.seal()
            passed("roll.sealed")
            if len(self.producers.entries) <= _FEW_PRODUCERS:
                self._take_snapshot(sync=False)
            elif self.producers.taking is None:  # or there are many rolls, and the next one takes its snapshot
                self._later(self._snapshot_in_pieces(self.producers.begin_snapshot(offset)))
        except OSError as error:
            # Both only save work later: the indexes are checked, and the log itself tells what a snapshot would.
            logger.warning("%s-%d: rolling at %d: %s", self.topic, self.partition, offset, error)
        return segment

    def _snapshot_in_pieces(self, taking: SnapshotTaking[ProducerEntry]) -> Divided[None]:
        producers, taken = self.producers, False
        try:
            taken = yield from self._snapshots.take_in_pieces(taking, lambda: producers.taking is taking)
        except OSError as error:
            logger.warning("%s-%d: snapshot of the producers: %s", self.topic, self.partition, error)
        finally:
            producers.end_snapshot(taking)
        if taken:
            self.segments.directory_changed = True  # a flush may have come before it, and has not brought it to disk
            if taking.offset not in self.segments.bases:
                self._snapshots.outlive(taking.offset)
            if taking.offset < self.segments.active.base_offset:  # and no snapshot was taken for what has rolled since
                self._later(self._snapshot_in_pieces(producers.begin_snapshot(self.log_end_offset)))

    def _take_snapshot(self, *, sync: bool) -> None:
        self._snapshots.take(self.producers.entries.values(), self.log_end_offset, sync=sync)

    # -- reading ----------------------------------------------------------------------------------------------

    def extent(self) -> LogExtent:
        """Return what whoever reads the segments has to know besides."""
        return LogExtent(self.log_start_offset, self.log_end_offset, self.leader_epochs.latest, self.may_have_holes)

    def read(self, fetch_offset: int, max_bytes: int, upper_bound: int, *, min_one: bool) -> LogSlice:
        """Return batches from the one that holds `fetch_offset` on, none that reaches to `upper_bound`.

        At most `max_bytes`, of which the last batch may be cut off; nothing if that is less than the first batch, which
        `min_one` lets through whatever its size. Raises ApiError(OFFSET_OUT_OF_RANGE), or CORRUPT_MESSAGE where the
        file makes no sense from there on.
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
                    raise ApiError(ErrorCode.CORRUPT_MESSAGE)  # or the reader would go past what it cannot see
                continue
            position, first_size = found
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

    def aborted_before(self, offset: int) -> Divided[list[AbortedTxn]]:
        """Return the aborted transactions that began before `offset`; void if segments were removed meanwhile."""
        return self._aborted().begun_before(offset)

    def _aborted(self) -> AbortedTransactions:
        return AbortedTransactions(self.segments, self.extent(), self._snapshots)

    def find_timestamp(self, timestamp: int) -> Divided[tuple[int, int, int] | None]:
        """Return (offset, timestamp, leader epoch) of the first record at or after `timestamp` in ms."""
        return self._times.first_at(timestamp, self.extent)

    def find_max_timestamp(self) -> Divided[tuple[int, int, int] | None]:
        """Return (offset, timestamp, leader epoch) of the first record with the largest timestamp."""
        return self._times.largest(self.extent)

    def offset_for_timestamp(self, timestamp: int) -> tuple[int, int, int] | None:
        """Do `find_timestamp` at once."""
        return whole(self.find_timestamp(timestamp))

    def max_timestamp_offset(self) -> tuple[int, int, int] | None:
        """Do `find_max_timestamp` at once."""
        return whole(self.find_max_timestamp())

    def proven_epochs(self) -> LeaderEpochCache:
        """Return the leader epochs, once they have been seen to be those of the batches; raises OSError."""
        if not self.leader_epochs.proven:
            self.leader_epochs.prove(self.segments, self.extent())
        return self.leader_epochs

    # -- offsets ----------------------------------------------------------------------------------------------

    def set_high_watermark(self, offset: int) -> None:
        """Set what is committed; kept between the log's start and its end."""
        offset = min(max(offset, self.log_start_offset), self.log_end_offset)
        self.high_watermark = offset
        self.producers.on_high_watermark(offset)

    def advance_log_start(self, offset: int, now_ms: int = 0) -> bool:
        """Delete what lies below `offset`; False if that changes nothing. Raises ApiError(OFFSET_OUT_OF_RANGE).

        Of many segments only the first few go at once, the others with the next `delete_below_start`.
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

    def truncate_to(self, offset: int, now_ms: int = 0) -> None:
        """Remove everything from `offset` on; batches are removed whole."""
        self._cut(offset, now_ms)
        self.finish_truncation()

    def truncate_in_pieces(self, offset: int, now_ms: int = 0) -> Divided[None]:
        """Do as `truncate_to`: some segments at a time, and in pieces what is to be read, which may be a whole segment.

        It can be read meanwhile. If this is not carried to its end, `finish_truncation` comes before the next leader's
        append; all else that needs it calls for it.
        """
        while len(self.segments) > _AT_ONCE and self.segments.bases[-_AT_ONCE] > offset:
            self._cut(self.segments.bases[-_AT_ONCE], now_ms)
            yield
        self._cut(offset, now_ms)
        yield from self._finishing()

    def _finishing(self) -> Divided[None]:
        """Do what is left of a truncation, in pieces."""
        work = self._rebuilding
        while work is not None and self._rebuilding is work:
            if next(work, self) is self:
                break
            yield

    def finish_truncation(self) -> None:
        """Do at once what is left of a truncation."""
        if self._rebuilding is not None:
            whole(self._rebuilding)

    def _cut(self, offset: int, now_ms: int) -> None:
        if offset >= self.log_end_offset:
            # A leader that wrote nothing has left its epoch here, of which its successor's log knows nothing.
            self.leader_epochs.truncate_from_end(self.log_end_offset, sync=False)
            return
        segments = self.segments
        if offset <= segments.bases[0]:
            self._cut_fully(offset, now_ms)
            return
        self.truncations += 1
        while segments.bases[-1] >= offset:
            self._remove(segments[-1], now_ms)
        segments.active.truncate_to(offset)
        self._set_end(segments.active.become_active())

    def truncate_fully(self, offset: int, now_ms: int = 0) -> None:
        """Remove everything and go on at `offset`."""
        self._cut_fully(offset, now_ms)
        self.finish_truncation()

    def truncate_fully_in_pieces(self, offset: int, now_ms: int = 0) -> Divided[None]:
        """Do as `truncate_fully`, the oldest segments first and some at a time, as if they were deleted.

        If this is not carried to its end, the log goes on with what is left of it.
        """
        yield from self._finishing()  # it may read what is about to go
        while len(self.segments) > _AT_ONCE:
            self.log_start_offset = self.segments.bases[_AT_ONCE]
            self.set_high_watermark(self.high_watermark)
            gone = self.segments.remove_first(_AT_ONCE, self.config, now_ms)
            self.segments.doomed.add_garbage([self._snapshots.forget(segment.base_offset) for segment in gone])
            yield
        self.truncate_fully(offset, now_ms)

    def _cut_fully(self, offset: int, now_ms: int) -> None:
        self.truncations += 1
        for segment in list(self.segments):
            self._remove(segment, now_ms)
        self.segments.add(offset, self.config, now_ms)
        self.log_start_offset = offset
        self.leader_epochs.clear()
        self._set_end(offset)

    def _set_end(self, offset: int) -> None:
        self.producers.taking = None
        self.log_end_offset = offset
        self.log_start_offset = min(self.log_start_offset, offset)
        self.recovery_point = min(self.recovery_point, offset)
        self.high_watermark = min(max(self.high_watermark, self.log_start_offset), offset)
        self.leader_epochs.truncate_from_end(offset, sync=False)
        self._snapshots.remove_outside(-1, offset)
        self._rebuilding = self._rebuild(offset)

    def _rebuild(self, end_offset: int) -> Divided[None]:
        """Find the producers again. Until then those of before tell, to whom no transaction seems too far."""
        fresh = ProducerState()
        try:
            yield from rebuild_in_pieces(fresh, self._snapshots, list(self.segments.items), end_offset)
        except OSError as error:
            self.refuse_appends(f"the producers could not be found again: {error}")
            raise
        fresh.on_high_watermark(self.high_watermark)
        self.producers = fresh
        self._rebuilding = None

    # -- housekeeping -----------------------------------------------------------------------------------------

    def delete_old_segments(self, now_ms: int) -> int:
        """Apply retention by start offset, size and time; returns how many segments went. Nothing >= HW is touched."""
        return whole(self.delete_what_is_due(now_ms))

    def delete_what_is_due(self, now_ms: int) -> Divided[int]:
        """Do as `delete_old_segments`, in pieces."""
        deleted = yield from self.delete_below_start(now_ms)
        for count_due in (retention.beyond_size, retention.too_old):
            due = _AT_ONCE
            while due == _AT_ONCE and self.config.delete:
                due = count_due(self.segments, self.config, self.log_end_offset, self.high_watermark, now_ms, _AT_ONCE)
                gone = self._delete_first(due, now_ms)
                deleted += gone
                yield
                if not gone:
                    break  # for now
        return deleted

    def _delete_first(self, count: int, now_ms: int) -> int:
        if not count:
            return 0
        if count == len(self.segments):
            self.roll(now_ms)
        # The log's start moves first: whoever reads an offset below it is told so, not that a segment is missing.
        self.log_start_offset = max(self.log_start_offset, self.segments.bases[count])
        self.leader_epochs.truncate_from_start(self.log_start_offset)
        return self._delete_some_below_start(now_ms)

    def delete_below_start(self, now_ms: int) -> Divided[int]:
        """Delete segments that lie wholly below the log's start, in pieces; returns how many."""
        deleted = 0
        while some := self._delete_some_below_start(now_ms):
            deleted += some
            yield
        return deleted

    def _delete_some_below_start(self, now_ms: int) -> int:
        if self._rebuilding is not None:
            return 0  # for now
        below = self.segments.index_at(self.log_start_offset)
        if len(self.producers.entries) > _FEW_PRODUCERS and (
            self.producers.taking is not None or self._snapshots.newest_offset in self._snapshots.unsynced
        ):
            # Until that is on disk, only the log tells a start what producers have done since the one before it.
            below = min(below, self.segments.index_at(self._snapshots.newest_synced))
        if not below:
            return 0
        gone = self.segments.remove_first(min(below, _AT_ONCE), self.config, now_ms)
        snapshots = self._snapshots.forget_with_segments([segment.base_offset for segment in gone])
        if snapshots:
            self.segments.doomed.add_garbage(snapshots)
        untold = self.producers.entries and self._snapshots.newest_offset < self.segments.bases[0]
        if untold and self.producers.taking is None:
            # The snapshot that was due there has failed, and now the log does not tell of its producers either.
            self._later(self._snapshot_in_pieces(self.producers.begin_snapshot(self.log_end_offset)))
        return len(gone)

    def _remove(self, segment: Segment, now_ms: int) -> None:
        self.segments.remove(segment, self.config, now_ms)
        self._snapshots.remove(segment.base_offset)

    def exchange_segments(self, old: list[Segment], doomed: list[list[str]], garbage: list[str], now_ms: int) -> None:
        """Let compacted files serve in the place of `old`, as Segments.replace does; raises OSError.

        `garbage` are files of theirs that nobody needs.
        """
        self.segments.replace(old, doomed, self.config, now_ms)
        snapshots = [self._snapshots.forget(segment.base_offset) for segment in old[1:]]
        self.segments.doomed.add_garbage(garbage + snapshots)

    def take_doomed(self, now_ms: int, most: int) -> list[str]:
        """Return the files of at most `most` deleted segments that are due, for somebody to remove now."""
        return self.segments.doomed.take(self.config, now_ms, most)

    def purge_deleted(self, now_ms: int) -> int:
        """Remove the files of deleted segments that are due; returns how many."""
        paths = self.take_doomed(now_ms, sys.maxsize)
        for path in paths:
            remove_quietly(path)
        return len(paths)

    def active_producers(self) -> list[ProducerEntry]:
        return list(self.producers.entries.values())

    def expire_producers(self, now_ms: int, expiration_ms: int) -> int:
        """Forget producers that have been silent for so long; returns how many."""
        return whole(self.producers.expire(now_ms, expiration_ms))

    def begin_flush(self, *, snapshots: bool = True) -> FlushTask | None:
        """Return the work of a flush, which may be done on another thread; None if all is on disk.

        Without `snapshots` those of the producers are left to the next one: there may be megabytes of them.
        """
        unsynced = self._snapshots.to_sync() if snapshots else {}
        if self.recovery_point >= self.log_end_offset and not self.segments.directory_changed and not unsynced:
            return None
        paths = chain(self.segments.sealed_paths_from(self.recovery_point), unsynced.values())
        active, end = self.segments.active.handle, self.log_end_offset
        return FlushTask(active, paths, self.segments.take_directory(), end, list(unsynced), self.truncations)

    @property
    def wants_flush(self) -> bool:
        """Whether closed segments, or snapshots of the producers, are still to be brought to the disk."""
        return self.recovery_point < self.segments.active.base_offset or bool(self._snapshots.unsynced)

    def end_flush(self, task: FlushTask, now_ms: int) -> None:
        self.last_flush_ms = now_ms
        if task.error is not None and task.error.errno in _NOT_OPENED:
            self.segments.directory_changed = True  # nothing is lost, and the next flush does it all
        elif task.error is not None:
            # After a failed fsync the kernel may have dropped the pages: a second one would succeed and prove nothing.
            self.refuse_appends(f"flush failed: {task.error}")
            self.report_failure(task.error)
        elif task.truncations == self.truncations:
            self.set_recovery_point(max(self.recovery_point, task.end_offset))
            if outlived := self._snapshots.synced(task.snapshots):
                self.segments.doomed.add_garbage(outlived)

    def set_recovery_point(self, offset: int) -> None:
        """Count as on disk what lies before `offset`, and nothing else."""
        self.recovery_point = offset

    def flush(self, now_ms: int = 0, *, snapshots: bool = True) -> None:
        """Write everything to disk, or all but the producers' snapshots; raises AppendError(KAFKA_STORAGE_ERROR)."""
        task = self.begin_flush(snapshots=snapshots)
        if task is not None:
            task.run()
            self.end_flush(task, now_ms)
            if task.error is not None:
                raise AppendError(ErrorCode.KAFKA_STORAGE_ERROR, detail=self._trouble.refusal)

    def release_idle(self, *, force: bool = False) -> None:
        self.segments.release_idle(force=force)

    def move(self, directory: str) -> None:
        self.directory = directory
        self.leader_epochs.move(directory)
        self._snapshots.move(directory)
        self.segments.move(directory)

    def close(self, *, clean: bool = True) -> None:
        """Close the files; a clean close also flushes, snapshots the producers and completes the indexes.

        Raises OSError or AppendError when that failed; the files are closed all the same.
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
            self.segments.release()
