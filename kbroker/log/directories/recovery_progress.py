"""The recovery of a log directory: its threads, and its progress.

Owns the threads that open partitions and complete directories, and the progress lines of a long recovery. After an
unclean stop, most of the time is spent on reading and on computing CRCs. Both release the interpreter lock, so threads
work in parallel. After a clean stop neither work is necessary, and one thread is faster. Never reads a log.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from kbroker.log.files import LOG_SUFFIX, offset_of

_EVERY_SECONDS: Final = 5.0
# The number of bytes below which threads take more time than they save.
WORTH_THREADS: Final = 32 << 20

K = TypeVar("K")
T = TypeVar("T")

logger = logging.getLogger(__name__)


class RecoveryStopped(Exception):  # noqa: N818 - nothing went wrong
    """The recovery was stopped; the logs that it has not reached are unchanged."""


class RecoveryProgress:
    """Counts recovered bytes of `directory`; logs the progress every few seconds, and the total at the end.

    Several threads may report. `logs` is Kafka's gauge remainingLogsToRecover; `percent` is the number in the log
    lines.
    """

    __slots__ = ("_clock", "_directory", "_lock", "_logged", "_started", "_stopped", "done", "logs", "total")

    def __init__(self, directory: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._directory = directory
        self._clock = clock
        self._lock = threading.Lock()
        self._stopped = False
        self.begin(0, 0)

    def begin(self, total: int, logs: int) -> None:
        """Start with the expected bytes (an estimate from the files' sizes) and the number of partitions."""
        self._started = self._logged = self._clock()
        self.total, self.logs = total, logs
        self.done = 0
        if total:
            logger.info(
                "%s was not closed cleanly: up to %d bytes in %d partition(s) are read and checked",
                self._directory,
                total,
                logs,
            )

    def stop(self) -> None:
        """End the recovery after the current segments are read; any thread may call this."""
        self._stopped = True

    @property
    def percent(self) -> int:
        """The share of the bytes that has been read, 0-100."""
        return min(100 * self.done // max(self.total, 1), 100)

    def add(self, size: int) -> None:
        """Count `size` more bytes that have been read. Raises RecoveryStopped after `stop`."""
        if self._stopped:
            raise RecoveryStopped
        with self._lock:
            self.done += size
            now = self._clock()
            if now - self._logged < _EVERY_SECONDS:
                return
            self._logged = now
        logger.info(
            "recovering %s: %d %% of %.1f GB, %d partitions left",
            self._directory,
            self.percent,
            self.total / 1e9,
            self.logs,
        )

    def end(self) -> None:
        """Log the total if the recovery took at least a second."""
        seconds = self._clock() - self._started
        if self.done and seconds >= 1:
            logger.info("recovered %.1f GB in %s in %.0f s", self.done / 1e9, self._directory, seconds)


def bytes_to_recover(directories: Iterable[tuple[str, int]]) -> int:
    """Return the number of bytes from the recovery points on, for pairs (partition directory, recovery point)."""
    total = 0
    for directory, recovery_point in directories:
        names = [entry for entry in os.scandir(directory) if entry.name.endswith(LOG_SUFFIX)]
        sizes = sorted((base, entry.stat().st_size) for entry in names if (base := offset_of(entry.name)) is not None)
        first = max(bisect_right([base for base, _ in sizes], recovery_point) - 1, 0)
        total += sum(size for _, size in sizes[first:])
    return total


def run_all(tasks: Iterable[tuple[K, Callable[[], T]]], threads: int) -> Iterator[tuple[K, T]]:
    """Run named tasks on `threads` threads and yield their results in the order of `tasks`.

    Raise the exception of the first task that fails; tasks that have not begun by then are skipped.
    """
    if threads < 2:
        yield from ((name, task()) for name, task in tasks)
        return
    pool = ThreadPoolExecutor(threads, thread_name_prefix="recovery")
    try:
        for name, future in [(name, pool.submit(task)) for name, task in tasks]:
            yield name, future.result()
    finally:
        pool.shutdown(cancel_futures=True)
