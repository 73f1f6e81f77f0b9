"""The consequences of a disk error for one log (for its directory: directories/log_directory.py).

Owns the list of temporary errors (a full disk, no free descriptors), the list of errors that take a directory offline,
and the reason for which a log refuses appends. In a cluster a full disk also takes its directory offline, as in Kafka:
other brokers can lead the partitions.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from typing import Final

_PASSING: Final = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EFBIG, errno.EINTR}
)
FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_LOG_EVERY_MS: Final = 10_000
_DAMAGE_EVERY_MS: Final = 60_000

logger = logging.getLogger(__name__)


class UnplacedError(OSError):
    """A partition has an invalid name, or its path is a link: the log directory is not the cause."""


def passes(error: OSError) -> bool:
    """Whether an error concerns the machine or the process, and ends when resources are free again."""
    return error.errno in _PASSING


def ends_directory(error: OSError, *, in_cluster: bool) -> bool:
    """Whether an error takes a log directory offline.

    In a cluster a full disk takes the directory offline: other brokers can then lead its partitions. A leader that only
    refuses appends would block all writes. A single broker refuses requests that need disk space until there is free
    space.
    """
    if isinstance(error, UnplacedError):
        return False
    return not passes(error) or (in_cluster and error.errno in FULL)


class DiskTrouble:
    """The effects of failed reads, writes and flushes on one log."""

    __slots__ = ("_logged_ms", "_name", "_reported_damage_ms", "damaged_at", "refusal", "report")

    def __init__(self, name: str, report: Callable[[OSError], None]) -> None:
        """`report` is called with every failure, and decides the consequences for the directory's other logs."""
        self._name = name
        self._logged_ms = self._reported_damage_ms = -_LOG_EVERY_MS
        self.report = report
        self.refusal: str | None = None
        """The reason for refusing appends (the content on disk is no longer known); None if appends are accepted."""

        self.damaged_at: int | None = None
        """The offset at which a read last found damage; None if no read has found damage."""

    def refuse(self, reason: str) -> None:
        self.refusal = reason

    def found_damage(self, offset: int, now_ms: int) -> None:
        """Handle a read that found damage. Log the damage at most once a minute, because readers retry."""
        if self.damaged_at is None or now_ms - self._reported_damage_ms >= _DAMAGE_EVERY_MS:
            self._reported_damage_ms = now_ms
            logger.error("%s: the log is damaged at offset %d: readers get CORRUPT_MESSAGE", self._name, offset)
        self.damaged_at = offset

    def append_failed(self, error: OSError, now_ms: int) -> None:
        """Handle a failed append. Do not log every failure, since clients retry many times a second."""
        if getattr(error, "unrepaired", False):
            self.refuse(f"the file could not be cut back after: {error}")
        if now_ms - self._logged_ms >= _LOG_EVERY_MS:
            self._logged_ms = now_ms
            logger.error("%s: append failed: %s", self._name, error)
        self.report(error)
