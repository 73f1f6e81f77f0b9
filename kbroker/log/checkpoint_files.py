"""The offset checkpoints of a log directory, written at once or by a thread.

Owns the order of writes to each file: whatever is asked for last is what stays. Never decides what is written or when.

An fsync of even a small file may wait for everything that clients have written meanwhile, so that the periodic
checkpoints are no work for the event loop.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Executor, Future

from kbroker.log import checkpoints

Offsets = Mapping[tuple[str, int], int]


class CheckpointFile:
    """One `*-offset-checkpoint` file."""

    __slots__ = ("_asked", "_lock", "_pending", "_written", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._asked = 0
        self._written = 0
        self._pending: Future[None] | None = None

    def write(self, offsets: Offsets, *, sync: bool = True) -> None:
        """Write now, after a write that is under way; raises OSError. Without `sync` it holds over a crash only."""
        self._asked += 1
        self._put(self._asked, offsets, sync=sync)

    def write_by(self, pool: Executor, offsets: Offsets) -> None:
        """Have it written by a thread, unless the last such write is not done yet; raises the OSError of that one."""
        if self._pending is not None:
            if not self._pending.done():
                return
            done, self._pending = self._pending, None
            done.result()
        self._asked += 1
        self._pending = pool.submit(self._put, self._asked, offsets)

    def _put(self, number: int, offsets: Offsets, *, sync: bool = True) -> None:
        with self._lock:
            if number > self._written:
                checkpoints.write_offsets(self.path, offsets, sync=sync)
                self._written = number
