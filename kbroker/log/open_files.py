"""How many files of segments are open at a time.

Owns the bound, and which segment gives its files up when another one needs some. Never opens or closes a file itself:
a segment does, and opens them again when it is asked for something.

An open segment takes up to three descriptors (its log and, mapped, two indexes) and two mappings. The process has a
limit of the first (RLIMIT_NOFILE) and the kernel one of the second (vm.max_map_count, 65,530 unless changed), and
partitions have as many segments as clients and configs make. Half of the descriptors are for segments, the other half
is for connections and all else; where that other half is used up nevertheless, segments give theirs up at once.

Which one gives up is found as a clock does it: the one that was opened first, unless it has been used since it was
last looked at. So nothing has to be noted where a file that is open is used.
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
_MOST: Final = 16_000  # two mappings each leave half of vm.max_map_count to others
_FEWEST: Final = 16
_SPARED_AT_ONCE: Final = 64  # of those looked at in one go, so that a look is short however many are in use
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})  # ENOMEM: too many mappings

T = TypeVar("T")


class Holder(Protocol):
    """A segment that has files open."""

    def release(self) -> None:
        """Close them, and say so by `OpenFiles.closed`."""

    def was_used(self) -> bool:
        """Whether they have been used since this was last asked."""


def most_segments(descriptors: int) -> int:
    """Return how many segments may have files open where the process may have so many descriptors."""
    return max(_FEWEST, min(_MOST, descriptors // 2 // _PER_SEGMENT))


class OpenFiles:
    """The segments with open files of one broker, or of whoever else opens logs; at most `most` at a time.

    Belongs to the thread that uses it first: no other may take a file away that this one is using.
    """

    def __init__(self, most: int | None = None) -> None:
        """Derive `most` from the process's limit of descriptors as it is now, unless it is told."""
        self.most = most or most_segments(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        self._ring: dict[Holder, None] = {}  # the one that is looked at next comes first
        self._kept: WeakSet[Holder] = WeakSet()
        self._thread = 0
        with _all_lock:
            _all.add(self)

    @property
    def count(self) -> int:
        """How many segments have files open."""
        return len(self._ring) + len(self._kept)

    def opened(self, segment: Holder) -> None:
        """Count a segment that has just opened files; others may lose theirs."""
        self._thread = self._thread or threading.get_ident()
        self._ring.pop(segment, None)  # it goes last, also if it was counted: what opens a file must not lose another
        self._ring[segment] = None
        while len(self._ring) > self.most:
            self._give_up_one()

    def closed(self, segment: Holder) -> None:
        """Note that a segment has no file open any more."""
        self._ring.pop(segment, None)

    def keep(self, segment: Holder) -> None:
        """Count the files of a deleted segment that somebody still reads, open until nobody does; raises OSError."""
        if len(self._kept) >= max(1, self.most // 4):
            raise OSError(errno.EMFILE, "too many deleted segments are being read")
        self._kept.add(segment)

    def _give_up_one(self) -> None:
        ring = self._ring
        spared = 0
        while len(ring) > 1:
            oldest = next(iter(ring))
            del ring[oldest]
            if spared < _SPARED_AT_ONCE and oldest.was_used():
                ring[oldest] = None
                spared += 1
            else:
                with contextlib.suppress(OSError):  # an index that could not be trimmed is looked at when it is opened
                    oldest.release()
                return

    def give_up_some(self) -> bool:
        """Let half of the segments close their files, those that have not been used for longest; whether any could."""
        before = len(self._ring)
        if self._thread != threading.get_ident() or before < 2:
            return False
        for _ in range(before - before // 2):
            self._give_up_one()
        return len(self._ring) < before


_all: WeakSet[OpenFiles] = WeakSet()
_all_lock = threading.Lock()  # logs are opened, and files needed, on several threads


def _everybodys() -> list[OpenFiles]:
    with _all_lock:
        return list(_all)


def retried(work: Callable[[], T]) -> T:
    """Do what opens a file; if there is no descriptor left, have segments give some up and do it once more."""
    try:
        return work()
    except OSError as error:
        if error.errno not in _EXHAUSTED or not sum(each.give_up_some() for each in _everybodys()):
            raise
    return work()
