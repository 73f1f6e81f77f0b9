"""The move of one partition to another log directory while it is in use (KIP-113).

Owns the copy: rounds on a thread of its own, each of what has been appended since the last one, until the rest is small
enough to be copied while the event loop waits. Never takes a log into or out of service: log_dirs.py does.

The copy is the same files, byte for byte, so what was checked once stays checked. A sealed segment does not change; the
active one only grows; a segment that is deleted, rolled or compacted meanwhile is noticed, and copied anew or dropped.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

from kbroker.log import checkpoints
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
)
from kbroker.log.partition_log import PartitionLog
from kbroker.log.producer_entry import write_snapshot
from kbroker.log.segment import Segment

if TYPE_CHECKING:
    from kbroker.log.log_manager import LogManager

_CHUNK = 4 * 1024 * 1024
_SMALL = 1024 * 1024
"""What may be left to copy on the event loop: some 2 ms."""


class _Part(NamedTuple):
    """Bytes `position` to `end` of a segment's open log file; `path` is the segment's name in the copy."""

    segment: Segment
    handle: FileHandle
    path: str
    position: int
    end: int
    sealed: bool


class Move:
    """One move under way."""

    def __init__(self, log: PartitionLog, target: LogManager, bytes_per_second: float) -> None:
        """Begin to copy; raises OSError."""
        self.log = log
        self.target = target
        self.path = target.future_path(log.topic, log.partition)
        self.offset = log.log_start_offset
        """Where the copy is whole up to, once the round under way has ended."""
        self._rate = bytes_per_second
        self._copied: dict[int, tuple[Segment, int, bool]] = {}
        self._truncations = log.truncations
        self._stopped = threading.Event()
        os.makedirs(self.path)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="kbroker-move")
        self._round: Future[None] | None = None
        self._begin_round()

    @property
    def size(self) -> int:
        """Bytes copied, those of the round under way included."""
        return sum(size for _, size, _ in self._copied.values())

    def is_ready(self) -> bool:
        """Whether so little is left that `finish` may be called; begins another round otherwise. Raises OSError."""
        if self._round is not None:
            if not self._round.done():
                return False
            ended, self._round = self._round, None
            ended.result()
        if sum(part.end - part.position for part in self._parts()) <= _SMALL:
            return True
        self._begin_round()
        return False

    def finish(self, now_ms: int) -> PartitionLog:
        """Copy the rest and open the copy; raises OSError. Nothing may be appended before the log has been replaced."""
        log = self.log
        self.stop()
        log.roll(now_ms)  # the indexes of all that has data are whole on disk then
        self._copy_all(self._parts(), float("inf"), threading.Event())
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
        moved = PartitionLog(
            self.path,
            log.topic,
            log.partition,
            log.config,
            now_ms=now_ms,
            log_start_offset=log.log_start_offset,
            high_watermark=log.high_watermark,
        )
        if (moved.log_start_offset, moved.log_end_offset) != (log.log_start_offset, log.log_end_offset):
            raise OSError(f"the copy ends at {moved.log_end_offset}, the log at {log.log_end_offset}")
        return moved

    def stop(self) -> None:
        """End the thread; what it copied stays where it is."""
        self._stopped.set()
        self._pool.shutdown()

    # -- rounds

    def _begin_round(self) -> None:
        if self._truncations != self.log.truncations:
            self._truncations = self.log.truncations
            self._copied.clear()
        parts = self._parts()
        for part in parts:
            self._copied[part.segment.base_offset] = (part.segment, part.end, part.sealed)
        self.offset = self.log.log_end_offset
        self._round = self._pool.submit(self._copy_all, parts, self._rate, self._stopped)

    def _parts(self) -> list[_Part]:
        """Return what is missing in the copy. Another object for a segment is another file: it was compacted."""
        parts = []
        for segment in self.log.segments:
            sealed = segment is not self.log.active
            copied = self._copied.get(segment.base_offset)
            if copied == (segment, segment.size, sealed):
                continue
            begin = copied[1] if copied is not None and copied[0] is segment else 0
            name = offset_name(self.path, segment.base_offset, "")
            parts.append(_Part(segment, segment.handle, name, begin, segment.size, sealed))
        return parts

    @staticmethod
    def _copy_all(parts: list[_Part], rate: float, stopped: threading.Event) -> None:
        for part in parts:
            _copy(part, stopped, rate)
            if part.sealed:
                for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX):
                    _copy_file(part.segment.path(suffix), part.path + suffix)
                _copy_file(part.segment.path(SNAPSHOT_SUFFIX), part.path + SNAPSHOT_SUFFIX)


def _copy(part: _Part, stopped: threading.Event, rate: float) -> None:
    fd = os.open(part.path + LOG_SUFFIX, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.ftruncate(fd, part.position)
        os.lseek(fd, part.position, os.SEEK_SET)
        position = part.position
        while position < part.end and not stopped.is_set():
            began = time.monotonic()
            copied = os.sendfile(fd, part.handle.fd, position, min(_CHUNK, part.end - position))
            if not copied:
                raise OSError(f"{part.path}: the source is shorter than it was")
            position += copied
            stopped.wait(max(copied / rate - (time.monotonic() - began), 0))
        os.fsync(fd)
    finally:
        os.close(fd)


def _copy_file(source: str, target: str) -> None:
    with contextlib.suppress(FileNotFoundError), open(source, "rb") as file:
        content = file.read()
        with open(target, "wb") as copy:
            copy.write(content)
            os.fsync(copy.fileno())
