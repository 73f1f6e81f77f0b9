"""The move of one partition to another log directory while it is in use (KIP-113).

Owns the copy: a thread, which all moves share, copies the log until little data is left; the rest is copied while the
event loop waits. Never starts or stops using a log: log_manager.py does.

The copy consists of the same files with the same bytes, so checked batches remain checked. A sealed segment does not
change; the active segment only grows. A segment that is deleted, rolled or compacted meanwhile is detected, and then
copied again or removed. The thread reads only the list of segments and each segment's size from the log's state. The
event loop replaces the list, and each size, in one step.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, wait
from typing import NamedTuple

from kbroker.log import checkpoints
from kbroker.log.directories.log_directory import LogDirectory
from kbroker.log.files import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    FileHandle,
    offset_name,
    remove_quietly,
    sync_directory,
    sync_file,
)
from kbroker.log.invariants import log_class
from kbroker.log.partition_log import PartitionLog
from kbroker.log.producers.producer_snapshots import write_snapshot
from kbroker.log.recovery import LastStop
from kbroker.log.segment.segment import Segment

_CHUNK = 4 * 1024 * 1024
_ASK_AGAIN_SECONDS = 0.5
_SMALL = 1024 * 1024
"""The maximum number of remaining bytes that the event loop may copy, which takes about 2 ms."""


class SourceError(OSError):
    """The log that is being moved could not be read or rolled. The target directory is not the cause."""


class _SegmentReplaced(Exception):  # noqa: N818 - nothing went wrong
    """The segment was deleted or compacted after the list of parts was made."""


class _Part(NamedTuple):
    """Bytes `position` to `end` of a segment's log file; `path` is the segment's name in the copy."""

    segment: Segment
    path: str
    position: int
    end: int
    sealed: bool


class Move:
    """One running move."""

    def __init__(
        self,
        log: PartitionLog,
        target: LogDirectory,
        pool: Executor,
        bytes_per_second: Callable[[], float],
        wake: Callable[[], object],
    ) -> None:
        """Start copying when a thread of `pool` is free. Raises OSError.

        `bytes_per_second` is called repeatedly; 0 pauses the copy. `wake` is called on the thread after each run.
        """
        self.log = log
        self.target = target
        self.path = target.future_path(log.topic, log.partition)
        self.offset = log.log_start_offset
        """The offset up to which the copy is complete."""
        self._rate = bytes_per_second
        self._wake = wake
        self._copied: dict[int, tuple[Segment, int, bool]] = {}
        self._truncations = log.truncations
        self._first_open = log.segments.active.base_offset
        self._synced_to = log.log_start_offset
        self._unsynced: set[str] = set()
        self._stopped = threading.Event()
        os.makedirs(self.path)
        self._pool = pool
        self._chasing = self._begin()

    @property
    def size(self) -> int:
        return sum(size for _, size, _ in self._copied.values())

    def is_ready(self) -> bool:
        """Return whether little data is left, so that `finish` can be called.

        Otherwise continue copying. Raises OSError.
        """
        if not self._chasing.done():
            return False
        self._chasing.result()
        if self._truncations == self.log.truncations and _bytes(self._parts()) <= 4 * _SMALL:
            return True
        self._chasing = self._begin()
        return False

    def finish(self, now_ms: int) -> PartitionLog:
        """Copy the remaining data and open the copy. Raises OSError on failure.

        No records may be appended until the copy has replaced the log.
        """
        log = self.log
        self.stop()
        self._stopped.clear()
        try:
            log.roll(now_ms)  # this completes the indexes of all data on disk
        except OSError as error:
            raise SourceError(error.errno, error.strerror) from error
        self._copy_all(self._parts(), _unlimited)
        for segment in log.segments:
            if segment.base_offset >= self._first_open:
                self._copy_beside(segment)  # sealing may have changed these files after the copy
        if log.recovery_point > self._synced_to:
            self._sync()  # flushed data must also be durable in the copy
        keep = {segment.base_offset for segment in log.segments}
        for base in self._copied.keys() - keep:
            for suffix in (*SEGMENT_SUFFIXES, SNAPSHOT_SUFFIX):
                remove_quietly(offset_name(self.path, base, suffix))
        checkpoints.write_epochs(f"{self.path}/{checkpoints.LEADER_EPOCHS}", log.leader_epochs.entries)
        if log.topic_id is not None:
            checkpoints.write_topic_id(self.path, log.topic_id)
        if log.log_end_offset:
            path = offset_name(self.path, log.log_end_offset, SNAPSHOT_SUFFIX)
            write_snapshot(path, log.producers.entries.values(), sync=True)
        sync_directory(self.path)
        moved = log_class()(
            self.path,
            log.topic,
            log.partition,
            log.config,
            now_ms=now_ms,
            stop=LastStop(
                log_start_offset=log.log_start_offset,
                high_watermark=log.high_watermark,
                compacted=log.may_have_holes,
            ),
            host=self.target.host((log.topic, log.partition)),
        )
        if (moved.log_start_offset, moved.log_end_offset) != (log.log_start_offset, log.log_end_offset):
            raise OSError(f"the copy ends at {moved.log_end_offset}, the log at {log.log_end_offset}")
        if moved.maturity is not None and log.maturity is not None:
            moved.maturity.end = log.maturity.end  # consumers may have read these records
        moved.recovery_point = max(log.recovery_point, min(self._synced_to, moved.log_end_offset))
        return moved

    def stop(self) -> None:
        """Stop the thread's work; keep the copied files."""
        self._stopped.set()
        if not self._chasing.cancel():
            wait([self._chasing])

    # -- the chase

    def _begin(self) -> Future[None]:
        if self._truncations != self.log.truncations:
            self._truncations = self.log.truncations
            self._copied.clear()
        chasing = self._pool.submit(self._chase)
        chasing.add_done_callback(lambda _: self._wake())
        return chasing

    def _chase(self) -> None:
        """Copy until little is left, sync the copy, and copy the data that was appended meanwhile."""
        self._catch_up()
        # the end is read before the segments' sizes, so that the sizes include all data before the end
        end = self.log.log_end_offset
        self._copy_all(self._parts(), self._rate)
        self._sync()
        self._synced_to = end
        self._catch_up()

    def _catch_up(self) -> None:
        end, parts = self.log.log_end_offset, self._parts()
        while _bytes(parts) > _SMALL and not self._stopped.is_set():
            self._copy_all(parts, self._rate)
            self.offset = end
            end, parts = self.log.log_end_offset, self._parts()

    def _parts(self) -> list[_Part]:
        """Return the parts that the copy lacks.

        If a segment has a new object, its file is also new, because the segment was compacted.
        """
        parts = []
        for segment in list(self.log.segments):
            sealed = segment is not self.log.segments.active
            copied = self._copied.get(segment.base_offset)
            if copied == (segment, segment.size, sealed):
                continue
            begin = copied[1] if copied is not None and copied[0] is segment else 0
            name = offset_name(self.path, segment.base_offset, "")
            parts.append(_Part(segment, name, begin, segment.size, sealed))
        return parts

    def _copy_all(self, parts: list[_Part], rate: Callable[[], float]) -> None:
        for part in parts:
            try:
                _copy(part, self._stopped, rate)
            except _SegmentReplaced:
                continue
            self._unsynced.add(part.path + LOG_SUFFIX)
            if part.sealed:
                self._copy_beside(part.segment)
            if self._stopped.is_set():
                return
            self._copied[part.segment.base_offset] = (part.segment, part.end, part.sealed)

    def _copy_beside(self, segment: Segment) -> None:
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, SNAPSHOT_SUFFIX):
            target = offset_name(self.path, segment.base_offset, suffix)
            with contextlib.suppress(FileNotFoundError), open(segment.path(suffix), "rb") as file:
                content = file.read()
                with open(target, "wb") as copy:
                    copy.write(content)
                self._unsynced.add(target)

    def _sync(self) -> None:
        while self._unsynced:
            sync_file(self._unsynced.pop())
        sync_directory(self.path)


