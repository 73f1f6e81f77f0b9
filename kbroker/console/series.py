"""Numbers over time: series that keep only the latest values.

Owns the number of points in a series, and the number of series. Never takes a sample.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final

POINTS: Final = 180
"""The maximum number of points of a series: a quarter of an hour, with one point every five seconds."""


class Series:
    """Values with their times, in seconds; the oldest values are dropped.

    One thread may add while others read, because `add` replaces the sequence of points and never changes it.
    """

    __slots__ = ("_points",)

    def __init__(self, points: Iterable[tuple[float, float]] = ()) -> None:
        self._points = tuple(points)[-POINTS:]

    def add(self, at: float, value: float) -> None:
        """Add the newest value."""
        self._points = (*self._points[1 - POINTS :], (at, value))

    def __iter__(self) -> Iterator[tuple[float, float]]:
        return iter(self._points)

    def __len__(self) -> int:
        return len(self._points)

    @property
    def last(self) -> float | None:
        """The newest value, or None."""
        points = self._points
        return points[-1][1] if points else None

    @property
    def largest(self) -> float:
        """The largest value, or 0."""
        return max((value for _, value in self._points), default=0.0)

    def grows(self, span_s: float) -> bool:
        """Whether the value never fell within a time span, and is larger now than at its start."""
        points = self._points
        if not points or points[-1][0] - points[0][0] < span_s:
            return False
        values = [value for at, value in points if at >= points[-1][0] - span_s]
        return len(values) > 2 and values[-1] > values[0] and all(b >= a for a, b in pairwise(values))


class Family:
    """A limited number of series by name; the least recently updated series is dropped first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._series: OrderedDict[str, Series] = OrderedDict()

    def add(self, name: str, at: float, value: float) -> None:
        """Add the newest value of a series."""
        series = self._series.get(name)
        if series is None:
            if len(self._series) >= self._most:
                self._series.popitem(last=False)
            series = self._series[name] = Series()
        else:
            self._series.move_to_end(name)
        series.add(at, value)

    def get(self, name: str) -> Series:
        """Return a series, or an empty series if it does not exist."""
        return self._series.get(name) or Series()

    def keep(self, names: Iterable[str]) -> None:
        """Drop all series except those with these names."""
        wanted = set(names)
        for name in [each for each in self._series if each not in wanted]:
            del self._series[name]

    def __len__(self) -> int:
        return len(self._series)
