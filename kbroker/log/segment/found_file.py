"""The proven part of a segment's file that existed at the start.

Remembers this part for one segment, and reduces it when the file is truncated. Never reads the file:
checks_at_first_read.py compares its batches.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final, NamedTuple

_MOST_SPANS: Final = 256


class Link(NamedTuple):
    """The state at the end of a batch: the next offset, or None if unknown, and the leader epoch."""

    offset: int | None
    epoch: int


class Spans:
    """The proven ranges of one file, disjoint and in order; positions in bytes."""

    __slots__ = ("_ends", "_links", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._links: list[Link] = []

    def around(self, position: int) -> tuple[int, Link] | None:
        """Return the end of the range that contains `position` or ends there, and the link at this end."""
        slot = bisect_right(self._starts, position) - 1
        if slot < 0 or self._ends[slot] < position:
            return None
        return self._ends[slot], self._links[slot]

    def add(self, start: int, end: int, link: Link) -> None:
        """Record that the part from `start` to `end` is proven. If there are too many ranges, forget the first half."""
        first = bisect_right(self._starts, start)
        if first and self._ends[first - 1] >= start:
            first -= 1
            start = self._starts[first]
        last = first
        while last < len(self._starts) and self._starts[last] <= end:
            if self._ends[last] > end:
                end, link = self._ends[last], self._links[last]
            last += 1
        self._starts[first:last], self._ends[first:last], self._links[first:last] = [start], [end], [link]
        if len(self._starts) > _MOST_SPANS:
            for kept in (self._starts, self._ends, self._links):
                del kept[: _MOST_SPANS // 2]


class FoundFile:
    """The part of a log file that this process did not write; sizes in bytes."""

    __slots__ = ("_spans", "end_proven", "unchecked", "unproven")

    def __init__(self, size: int = 0) -> None:
        self.unchecked = size
        """The position before which the CRCs are still unchecked."""
        self._not_proven_up_to(size)

    def _not_proven_up_to(self, size: int) -> None:
        self.unproven = size
        """The position before which some batch headers are not yet compared with their neighbours."""
        self.end_proven = False
        """Whether the last batch has been found intact, with the right offset and epoch."""
        self._spans: Spans | None = None

    def cut(self, size: int) -> None:
        self.unchecked = min(self.unchecked, size)
        self._not_proven_up_to(min(self.unproven, size))

    def recovered(self, size: int) -> None:
        """Record that recovery has checked all CRCs of a file of `size` bytes."""
        self.unchecked = 0
        self._not_proven_up_to(size)

    def proven_around(self, position: int) -> tuple[int, Link] | None:
        """Return the end of the proven range around `position`, and the link at this end."""
        return self._spans.around(position) if self._spans is not None else None

    def prove(self, start: int, end: int, link: Link) -> None:
        """Record that the batches from `start` to `end` are consistent, and the link at the end."""
        spans = self._spans = self._spans or Spans()
        spans.add(start, end, link)
        whole = spans.around(0)
        if whole is not None and whole[0] >= self.unproven:
            self.unproven, self._spans = 0, None

    def prove_end(self) -> None:
        self.end_proven = True
