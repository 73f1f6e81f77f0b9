"""The log of one partition.

Owns its segments, offsets, producers and leader epochs, and keeps them true to each other: an append changes all or
none of them. What only looks at them, or follows from a change, are functions in modules beside it (reading.py,
offset_queries.py, aborted.py, truncation.py, retention.py). Never waits, never knows who asks, and never moves the high
watermark of itself.

    <topic>-<partition>/   segments (see segment.py), *.snapshot (producer_entry.py),
                           leader-epoch-checkpoint and partition.metadata (checkpoints.py)

log_start_offset <= last_stable_offset <= high_watermark <= log_end_offset, at all times.
"""

from __future__ import annotations

import logging
import random
import struct
import uuid
from bisect import bisect_right
from collections.abc import Callable

from kbroker.failpoints import passed
from kbroker.log import aborted_transactions as aborted
from kbroker.log import checkpoints, reading, retention, truncation
from kbroker.log import timestamp_search as offset_queries
from kbroker.log.append_info import CLIENT, AppendError, AppendInfo, AppendOrigin
from kbroker.log.append_validation import BatchRules, check_header, needs_walk, stamp, trim, walk
from kbroker.log.directories.flusher import FlushTask
from kbroker.log.files import remove_quietly
from kbroker.log.log_config import LogConfig
from kbroker.log.producers.producer_snapshots import ProducerEntry
from kbroker.log.producers.producer_state import CompletedTxn
from kbroker.log.producers.verification_guard import UNCHECKED
from kbroker.log.recovery import aborted_entry, load_log
from kbroker.log.segment.segment import Segment
from kbroker.protocol.errors import ApiError, ErrorCode, Malformed
from kbroker.protocol.records import CONTROL_BIT, LOG_OVERHEAD, BatchHeader, parse_header, read_marker

_put_prefix = struct.Struct(">qii").pack_into
_prefix = struct.Struct(">qii").pack
_LATEST_PRODUCE = 13
_COMPLAIN_EVERY_MS = 10_000
_UNDATED = -1  # deleted by somebody without a clock: the delay begins when somebody with one comes by

logger = logging.getLogger(__name__)


def _nobody(_error: OSError) -> None:
    """Nobody is told."""


