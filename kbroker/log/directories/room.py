"""Whether the disk of a log directory has free space.

Owns the state "disk full". A write that fails because the disk is full sets this state. A thread then checks the disk
once a second until there is free space. A successful write does not reset the state, because there may be no more
writes. A single broker continues without free space, and refuses only writes (disk_errors.py); readiness, metrics and
the creation of topics show the state. Never refuses a write itself.
"""

from __future__ import annotations

import logging
import os
from concurrent.futures import Executor, Future
from typing import Final

from kbroker.log.disk_errors import FULL

_CHECK_MS: Final = 1_000
_ASKED_FOR: Final = 64 << 10
"""The bytes that must be free before the disk no longer counts as full."""
_A_PARTITION: Final = 4 << 10
"""The minimum number of bytes that a new partition uses."""

logger = logging.getLogger(__name__)


class Room:
    """The free space of one directory; times in ms."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self.lacking = False
        """Whether a write has found the disk full, and no check has found free space since."""
        self._checked_ms = 0
        self._checking: Future[bool] | None = None

    def on_error(self, error: OSError) -> None:
        """Handle a failed write."""
        if error.errno in FULL and not self.lacking:
            self.lacking = True
            logger.error(
                "%s: the disk is full: requests that need room are refused until there is some", self._directory
            )

    def check(self, now_ms: int, pool: Executor) -> None:
        """Check a full disk once a second on a thread."""
        if not self.lacking:
            return
        if self._checking is not None and self._checking.done():
            checked, self._checking = self._checking, None
            if checked.exception() is None and checked.result():  # a failing disk counts as full
                self.lacking = False
                logger.info("%s: the disk has room again", self._directory)
        elif self._checking is None and now_ms - self._checked_ms >= _CHECK_MS:
            self._checked_ms = now_ms
            self._checking = pool.submit(_has_room, self._directory)

    def has_for(self, partitions: int) -> bool:
        """Whether there may be free space for this many more partitions."""
        if self.lacking:
            return False
        try:
            return _free_bytes(self._directory) >= partitions * _A_PARTITION
        except OSError:
            return True  # the next write raises the error


def _free_bytes(directory: str) -> float:
    """Return the number of bytes that this process may still write. Raises OSError."""
    stat = os.statvfs(directory)
    if not stat.f_blocks:  # ramfs, or a tmpfs without a size: limited only by memory
        return float("inf")
    return (stat.f_bavail if os.geteuid() else stat.f_bfree) * stat.f_frsize  # the reserved blocks are for root


def _has_room(directory: str) -> bool:
    """Return whether the disk has free space; a thread runs this."""
    try:
        fd = os.open(directory, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in FULL:
            return False
        return _free_bytes(directory) >= _ASKED_FOR  # the file system does not support unnamed files
    try:
        os.posix_fallocate(fd, 0, _ASKED_FOR)
    except OSError as error:
        return error.errno not in FULL
    finally:
        os.close(fd)
    return True
