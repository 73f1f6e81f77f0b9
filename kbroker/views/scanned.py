"""The known facts about one filter in one partition: ranges without matches, and the offset of the last match.

Owns the memory of these facts, which is limited, and the ends that a view reports. Never reads a log, and never waits.
Offsets are offsets of the source; a range [begin, end) without matches may contain control batches.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable
from typing import Final

from kbroker.filters.filtering import Filter
from kbroker.partition import Waiter

MOST_RANGES: Final = 256
"""The maximum number of ranges. Above this number, the smallest old range is forgotten, and may be scanned again."""
_RECENT: Final = 32
"""The number of recently added or used ranges that are not forgotten, because a slow scan continues from them."""
_MOST_UNSTABLE: Final = 10_000
"""The maximum number of known batches with matches above the last stable offset."""


class Ranges:
    """Disjoint ranges of offsets, in order."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []
        self._used: list[int] = []  # the number of the last use: a higher number is a later use
        self._uses = 0

    def add(self, begin: int, end: int) -> None:
        """Add a range, and join it with its neighbours."""
        if begin >= end:
            return
        first = bisect_left(self._ends, begin)
        last = bisect_right(self._begins, end)
        if first < last:
            begin, end = min(begin, self._begins[first]), max(end, self._ends[last - 1])
        self._begins[first:last] = [begin]
        self._ends[first:last] = [end]
        self._uses += 1
        self._used[first:last] = [self._uses]
        if len(self._begins) > MOST_RANGES:
            recent = sorted(self._used)[-min(_RECENT, MOST_RANGES)]
            old = (index for index, used in enumerate(self._used) if used < recent)
            smallest = min(old, key=lambda index: self._ends[index] - self._begins[index])
            del self._begins[smallest], self._ends[smallest], self._used[smallest]

    def behind(self, offset: int) -> int:
        """Return the end of the range that contains an offset; the offset itself if no range contains it."""
        index = bisect_right(self._begins, offset) - 1
        if index < 0 or self._ends[index] <= offset:
            return offset
        self._uses += 1
        self._used[index] = self._uses
        return self._ends[index]

    def __len__(self) -> int:
        return len(self._begins)


class Selection:
    """The use of one filter on one partition. `filter` is compiled from a view's config."""

    __slots__ = (
        "_stable_last", "_unstable", "attached", "clean_from", "empty", "filter", "floor", "is_known", "last", "upto",
        "used_ms", "waiters",
    )  # fmt: skip

    def __init__(self, wanted: Filter, start: int) -> None:
        """Begin at the offset `start`; nothing is known about earlier offsets."""
        self.filter: Final = wanted
        self.empty = Ranges()
        self.last = -1
        """The last known match; -1 if none is known."""
        self.is_known = False
        """Whether it is known that `last` is the last match before `upto`."""
        self.upto = start
        """The end of the scanned part, while the selection is not attached."""
        self.floor = 0
        """The offset at which a search backwards for the last match may end."""
        self.attached = False
        """Whether new batches are scanned for this filter.

        If so, all batches up to the source's position are scanned.
        """
        self.clean_from = start
        """The offset from which on there is no match, while the selection is attached."""
        self.used_ms = 0.0
        """The time of the last request for this filter, on the monotonic clock."""
        self.waiters: dict[Waiter, None] = {}
        self._unstable: deque[int] = deque(maxlen=_MOST_UNSTABLE)
        self._stable_last = -1

    def wake(self) -> None:
        """Poke all waiters."""
        for waiter in tuple(self.waiters):
            waiter.poke()

    def attach(self, upto: int) -> None:
        """Record that new batches are scanned when they arrive, beginning with offset `upto`."""
        self.attached = True
        self.clean_from = max(self.clean_from, upto)

    def detach(self, upto: int) -> None:
        """Record that batches are no longer scanned when they arrive, beginning with offset `upto`."""
        self.attached = False
        self.empty.add(self.clean_from, upto)
        self.upto = self.clean_from = upto

    def skip(self, offset: int, scanned_to: int) -> int:
        """Return the first offset, from `offset` on, that may be a match. `scanned_to` is the source's position."""
        while True:
            found = self.empty.behind(offset)
            if self.attached and found >= self.clean_from:
                return max(found, scanned_to)
            if found == offset:
                return found
            offset = found

    def matched(self, base: int, last_match: int, end: int) -> None:
        """Note the next match that the scan of new batches found, in the batch from `base` to `end`."""
        self.empty.add(self.clean_from, base)
        self.clean_from = end
        self.note(last_match)
        self._unstable.append(last_match)

    def note(self, match: int) -> None:
        """Note a match, perhaps the last match."""
        self.last = max(self.last, match)

    def note_unstable(self, matches: Iterable[int]) -> None:
        """Record the matches that a backward search has found above the last stable offset."""
        self._unstable = deque(sorted({*self._unstable, *matches}), _MOST_UNSTABLE)

    def note_stable(self, match: int) -> None:
        """Record the last match below the last stable offset."""
        self._stable_last = max(self._stable_last, match)

    def high_watermark(self, start: int) -> int:
        """Return the offset after the last known match; the log's start if there is none.

        The returned offset never decreases.
        """
        return max(self.last + 1, start)

    def last_stable_offset(self, stable: int, start: int) -> int:
        """Find the last known match below the source's last stable offset, and return the offset after this match."""
        unstable = self._unstable
        while unstable and unstable[0] < stable:
            self._stable_last = max(self._stable_last, unstable.popleft())
        return max(self._stable_last + 1, start)