class PartitionLog:
    """One partition's log; offsets are absolute, `size` in bytes, times in ms."""

    __slots__ = (
        "_complained_ms",
        "_dirty_directory",
        "_doomed",
        "_failure",
        "_idle_size",
        "_rules",
        "active",
        "bases",
        "config",
        "directory",
        "epochs_proven",
        "high_watermark",
        "last_flush_ms",
        "leader_epochs",
        "log_end_offset",
        "log_start_offset",
        "may_have_holes",
        "newest_by_segment",
        "partition",
        "producers",
        "recovery_point",
        "report_failure",
        "segments",
        "snapshots",
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
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """Open the directory, which must exist; the offsets are what the checkpoints say.

        `compacted` tells that the log has been compacted at some time, and may have holes. `progress` hears of the
        bytes that recovery has read.
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
            compacted=self.may_have_holes,
            progress=progress,
        )
        self.segments = loaded.segments
        self.leader_epochs = loaded.epochs
        self.newest_by_segment: tuple[list[Segment], list[int]] | None = None
        """Closed segments, and the largest timestamp up to each; see offset_queries.py."""
        self.epochs_proven = False
        """Whether the leader epochs have been held against the batches; see epoch_proof.py."""
        self.producers = loaded.producers
        self.snapshots = loaded.snapshots
        self.log_start_offset = loaded.log_start_offset
        self.log_end_offset = loaded.log_end_offset
        self.recovery_point = loaded.recovery_point
        self.high_watermark = min(max(high_watermark, self.log_start_offset), self.log_end_offset)
        self.last_flush_ms = now_ms
        self.bases = [segment.base_offset for segment in self.segments]
        self.active = self.segments[-1]
        self._failure: str | None = None
        self._complained_ms = -_COMPLAIN_EVERY_MS
        self.report_failure: Callable[[OSError], None] = _nobody
        """Told of every failure of the disk; whoever keeps the directory decides what it means for the others in it."""
        self._doomed: list[tuple[int, str]] = []
        self._dirty_directory = True
        self.truncations = 0
        self._idle_size = -1
        self.topic_id = checkpoints.read_topic_id(directory)
        if self.topic_id is None and topic_id is not None:
            checkpoints.write_topic_id(directory, topic_id)
            self.topic_id = topic_id

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
        return sum(segment.size for segment in self.segments)

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
    ) -> AppendInfo:
        """Append one batch, which gets the next offsets; raises AppendError, and then nothing has changed.

        A writable buffer is written to: base offset and leader epoch are put into it. `transaction_version` counts for
        the markers that end a transaction, `guard` (verification.py) for the batches that open one.
        """
        if self._failure is not None:
            raise AppendError(ErrorCode.KAFKA_STORAGE_ERROR, detail=self._failure)
        rules = self._rules
        batch = memoryview(records)
        header = check_header(batch, rules, origin, request_version)
        if header[1] + LOG_OVERHEAD != len(batch):
            batch = trim(batch)
        if full_validation or needs_walk(header, rules, now_ms):
            batch = memoryview(walk(batch, header, rules, now_ms, origin))
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
        segment = self.active
        try:
            if leader_epoch != self.leader_epochs.latest:
                self.leader_epochs.assign(leader_epoch, offset)
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
        self.log_end_offset = self.producers.end_offset = last_offset + 1
        if last_offset + 1 - self.recovery_point >= config.flush_messages:
            self.flush(now_ms)
        return AppendInfo(offset, last_offset, now_ms if self._rules.log_append_time else -1, self.log_start_offset)

    def _append_failed(self, error: OSError, completed: CompletedTxn | None, now_ms: int) -> AppendError:
        if getattr(error, "unrepaired", False):
            self.refuse_appends(f"the file could not be cut back after: {error}")
        if completed is not None and completed.aborted:
            try:
                self.active.txns.truncate_to(self.log_end_offset)
            except OSError as second:
                self.refuse_appends(f"the transaction index could not be cut back after: {second}")
        if now_ms - self._complained_ms >= _COMPLAIN_EVERY_MS:
            self._complained_ms = now_ms  # clients try again many times a second
            logger.error("%s-%d: append failed: %s", self.topic, self.partition, error)
        self.report_failure(error)
        return AppendError(ErrorCode.KAFKA_STORAGE_ERROR, detail=str(error))

    @property
    def failed(self) -> bool:
        """Whether appends are refused because what is on disk can no longer be known."""
        return self._failure is not None

    def refuse_appends(self, reason: str) -> None:
        """Take no more appends: what is on disk can no longer be known."""
        self._failure = reason

    def roll(self, now_ms: int) -> None:
        """Begin a new segment at the end of the log, unless the last one is empty; raises OSError."""
        if self.active.size:
            self._roll(now_ms)

    def _roll(self, now_ms: int) -> Segment:
        old, offset = self.active, self.log_end_offset
        if old.base_offset == offset:
            # An empty segment whose base suits, but which cannot take the batch: only its age and files start again.
            old.reset_indexes()
            old.created_ms = now_ms
            return old
        segment = self.add_segment(offset, now_ms)
        passed("roll.created")
        try:
            old.seal()
            passed("roll.sealed")
            self.snapshots.take(self.producers.entries.values(), self.producers.end_offset, sync=False)
        except OSError as error:
            # Both only save work later: the indexes are checked, and the log itself tells what a snapshot would.
            logger.warning("%s-%d: rolling at %d: %s", self.topic, self.partition, offset, error)
        return segment

    # -- reading ----------------------------------------------------------------------------------------------

    read = reading.read  # as it stands there: a method that passed it on would cost every fetch a call

    def aborted_transactions(self, start_offset: int, end_offset: int) -> list[tuple[int, int]]:
        """Return (producer id, first offset) of aborted transactions that overlap [start, end)."""
        return aborted.aborted_transactions(self, start_offset, end_offset)

    def offset_for_timestamp(self, timestamp: int) -> tuple[int, int, int] | None:
        """Return (offset, timestamp, leader epoch) of the first record at or after `timestamp` in ms."""
        return offset_queries.offset_for_timestamp(self, timestamp)

    def max_timestamp_offset(self) -> tuple[int, int, int] | None:
        """Return (offset, timestamp, leader epoch) of the first record with the largest timestamp."""
        return offset_queries.max_timestamp_offset(self)

    # -- offsets ----------------------------------------------------------------------------------------------

    def set_high_watermark(self, offset: int) -> None:
        """Set what is committed; kept between the log's start and its end."""
        offset = min(max(offset, self.log_start_offset), self.log_end_offset)
        self.high_watermark = offset
        self.producers.on_high_watermark(offset)

    def advance_log_start(self, offset: int, now_ms: int = 0) -> bool:
        """Delete what lies below `offset`; False if that changes nothing. Raises ApiError(OFFSET_OUT_OF_RANGE)."""
        if offset > self.high_watermark:
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
        if offset <= self.log_start_offset:
            return False
        self.log_start_offset = offset
        self.leader_epochs.truncate_from_start(offset)
        self.producers.on_high_watermark(offset)
        retention.delete_below_start(self, now_ms)
        return True

    def truncate_to(self, offset: int, now_ms: int = 0) -> None:
        """Remove everything from `offset` on; batches are removed whole."""
        truncation.truncate_to(self, offset, now_ms)

    def truncate_fully(self, offset: int, now_ms: int = 0) -> None:
        """Remove everything and go on at `offset`."""
        truncation.truncate_fully(self, offset, now_ms)

    # -- housekeeping -----------------------------------------------------------------------------------------

    def delete_old_segments(self, now_ms: int) -> int:
        """Apply retention by start offset, size and time; returns how many segments went. Nothing >= HW is touched."""
        return retention.delete_old_segments(self, now_ms)

    def add_segment(self, base_offset: int, now_ms: int) -> Segment:
        """Create an empty segment and append to it from now on; raises OSError."""
        config = self.config
        segment = Segment.create(
            self.directory, base_offset, config.index_interval_bytes, config.segment_index_bytes, now_ms
        )
        if config.segment_jitter_ms:
            segment.jitter_ms = random.randrange(min(config.segment_jitter_ms, config.segment_ms))
        self.segments.append(segment)
        self.bases.append(base_offset)
        self.active = segment
        self._dirty_directory = True
        return segment

    def remove_segment(self, segment: Segment, now_ms: int) -> None:
        """Take a segment out of the log; its files are removed `file.delete.delay.ms` later by `purge_deleted`."""
        index = self.segments.index(segment)
        del self.segments[index], self.bases[index]
        due = now_ms + self.config.file_delete_delay_ms if now_ms else _UNDATED
        self._doomed += [(due, path) for path in segment.mark_deleted()]
        self.snapshots.remove(segment.base_offset)

    def exchange_segments(self, old: list[Segment], doomed: list[str], now_ms: int) -> None:
        """Let the files that now stand at the base of the first one serve in the place of `old`, which are neighbours.

        `doomed` are the old files' present names; they are removed as those of deleted segments are. Raises OSError.
        """
        index, base, config = self.segments.index(old[0]), old[0].base_offset, self.config
        new = Segment.open(self.directory, base, config.index_interval_bytes, config.segment_index_bytes, now_ms)
        self.segments[index : index + len(old)] = [new]
        self.bases[index : index + len(old)] = [base]
        self._doomed += [(now_ms + config.file_delete_delay_ms, path) for path in doomed]
        for segment in old[1:]:
            self.snapshots.remove(segment.base_offset)
        self._dirty_directory = True

    def purge_deleted(self, now_ms: int) -> int:
        """Remove the files of deleted segments that are due; returns how many."""
        delay = self.config.file_delete_delay_ms
        self._doomed = [(now_ms + delay if when == _UNDATED else when, path) for when, path in self._doomed]
        due = [path for when, path in self._doomed if when <= now_ms]
        if due:
            self._doomed = [(when, path) for when, path in self._doomed if when > now_ms]
            for path in due:
                remove_quietly(path)
        return len(due)

    def active_producers(self) -> list[ProducerEntry]:
        """Return the producers that the log knows."""
        return list(self.producers.entries.values())

    def expire_producers(self, now_ms: int, expiration_ms: int) -> int:
        """Forget producers that have been silent for so long; returns how many."""
        return self.producers.expire(now_ms, expiration_ms)

    def begin_flush(self) -> FlushTask | None:
        """Return the work of a flush, which may be done on another thread; None if all is on disk."""
        if self.recovery_point >= self.log_end_offset and not self._dirty_directory:
            return None
        first = max(bisect_right(self.bases, self.recovery_point) - 1, 0)
        handles = [segment.handle for segment in self.segments[first:]]
        directory = self.directory if self._dirty_directory else None
        self._dirty_directory = False
        paths = self.snapshots.paths_from(self.recovery_point)
        return FlushTask(handles, paths, directory, self.log_end_offset, self.truncations)

    def end_flush(self, task: FlushTask, now_ms: int) -> None:
        """Take a finished flush into account."""
        self.last_flush_ms = now_ms
        if task.error is not None:
            # After a failed fsync the kernel may have dropped the pages: a second one would succeed and prove nothing.
            self.refuse_appends(f"flush failed: {task.error}")
            self.report_failure(task.error)
        elif task.truncations == self.truncations:
            self.recovery_point = max(self.recovery_point, task.end_offset)

    def flush(self, now_ms: int = 0) -> None:
        """Write everything to disk; raises AppendError(KAFKA_STORAGE_ERROR)."""
        task = self.begin_flush()
        if task is not None:
            task.run()
            self.end_flush(task, now_ms)
            if task.error is not None:
                raise AppendError(ErrorCode.KAFKA_STORAGE_ERROR, detail=self._failure)

    def release_idle(self, *, force: bool = False) -> None:
        """Close the files that nobody has used since the last call, or all; they are opened again when needed."""
        for segment in self.segments:
            idle = segment is not self.active or segment.size == self._idle_size
            if force or (idle and not segment.used):
                segment.release()
            segment.used = False
        self._idle_size = self.active.size

    def move(self, directory: str) -> None:
        """Follow the directory, which was renamed."""
        self.directory = self.snapshots.directory = directory
        self.leader_epochs.move(directory)
        for segment in self.segments:
            segment.move(directory)
        self._doomed = []  # they go with the directory

    def close(self, *, clean: bool = True) -> None:
        """Close the files; a clean close also flushes, snapshots the producers and completes the indexes.

        Raises OSError or AppendError when that failed; the files are closed all the same.
        """
        try:
            if clean and self._failure is None:
                self.snapshots.take(self.producers.entries.values(), self.producers.end_offset, sync=True)
                self.active.seal()
                self._dirty_directory = True
                self.flush()
        finally:
            for segment in self.segments:
                segment.release()
