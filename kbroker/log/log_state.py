"""The state of a partition's log, its opening, its flushes and its truncation.

Owns the log's offsets, whether it accepts appends, the order of a truncation's steps, and the rebuilding of the
producers' state afterwards, in pieces. The order ensures that no append follows a truncation that a crash or an error
interrupted. The subclass (partition_log.py) appends, reads and deletes. Never moves the high watermark by itself, and
never decides about the offset of a truncation: followers decide, from their leaders' responses.

log_start_offset <= last_stable_offset <= high_watermark <= log_end_offset, at all times.
"""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from time import perf_counter
from typing import Any, Final

from kbroker.log import checkpoints
from kbroker.log.append_info import AppendError
from kbroker.log.append_validation import BatchRules
from kbroker.log.disk_errors import DiskTrouble
from kbroker.log.files import SCHEDULES, FileHandle, sync_directory, sync_file
from kbroker.log.log_config import LogConfig
from kbroker.log.maturity import Maturity
from kbroker.log.open_files import OpenFiles
from kbroker.log.producers.producer_rebuild import rebuild_in_pieces
from kbroker.log.producers.producer_state import ProducerState
from kbroker.log.recovery import NEW_LOG, LastStop, load_log
from kbroker.log.segment.segment import Segment
from kbroker.log.tier import Tier
from kbroker.log.timestamp_search import TimestampSearch
from kbroker.long_work import step, turn, whole
from kbroker.protocol.errors import ErrorCode

AT_ONCE: Final = 8
"""The number of segments deleted in one step, which takes about a millisecond: each segment needs five renames."""
Work = Callable[[], Coroutine[Any, Any, None]]
"""A function that creates a coroutine of long work."""
_NOT_OPENED = frozenset({errno.EMFILE, errno.ENFILE})
"""Errors that prevent opening a file, and that fsync never returns."""


@dataclass(slots=True)
class FlushTask:
    """The files to flush so that a log is safe up to `end_offset`. The work may block; any thread may do it.

    The task contains names, and the one open file that is being written. The owner of the log passes the result to the
    log. There may be thousands of files, so they are opened one after the other. A missing file needs no flush: its
    segment was deleted, or compacted into another segment that is on disk, or the log was truncated, which makes the
    task invalid. If a failed write has not been reported yet, the kernel reports the failure to the next opener of the
    file.
    """

    active: FileHandle
    paths: Iterable[str]
    """Sealed files, oldest first. There may be many thousands, so each name is built only when it is needed."""
    directory: str | None
    end_offset: int
    snapshots: list[int]
    """The offsets of the producer snapshots among the files."""
    truncations: int
    """The log's number of truncations when the task was created; a later truncation makes the task invalid."""
    epoch_writes: int = 0
    """The number of times that the leader epochs had been written when the task was created.

    If the file of the leader epochs needs a flush, it is one of the files to flush.
    """
    above: str | None = None
    """The parent of `directory`, if the name of `directory` is possibly not on disk yet."""
    error: OSError | None = None
    took: float = 0.0
    """The duration in seconds, after the work is done."""

    @property
    def has_lost_nothing(self) -> bool:
        """Whether the task failed before any fsync, so that it can be repeated later."""
        return self.error is not None and self.error.errno in _NOT_OPENED

    def run(self) -> None:
        """Do the work; store a failure in `error`."""
        since = perf_counter()
        try:
            for path in self.paths:
                with contextlib.suppress(FileNotFoundError):
                    sync_file(path)
            os.fsync(self.active.fd)
            if self.directory is not None:
                with contextlib.suppress(FileNotFoundError):  # the partition was deleted meanwhile
                    sync_directory(self.directory)
            if self.above is not None:
                sync_directory(self.above)
        except OSError as error:
            self.error = error
        self.took = perf_counter() - since


