"""A snapshot of very many producers, taken in pieces while they continue to produce.

Owns their state at the offset of the snapshot: a producer that is about to change is copied before it does, the others
in their turn. Never touches a file; the order of producers in a snapshot has no meaning.
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
    """Number of the last snapshot that already contains this entry."""

    def copy(self) -> Self:
        """Return a copy with the fields of a snapshot, which does not change any more."""


E = TypeVar("E", bound=Copied)


class SnapshotTaking(Generic[E]):
    """The producers of one log at the time of creation, at `offset`."""

    __slots__ = ("_changing", "_entries", "count", "number", "offset")

    def __init__(self, entries: Iterable[E], offset: int) -> None:
        self._entries = list(entries)
        self._changing: list[E] = []
        self.offset = offset
        self.count = len(self._entries)
        self.number = next(_numbers)
        """The mark of producers that are already copied, or that are newer than the snapshot."""

    def keep(self, entry: E) -> None:
        """Copy a producer that is about to change."""
        if entry.snapshot != self.number:
            entry.snapshot = self.number
            self._changing.append(entry.copy())

    def pieces(self) -> Iterator[list[E]]:
        """Yield all producers, some at a time, in their state at the start whatever changes in between."""
        for begin in range(0, self.count, _AT_ONCE):
            due = [entry for entry in self._entries[begin : begin + _AT_ONCE] if entry.snapshot != self.number]
            for entry in due:
                entry.snapshot = self.number
            due += self._changing
            self._changing = []
            yield due
        yield self._changing