def _bytes(parts: list[_Part]) -> int:
    return sum(part.end - part.position for part in parts)


def _unlimited() -> float:
    return float("inf")


def _copy(part: _Part, stopped: threading.Event, rate: Callable[[], float]) -> None:
    try:
        # Use a separate descriptor, because the event loop may close the log's descriptors.
        source = FileHandle(part.segment.path(), os.O_RDONLY)
    except FileNotFoundError as error:
        if part.segment.deleted:
            raise _SegmentReplaced from error
        raise SourceError(error.errno, error.strerror) from error
    if part.segment.deleted:
        raise _SegmentReplaced  # the segment's name may now belong to another file
    fd = os.open(part.path + LOG_SUFFIX, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.ftruncate(fd, part.position)
        os.lseek(fd, part.position, os.SEEK_SET)
        position = part.position
        while position < part.end and not stopped.is_set():
            began = time.monotonic()
            copied = _copy_some(fd, source, part, position)
            position += copied
            _pay(copied, began, stopped, rate)
    finally:
        os.close(fd)


def _copy_some(fd: int, source: FileHandle, part: _Part, position: int) -> int:
    size = min(_CHUNK, part.end - position)
    try:
        copied = os.sendfile(fd, source.fd, position, size)
    except OSError:
        try:
            # this read raises OSError if the source, and not the target, has failed
            os.pread(source.fd, size, position)
        except OSError as error:
            raise SourceError(error.errno, error.strerror) from error
        raise
    if not copied:
        raise SourceError(f"{part.path}: the source is shorter than it was")
    return copied


def _pay(size: int, began: float, stopped: threading.Event, rate: Callable[[], float]) -> None:
    """Wait until the rate allows `size` bytes since the time `began`; the rate may change during the wait."""
    while (left := size / max(rate(), 1) - (time.monotonic() - began)) > 0:
        if stopped.wait(min(left, _ASK_AGAIN_SECONDS)):
            return
