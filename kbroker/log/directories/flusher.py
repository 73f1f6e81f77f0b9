"""Bringing what was written to the disk itself.

Owns the work of one flush, which may block for long and may therefore run on another thread, and that thread. Never
changes a log: a task holds open files and nothing else, and its log hears of it when the owner of the log says so.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from kbroker.log.files import FileHandle, sync_directory

if TYPE_CHECKING:
    from kbroker.log.partition_log import PartitionLog


class FlushTask:
    """What has to be written to disk so that a log is safe up to `end_offset`."""

    __slots__ = ("_directory", "_handles", "_paths", "end_offset", "error", "truncations")

    def __init__(
        self, handles: list[FileHandle], paths: list[str], directory: str | None, end_offset: int, truncations: int
    ) -> None:
        self._handles = handles
        self._paths = paths
        self._directory = directory
        self.end_offset = end_offset
        self.truncations = truncations
        """How often the log had been truncated when the task was made; one more makes it void."""
        self.error: OSError | None = None

    def run(self) -> None:
        """Do the work; a failure is left in `error`."""
        try:
            for handle in self._handles:
                os.fsync(handle.fd)
            for path in self._paths:
                _sync_file(path)
            if self._directory is not None:
                with contextlib.suppress(FileNotFoundError):  # the partition was deleted meanwhile
                    sync_directory(self._directory)
        except OSError as error:
            self.error = error


def _sync_file(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):  # removed meanwhile
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


class Flusher:
    """One thread that flushes logs in turn; results are taken over by `poll`, on the caller's thread."""

    __slots__ = ("_busy", "_pool", "_running")

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._running: deque[tuple[PartitionLog, FlushTask, Future[None]]] = deque()
        self._busy: set[int] = set()

    def submit(self, log: PartitionLog) -> None:
        """Have a log flushed, unless that is under way or there is nothing to flush."""
        if id(log) in self._busy:
            return
        task = log.begin_flush()
        if task is None:
            return
        self._busy.add(id(log))
        self._running.append((log, task, self.pool.submit(task.run)))

    @property
    def pool(self) -> ThreadPoolExecutor:
        """The thread, for other work that waits for the disk."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="kbroker-flush")
        return self._pool

    def poll(self, now_ms: int) -> None:
        """Tell the logs of flushes that are done."""
        while self._running and self._running[0][2].done():
            log, task, _ = self._running.popleft()
            self._busy.discard(id(log))
            log.end_flush(task, now_ms)

    def close(self, now_ms: int) -> None:
        """Wait for what is under way, and end the thread."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
        self.poll(now_ms)