@dataclass(frozen=True, slots=True)
class LogHost:
    """The owner of a log's directory, which may also own other logs."""

    on_disk_error: Callable[[OSError], None] = lambda _error: None
    """A function that is called with every disk error after the opening, and handles the error for the other logs."""
    files: OpenFiles | None = None
    """Limits the number of segments with open files in all logs of the owner. If None, the log has its own limit."""
    later: Callable[[Work], None] = lambda make: whole(make())
    """A function that is called with long work.

    It does the work in pieces, and an append must not wait for this work.
    """
    on_holes: Callable[[], None] = lambda: None
    """A function that is called before a follower's append makes a log's first known hole.

    The function may raise OSError.
    """
    progress: Callable[[int], None] | None = None
    """A function that is called with the number of bytes that recovery has read."""


ALONE: Final = LogHost()
"""The host of a log that shares no resources with other logs."""


class LogState:
    """The state of one partition's log; offsets are absolute, `size` in bytes, times in ms."""

    __slots__ = (
        "_later",
        "_on_holes",
        "_rebuilding",
        "_rules",
        "_snapshots",
        "_times",
        "_trouble",
        "config",
        "directory",
        "held_bytes",
        "high_watermark",
        "is_unmarked",
        "kept_from",
        "last_flush_ms",
        "leader_epochs",
        "log_end_offset",
        "log_start_offset",
        "maturity",
        "may_have_holes",
        "name_unsynced",
        "partition",
        "producers",
        "recovery_point",
        "segments",
        "tier",
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
        stop: LastStop = NEW_LOG,
        host: LogHost = ALONE,
    ) -> None:
        """Open the directory, which must exist. A log that has just been opened keeps no file open."""
        self.topic = topic
        self.partition = partition
        self.directory = directory
        self.name_unsynced = False
        """Whether the directory is new, so that a power loss may remove it and all its content."""
        self.config = config
        self._rules = BatchRules(f"{topic}-{partition}", config)
        self.may_have_holes = stop.compacted or config.compact
        """Whether the log is or was compacted: offsets between two batches may then be missing."""
        loaded = load_log(
            directory,
            config,
            stop,
            host.files or OpenFiles(),
            now_ms,
            holes=self.may_have_holes,
            progress=host.progress,
        )
        self.segments = loaded.segments
        self.leader_epochs = loaded.epochs
        self.producers = loaded.producers
        self._snapshots = loaded.snapshots
        self._later = host.later
        self._on_holes = host.on_holes
        self._rebuilding: Coroutine[Any, Any, None] | None = None  # rebuilds the producers' state after a truncation
        self._times = TimestampSearch(self.segments)
        self.maturity: Maturity | None = None
        """The offset up to which consumers may read, and how it is computed. None without `delivery.delay.ms`."""
        self._trouble = DiskTrouble(self._rules.name, host.on_disk_error)
        self.log_start_offset = loaded.log_start_offset
        self.log_end_offset = loaded.log_end_offset
        self.recovery_point = loaded.recovery_point
        """The offset before which all data is on disk."""
        self.high_watermark = min(max(stop.high_watermark, self.log_start_offset), self.log_end_offset)
        # notify the producers now, because the high watermark may never move again
        self.producers.on_high_watermark(self.high_watermark)
        if config.delivery_delay_ms:
            self.maturity = Maturity(self.segments, self.log_start_offset)
        self.kept_from: int | None = None
        """The first offset that retention must keep, because a schedule there is pending; None if nothing is kept."""
        if config.schedule_enable or os.path.exists(f"{directory}/{SCHEDULES}"):
            self.kept_from = self.log_start_offset  # keep all records until the pending schedules are known
        self.tier: Tier | None = None
        """The part of the log in remote storage; None for a topic without remote storage."""
        if config.remote_storage_enable:
            self.tier = Tier(min(stop.log_start_offset, self.log_start_offset))
        self.held_bytes = 0
        """The number of bytes that retention would have deleted if there were no pending schedules."""
        self.is_unmarked = False
        """Whether clients' records are refused for now.

        The leader of a schedule topic must first write whether the following records are schedules.
        """
        self.last_flush_ms = now_ms
        self.truncations = 0
        self.topic_id = checkpoints.read_topic_id(directory)
        if self.topic_id is None and topic_id is not None:
            self.set_topic_id(topic_id)

    @property
    def last_stable_offset(self) -> int:
        """The end of the range visible to readers of committed transactions."""
        unstable = self.producers.first_unstable
        if unstable < 0:
            return self.high_watermark
        return min(self.high_watermark, max(unstable, self.log_start_offset))

    @property
    def earliest_offset(self) -> int:
        """The first offset that readers may read, in remote storage or on this disk (Kafka's log start offset)."""
        tier = self.tier
        return self.log_start_offset if tier is None else min(tier.start_offset, self.log_start_offset)

    @property
    def size(self) -> int:
        """The size of all log files in bytes."""
        return self.segments.size

    def set_topic_id(self, topic_id: uuid.UUID) -> None:
        """Write the topic id. Raises OSError on failure."""
        checkpoints.write_topic_id(self.directory, topic_id)
        self.topic_id = topic_id

    def update_config(self, config: LogConfig) -> None:
        """Use other settings from now on; index settings apply only to the next segments."""
        self.config = config
        self.may_have_holes |= config.compact
        self._rules = BatchRules(self._rules.name, config)
        if config.remote_storage_enable and self.tier is None:
            self.tier = Tier(self.log_start_offset)
        if not config.delivery_delay_ms:
            self.maturity = None
        elif self.maturity is None:
            self.maturity = Maturity(self.segments, self.high_watermark)  # consumers may have read these records

    def mature_end(self, now_ms: int) -> int:
        """Return the end of the records that are older than `delivery.delay.ms`. Raises OSError.

        If many records mature at once, one call examines a part of them, and `maturity.is_behind` is true meanwhile.
        """
        maturity = self.maturity
        if maturity is None:
            return self.log_end_offset
        return maturity.advance(self.log_start_offset, self.log_end_offset, self.config.delivery_delay_ms, now_ms)

    def ms_to_maturity(self, now_ms: int) -> int | None:
        """Return the ms after which `mature_end` grows. Return None if no record waits to be old enough."""
        return None if self.maturity is None else self.maturity.wait_ms(self.config.delivery_delay_ms, now_ms)

    async def readable_end(self, now_ms: int, *, committed: bool = False) -> int:
        """Return the end of the range that consumers can read.

        With `committed`, return the end for consumers that read only completed transactions. Raises OSError.
        """
        while True:
            end = self.mature_end(now_ms)
            if self.maturity is None or not self.maturity.is_behind:
                return min(end, self.last_stable_offset if committed else self.high_watermark)
            await turn

    @property
    def failed(self) -> bool:
        """Whether appends are refused because the content on disk is no longer known."""
        return self._trouble.refusal is not None

    def refuse_appends(self, reason: str) -> None:
        """Refuse all further appends, because the content on disk is no longer known."""
        self._trouble.refuse(reason)

    @property
    def damaged_at(self) -> int | None:
        """The offset at which a read last found damage, if the offset is still part of the log."""
        offset = self._trouble.damaged_at
        return offset if offset is not None and self.log_start_offset <= offset < self.log_end_offset else None

    def report_damage(self, offset: int, now_ms: int) -> None:
        """Handle a reader's report of damage at an offset."""
        self._trouble.found_damage(offset, now_ms)

    def report_failure(self, error: OSError) -> None:
        """Handle a reader's report of a failed read."""
        self._trouble.report(error)

    def set_high_watermark(self, offset: int) -> None:
        """Set the high watermark, but not outside the log's start and end."""
        offset = min(max(offset, self.log_start_offset), self.log_end_offset)
        self.high_watermark = offset
        if self.producers.unreplicated:
            self.producers.on_high_watermark(offset)

    # -- flushes ----------------------------------------------------------------------------------------------

    def begin_flush(self, *, snapshots: bool = True) -> FlushTask | None:
        """Return the work of a flush, which may run on another thread; None if all data is on disk.

        Without `snapshots`, the next flush syncs the producer snapshots, which may have megabytes.
        """
        unsynced = self._snapshots.to_sync() if snapshots else {}
        epochs = self.leader_epochs.unsynced
        is_safe = self.recovery_point >= self.log_end_offset and not self.segments.directory_changed
        if is_safe and not unsynced and epochs is None:
            return None
        first = [] if epochs is None else [epochs]
        paths = chain(first, self.segments.sealed_paths_from(self.recovery_point), unsynced.values())
        active, end = self.segments.active.handle, self.log_end_offset
        writes = self.leader_epochs.writes
        above = os.path.dirname(self.directory) if self.name_unsynced else None
        directory = self.segments.take_directory()
        return FlushTask(active, paths, directory, end, list(unsynced), self.truncations, writes, above)

    @property
    def wants_flush(self) -> bool:
        """Whether data of closed segments or snapshots of the producers is not on disk yet."""
        return self.recovery_point < self.segments.active.base_offset or bool(self._snapshots.unsynced)

    def end_flush(self, task: FlushTask, now_ms: int) -> None:
        self.last_flush_ms = now_ms
        if task.has_lost_nothing:
            self.segments.directory_changed = True  # the next flush repeats all of this work
        elif task.error is not None:
            # After a failed fsync the kernel may have discarded the pages: a second fsync would succeed, although the
            # data is lost.
            self.refuse_appends(f"flush failed: {task.error}")
            self.report_failure(task.error)
        elif task.truncations == self.truncations:
            self.name_unsynced = False
            self.leader_epochs.synced(task.epoch_writes)
            self.recovery_point = max(self.recovery_point, task.end_offset)
            if outlived := self._snapshots.synced(task.snapshots):
                self.segments.deleted_files.add_garbage(outlived)

    def flush(self, now_ms: int = 0, *, snapshots: bool = True) -> None:
        """Flush the log, with or without the producers' snapshots. Raises AppendError (KAFKA_STORAGE_ERROR)."""
        task = self.begin_flush(snapshots=snapshots)
        if task is not None:
            task.run()
            self.end_flush(task, now_ms)
            if task.error is not None:
                raise AppendError(ErrorCode.KAFKA_STORAGE_ERROR, detail=self._trouble.refusal)

    # -- truncation -------------------------------------------------------------------------------------------

    def truncate_to(self, offset: int, now_ms: int = 0) -> None:
        """Remove the batches from `offset` on. Raises OSError, or AppendError after an earlier failure."""
        self._cut(offset, now_ms)
        self.finish_truncation()

    async def truncate_in_pieces(self, offset: int, now_ms: int = 0) -> None:
        """Do the work of `truncate_to`, with some segments at a time, and long reads in pieces.

        The log can be read meanwhile. If this work is interrupted, `finish_truncation` must be called before the next
        append as leader. Other methods that need a finished truncation call `finish_truncation` themselves.
        """
        while len(self.segments) > AT_ONCE and self.segments.bases[-AT_ONCE] > offset:
            self._cut(self.segments.bases[-AT_ONCE], now_ms)
            await turn
        self._cut(offset, now_ms)
        await self._finishing()

    async def _finishing(self) -> None:
        """Do the rest of a truncation, in pieces."""
        work = self._rebuilding
        while work is not None and self._rebuilding is work:
            if step(work):
                break
            await turn

    def finish_truncation(self) -> None:
        """Finish a truncation without interruption, unless the truncation has already failed."""
        work = self._rebuilding
        while work is not None and not step(work):
            pass

    def _cut(self, offset: int, now_ms: int) -> None:
        self._require_whole()
        if offset >= self.log_end_offset:
            # A leader that appended no records may have left its epoch here. The log of the next leader does not
            # contain that epoch.
            self.leader_epochs.truncate_from_end(self.log_end_offset, sync=False)
            return
        segments = self.segments
        if offset <= segments.bases[0]:
            self._cut_fully(offset, now_ms)
            return
        segments[segments.index_at(offset - 1)].prepare_cut(offset)
        self.truncations += 1
        try:
            while segments.bases[-1] >= offset:
                self._remove(segments[-1], now_ms)
            segments.active.truncate_to(offset)
            self._set_end(segments.active.become_active())
        except OSError as error:
            self._refuse_after_cut(error)
            raise

    def _refuse_after_cut(self, error: OSError) -> None:
        # The content on disk is now unknown. An append after the removed part would leave a hole.
        self.refuse_appends(f"a truncation was interrupted: {error}")

    def truncate_fully(self, offset: int, now_ms: int = 0) -> None:
        """Remove all batches and restart at `offset`."""
        self._cut_fully(offset, now_ms)
        self.finish_truncation()

    async def truncate_fully_in_pieces(self, offset: int, now_ms: int = 0) -> None:
        """Do the work of `truncate_fully` with some segments at a time, oldest first, as in a deletion.

        If this work is interrupted, the log continues with the remaining segments.
        """
        await self._finishing()  # an earlier rebuild may still read the segments deleted below
        while len(self.segments) > AT_ONCE:
            self.log_start_offset = self.segments.bases[AT_ONCE]
            self.set_high_watermark(self.high_watermark)
            removed = self.segments.remove_first(AT_ONCE, self.config, now_ms)
            self.segments.deleted_files.add_garbage(
                [self._snapshots.forget(segment.base_offset) for segment in removed]
            )
            await turn
        self.truncate_fully(offset, now_ms)

    async def continue_behind(
        self, offset: int, earliest: int, epochs: Sequence[tuple[int, int]], snapshot: bytes, now_ms: int
    ) -> None:
        """Remove all batches, and continue at `offset`: the records from `earliest` on are in remote storage.

        `epochs` has a pair (leader epoch, first offset) for each leader epoch of these records. `snapshot` is the
        producers' snapshot at `offset`. Raises OSError. If this work is interrupted, also by a crash, the log has no
        leader epochs (`lacks_earlier_state`). (Apache Kafka: TierStateMachine)
        """
        await self.truncate_fully_in_pieces(offset, now_ms)
        if self.tier is not None:
            self.tier.start_offset = earliest
        self._snapshots.put(snapshot, offset)
        self._rebuilding = self._rebuild(offset)
        await self._finishing()
        self.leader_epochs.prepend(list(epochs))

    @property
    def lacks_earlier_state(self) -> bool:
        """Whether a log with remote storage is empty, and does not know what came before."""
        is_behind_tier = self.earliest_offset < self.log_start_offset == self.log_end_offset
        return is_behind_tier and not self.leader_epochs.entries

    def _require_whole(self) -> None:
        if self._trouble.refusal is not None:
            raise AppendError(ErrorCode.KAFKA_STORAGE_ERROR, detail=self._trouble.refusal)

    def _cut_fully(self, offset: int, now_ms: int) -> None:
        self._require_whole()
        self.truncations += 1
        try:
            for segment in list(self.segments):
                self._remove(segment, now_ms)
            self.segments.add(offset, self.config, now_ms)
            self.log_start_offset = offset
            self._set_end(offset)
            self.leader_epochs.clear()
        except OSError as error:
            self._refuse_after_cut(error)
            raise

    def _set_end(self, offset: int) -> None:
        self.producers.taking = None
        self.log_end_offset = offset
        self.log_start_offset = min(self.log_start_offset, offset)
        self.recovery_point = min(self.recovery_point, offset)
        self.high_watermark = min(max(self.high_watermark, self.log_start_offset), offset)
        if self.maturity is not None:
            self.maturity.cut(offset)
        if self.tier is not None:
            self.tier.end_offset = min(self.tier.end_offset, offset)  # other records may follow, without a copy
        self.leader_epochs.truncate_from_end(offset, sync=False)
        self._snapshots.remove_outside(-1, offset)
        if self._rebuilding is not None:
            self._rebuilding.close()
        self._rebuilding = self._rebuild(offset)

    async def _rebuild(self, end_offset: int) -> None:
        """Rebuild the producers' state. Until this is done, the old state applies, with every open transaction."""
        fresh = ProducerState()
        try:
            await rebuild_in_pieces(fresh, self._snapshots, list(self.segments.items), end_offset)
        except OSError as error:
            self.refuse_appends(f"the producers could not be found again: {error}")
            raise
        fresh.on_high_watermark(self.high_watermark)
        self.producers = fresh
        self._rebuilding = None

    def _remove(self, segment: Segment, now_ms: int) -> None:
        self.segments.remove(segment, self.config, now_ms)
        self._snapshots.remove(segment.base_offset)
