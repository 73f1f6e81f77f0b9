"""A snapshot of very many producers, taken in pieces while they go on producing.

Owns what they were at the offset of the snapshot: a producer that is about to change is written down before it does,
the others when their turn comes. Never touches a file, and the order in which producers stand in a snapshot means
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count
from typing import Final, Generic, Protocol, Self, TypeVar

_AT_ONCE: Final = 256
_numbers: Final = count(1)


class Copied(Protocol):
    """A producer's entry."""

    snapshot: int
    """Number of the last snapshot that has what it needs of it."""

    def copy(self) -> Self:
        """Return what a snapshot needs, which does not change any more."""


E = TypeVar("E", bound=Copied)


class SnapshotTaking(Generic[E]):
    """The producers of one log as they are when this is made, at `offset`."""

    __slots__ = ("_changing", "_entries", "count", "number", "offset")

    def __init__(self, entries: Iterable[E], offset: int) -> None:
        self._entries = list(entries)
        self._changing: list[E] = []
        self.offset = offset
        self.count = len(self._entries)
        self.number = next(_numbers)
        """What a producer is marked with that has been written down, or that there was not yet."""

    def keep(self, entry: E) -> None:
        """Hear of a producer that is about to change."""
        if entry.snapshot != self.number:
            entry.snapshot = self.number
            self._changing.append(entry.copy())

    def pieces(self) -> Iterator[list[E]]:
        """Yield all producers, some at a time; whatever happens in between, they are as they were."""
        for begin in range(0, self.count, _AT_ONCE):
            due = [entry for entry in self._entries[begin : begin + _AT_ONCE] if entry.snapshot != self.number]
            for entry in due:
                entry.snapshot = self.number
            due += self._changing
            self._changing = []
            yield due
        yield self._changing
