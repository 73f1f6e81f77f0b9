"""The thread that flushes the logs of a directory.

Owns the running flushes. Never decides when a flush is due (log_directory.py does).
"""

from __future__ import annotations

import logging
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor

from kbroker.log.log_state import FlushTask
from kbroker.log.partition_log import PartitionLog

logger = logging.getLogger(__name__)

_KEPT = 1000


class Flusher:
    """One thread that flushes logs one after the other; `poll` applies the results on the caller's thread."""

    __slots__ = ("_busy", "_pool", "_running", "flushes", "took")

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._running: deque[tuple[PartitionLog, FlushTask, Future[None]]] = deque()
        self._busy: set[int] = set()
        self.flushes = 0
        self.took: deque[float] = deque(maxlen=_KEPT)
        """The durations of the latest flushes, in seconds; `flushes` is the number of all flushes."""

    def submit(self, log: PartitionLog) -> None:
        """Flush a log on the thread, if the log has unflushed data and no flush of the log is running."""
        if id(log) in self._busy:
            return
        task = log.begin_flush()
        if task is None:
            return
        self._busy.add(id(log))
        self._running.append((log, task, self.pool.submit(task.run)))

    @property
    def pool(self) -> ThreadPoolExecutor:
        """The thread. It may also do other work that waits for the disk."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="kbroker-flush")
        return self._pool

    def poll(self, now_ms: int) -> None:
        """Apply the finished flushes to their logs."""
        while self._running and self._running[0][2].done():
            log, task, work = self._running.popleft()
            self._busy.discard(id(log))
            error = work.exception()
            if error is not None:  # this is not an error of the disk; the flush is retried
                logger.error("%s-%d was not flushed: %r", log.topic, log.partition, error)
                log.segments.directory_changed = True
                continue
            self.flushes += 1
            self.took.append(task.took)
            log.end_flush(task, now_ms)

    def close(self, now_ms: int) -> None:
        """Wait for the running flushes and end the thread."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
        self.poll(now_ms)
