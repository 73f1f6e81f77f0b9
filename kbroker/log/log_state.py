"""The parts of a partition's log, its opening, and its flushes.

Owns its offsets, and whether it accepts appends. The subclasses (truncation.py, appending.py, partition_log.py) keep
segments, producers and leader epochs consistent with them. Never moves the high watermark by itself.

log_start_offset <= last_stable_offset <= high_watermark <= log_end_offset, at all times.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Coroutine
from itertools import chain
from typing import Any

from kbroker.log import checkpoints
from kbroker.log.append_info import AppendError
from kbroker.log.append_validation import BatchRules
from kbroker.log.disk_errors import DiskTrouble
from kbroker.log.flush_task import FlushTask
from kbroker.log.log_config import LogConfig
from kbroker.log.open_files import OpenFiles
from kbroker.log.recovery import load_log
from kbroker.log.timestamp_search import TimestampSearch
from kbroker.long_work import whole
from kbroker.protocol.errors import ErrorCode

Work = Callable[[], Coroutine[Any, Any, None]]
"""Creates a coroutine of long work."""


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
        "high_watermark",
        "last_flush_ms",
        "leader_epochs",
        "log_end_offset",
        "log_start_offset",
        "may_have_holes",
        "name_unsynced",
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
        later: Callable[[Work], None] = lambda make: whole(make()),
        on_holes: Callable[[], None] = lambda: None,
    ) -> None:
        """Open the directory, which must exist; the offsets come from the checkpoints.

        `compacted` means that the log has been compacted at some time, and may have holes. No segment that begins at
        `uncompacted_from` or later has holes (None: unknown). `progress` gets the bytes that recovery has read,
        `on_disk_error` every later failure of the disk: the owner of the directory decides what it means for the other
        logs. `files` bounds how many segments have files open, of this log and of others; without it the log has its
        own bound. A log that has just been opened holds no file.
        `later` gets work in pieces that an append must not wait for. `on_holes` is called before the first hole that a
        leader's log leaves in a log without known holes, and may raise OSError.
        """
        self.topic = topic
        self.partition = partition
        self.directory = directory
        self.name_unsynced = False
        """Whether the directory is new, so that a power loss may remove it with all its content."""
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
        self._on_holes = on_holes
        self._rebuilding: Coroutine[Any, Any, None] | None = None  # of the producers, after a truncation
        self._times = TimestampSearch(self.segments)
        self._trouble = DiskTrouble(self._rules.name, on_disk_error)
        self.log_start_offset = loaded.log_start_offset
        self.log_end_offset = loaded.log_end_offset
        self.recovery_point = loaded.recovery_point
        self.high_watermark = min(max(high_watermark, self.log_start_offset), self.log_end_offset)
        self.producers.on_high_watermark(self.high_watermark)  # it may never move again
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
    def size(self) -> int:
        """Bytes of all log files."""
        return self.segments.size

    def set_topic_id(self, topic_id: uuid.UUID) -> None:
        """Write the topic id; raises OSError."""
        checkpoints.write_topic_id(self.directory, topic_id)
        self.topic_id = topic_id

    def update_config(self, config: LogConfig) -> None:
        """Use other settings from now on; index settings apply from the next segment on."""
        self.config = config
        self.may_have_holes |= config.compact
        self._rules = BatchRules(self._rules.name, config)

    @property
    def failed(self) -> bool:
        """Whether appends are refused because the content on disk is no longer known."""
        return self._trouble.refusal is not None

    def refuse_appends(self, reason: str) -> None:
        """Refuse all further appends: the content on disk is no longer known."""
        self._trouble.refuse(reason)

    @property
    def damaged_at(self) -> int | None:
        """The offset at which a read found damage, if it is still part of the log."""
        offset = self._trouble.damaged_at
        return offset if offset is not None and self.log_start_offset <= offset < self.log_end_offset else None

    def report_damage(self, offset: int, now_ms: int) -> None:
        """Handle a reader's report of damage at an offset."""
        self._trouble.found_damage(offset, now_ms)

    def report_failure(self, error: OSError) -> None:
        """Handle a reader's report of a failed read."""
        self._trouble.report(error)

    def set_high_watermark(self, offset: int) -> None:
        """Set the high watermark, bounded by the log's start and end."""
        offset = min(max(offset, self.log_start_offset), self.log_end_offset)
        self.high_watermark = offset
        if self.producers.unreplicated:
            self.producers.on_high_watermark(offset)

    def begin_flush(self, *, snapshots: bool = True) -> FlushTask | None:
        """Return the work of a flush, which may run on another thread; None if all is on disk.

        Without `snapshots` those of the producers are left to the next flush: there may be megabytes of them.
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
        """Whether closed segments, or snapshots of the producers, are not on disk yet."""
        return self.recovery_point < self.segments.active.base_offset or bool(self._snapshots.unsynced)

    def end_flush(self, task: FlushTask, now_ms: int) -> None:
        self.last_flush_ms = now_ms
        if task.has_lost_nothing:
            self.segments.directory_changed = True  # the next flush does everything
        elif task.error is not None:
            # After a failed fsync the kernel may have dropped the pages: a second fsync would succeed and prove
            # nothing.
            self.refuse_appends(f"flush failed: {task.error}")
            self.report_failure(task.error)
        elif task.truncations == self.truncations:
            self.name_unsynced = False
            self.leader_epochs.synced(task.epoch_writes)
            self.set_recovery_point(max(self.recovery_point, task.end_offset))
            if outlived := self._snapshots.synced(task.snapshots):
                self.segments.doomed.add_garbage(outlived)

    def set_recovery_point(self, offset: int) -> None:
        """Count everything before `offset` as on disk, and nothing else."""
        self.recovery_point = offset

    def flush(self, now_ms: int = 0, *, snapshots: bool = True) -> None:
        """Write everything to disk, or all but the producers' snapshots; raises AppendError(KAFKA_STORAGE_ERROR)."""
        task = self.begin_flush(snapshots=snapshots)
        if task is not None:
            task.run()
            self.end_flush(task, now_ms)
            if task.error is not None:
                raise AppendError(ErrorCode.KAFKA_STORAGE_ERROR, detail=self._trouble.refusal)
