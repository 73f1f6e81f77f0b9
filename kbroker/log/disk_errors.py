"""What an error of the disk means: for one log here, for its directory in directories/log_directory.py.

Owns which errors pass of themselves (a full disk, no descriptors left) and which end the use of a directory, and why a
log takes no more appends. In a cluster a full disk ends it as well, as in Kafka: others can lead what it held.
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
_COMPLAIN_EVERY_MS: Final = 10_000
_DAMAGE_EVERY_MS: Final = 60_000

logger = logging.getLogger(__name__)


class UnplacedError(OSError):
    """A partition that has no place by its name, or where a link lies in its place: its directory is not to blame."""


def passes(error: OSError) -> bool:
    """Whether an error is of the machine or the process, and over once there is room again."""
    return error.errno in _PASSING


def ends_directory(error: OSError, *, in_cluster: bool) -> bool:
    """Whether a log directory is used no more after an error.

    In a cluster a full disk is such an error, as others can lead what it holds: a leader that only refuses would keep
    its partitions from being written to. A broker alone refuses what needs room until there is some.
    """
    if isinstance(error, UnplacedError):
        return False
    return not passes(error) or (in_cluster and error.errno in FULL)


class DiskTrouble:
    """What failed reads, writes and flushes have done to one log."""

    __slots__ = ("_complained_ms", "_name", "_told_damage_ms", "damaged_at", "refusal", "report")

    def __init__(self, name: str, report: Callable[[OSError], None]) -> None:
        """`report` hears of every failure, and decides what it means for the other logs of the directory."""
        self._name = name
        self._complained_ms = self._told_damage_ms = -_COMPLAIN_EVERY_MS
        self.report = report
        self.refusal: str | None = None
        """Why no more is appended, as what is on disk can no longer be known; None while all is well."""

        self.damaged_at: int | None = None
        """The offset at which a read last found that the files make no sense; None if none has."""

    def refuse(self, reason: str) -> None:
        self.refusal = reason

    def found_damage(self, offset: int, now_ms: int) -> None:
        """Hear of a read that found damage; a line a minute is enough: readers try again."""
        if self.damaged_at is None or now_ms - self._told_damage_ms >= _DAMAGE_EVERY_MS:
            self._told_damage_ms = now_ms
            logger.error("%s: the log is damaged at offset %d: readers get CORRUPT_MESSAGE", self._name, offset)
        self.damaged_at = offset

    def append_failed(self, error: OSError, now_ms: int) -> None:
        """Hear of an append that failed; clients try again many times a second, so not each is worth a line."""
        if getattr(error, "unrepaired", False):
            self.refuse(f"the file could not be cut back after: {error}")
        if now_ms - self._complained_ms >= _COMPLAIN_EVERY_MS:
            self._complained_ms = now_ms
            logger.error("%s: append failed: %s", self._name, error)
        self.report(error)
