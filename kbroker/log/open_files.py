"""The limit of open files of segments.

Owns the limit, and the choice of the segment that closes its files when another segment needs descriptors. Never opens
or closes a file itself: segments do, and open their files again when needed.

An open segment uses up to three descriptors (for its log and two mapped indexes) and two mappings. The process limits
descriptors (RLIMIT_NOFILE) and the kernel limits mappings (vm.max_map_count, 65,530 unless changed), and the number of
segments depends on clients and configs. Half of the descriptors are for segments, the other half for connections and
all other uses. If the other half is nevertheless used up, segments immediately close files.

The choice uses the clock algorithm: the segment that opened its files first closes them, if they have not been used
since the last check. So it is not necessary to record the order in which open files are used.
"""

from __future__ import annotations

import contextlib
import errno
import resource
import threading
from collections.abc import Callable
from typing import Final, Protocol, TypeVar
from weakref import WeakSet

_PER_SEGMENT: Final = 3
_MOST: Final = 16_000  # each has two mappings, so half of vm.max_map_count stays free
_FEWEST: Final = 16
_KEPT_AT_ONCE: Final = 64  # the maximum number of segments in use that one choice skips, to limit its time
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})  # ENOMEM: too many mappings

T = TypeVar("T")


class Holder(Protocol):
    """A segment with open files."""

    def release(self) -> None:
        """Close the files, and call `OpenFiles.closed`."""

    def was_used(self) -> bool:
        """Whether the files have been used since the last call."""


def most_segments(descriptors: int) -> int:
    """Return the maximum number of segments with open files, computed from the process's limit of descriptors."""
    return max(_FEWEST, min(_MOST, descriptors // 2 // _PER_SEGMENT))


class OpenFiles:
    """The segments with open files of one broker, or of another owner of logs; at most `most` at a time.

    Belongs to the thread that uses it first: no other thread may close a file that this thread is using.
    """

    def __init__(self, most: int | None = None) -> None:
        """Set the limit to `most`, or compute it from the process's current limit of descriptors."""
        self.most = most or most_segments(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        self._ring: dict[Holder, None] = {}  # the first segment is checked next
        self._kept: WeakSet[Holder] = WeakSet()
        self._thread = 0
        with _all_lock:
            _all.add(self)

    @property
    def count(self) -> int:
        """The number of segments with open files."""
        return len(self._ring) + len(self._kept)

    def opened(self, segment: Holder) -> None:
        """Count a segment that has just opened files; other segments may have to close their files."""
        self._thread = self._thread or threading.get_ident()
        self._ring.pop(segment, None)  # moves an already counted segment to the end, so that it is not checked next
        self._ring[segment] = None
        while len(self._ring) > self.most:
            self._give_up_one()

    def closed(self, segment: Holder) -> None:
        """Record that a segment has no open files any more."""
        self._ring.pop(segment, None)

    def keep(self, segment: Holder) -> None:
        """Count the open files of a deleted segment until its readers end.

        Raises OSError if too many such segments have readers.
        """
        if len(self._kept) >= max(1, self.most // 4):
            raise OSError(errno.EMFILE, "too many deleted segments are being read")
        self._kept.add(segment)

    def _give_up_one(self) -> None:
        ring = self._ring
        kept = 0
        while len(ring) > 1:
            oldest = next(iter(ring))
            del ring[oldest]
            if kept < _KEPT_AT_ONCE and oldest.was_used():
                ring[oldest] = None
                kept += 1
            else:
                with contextlib.suppress(OSError):  # if trimming an index fails, the next opening checks the index
                    oldest.release()
                return

    def give_up_some(self) -> bool:
        """Close the files of half of the segments, least recently used first; return whether any were closed."""
        before = len(self._ring)
        if self._thread != threading.get_ident() or before < 2:
            return False
        for _ in range(before - before // 2):
            self._give_up_one()
        return len(self._ring) < before


_all: WeakSet[OpenFiles] = WeakSet()
_all_lock = threading.Lock()  # several threads open logs and register here


def _everybodys() -> list[OpenFiles]:
    with _all_lock:
        return list(_all)


def retried(work: Callable[[], T]) -> T:
    """Run `work`, which opens a file. If no descriptor is left, make segments close files, then run `work` again."""
    try:
        return work()
    except OSError as error:
        if error.errno not in _EXHAUSTED or not sum(each.give_up_some() for each in _everybodys()):
            raise
    return work()
