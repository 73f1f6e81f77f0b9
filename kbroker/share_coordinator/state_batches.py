"""State batches of a share partition: ranges of offsets with their delivery state and count.

Owns the combination of known and new batches, like Kafka's PersisterStateBatchCombiner: where ranges overlap, the
greater delivery count wins, then the greater delivery state; equal neighbours are merged; offsets below the start
offset are dropped. The result is sorted, and its ranges are disjoint. Also owns the form of such a result in memory:
columns, because tuples of half a million batches take 80 MB.
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple, overload

NO_START_OFFSET = -1


class StateBatch(NamedTuple):
    """The state of the offsets from the first to the last, inclusive: 0 available, 2 acknowledged, 4 archived."""

    first_offset: int
    last_offset: int
    delivery_state: int
    delivery_count: int


class Batches(Sequence[StateBatch]):
    """Sorted, disjoint batches in columns, one for each field, with 19 bytes for each batch. They are immutable."""

    __slots__ = ("_columns",)

    def __init__(self, columns: Iterable[array[int]]) -> None:
        self._columns = tuple(columns)

    def __len__(self) -> int:
        return len(self._columns[0])

    def __iter__(self) -> Iterator[StateBatch]:
        return map(StateBatch, *self._columns)

    @overload
    def __getitem__(self, index: int) -> StateBatch: ...
    @overload
    def __getitem__(self, index: slice) -> Batches: ...
    def __getitem__(self, index: int | slice) -> StateBatch | Batches:
        if isinstance(index, slice):
            return Batches(column[index] for column in self._columns)
        return StateBatch(*(column[index] for column in self._columns))

    def __add__(self, other: Batches) -> Batches:
        return Batches(a + b for a, b in zip(self._columns, other._columns, strict=True))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def before(self, offset: int) -> int:
        """Return the number of batches that end before an offset."""
        return bisect_left(self._columns[1], offset)

    def beginning_by(self, offset: int) -> int:
        """Return the number of batches that begin at an offset or before it."""
        return bisect_left(self._columns[0], offset + 1)


def stored(batches: Iterable[StateBatch]) -> Batches:
    """Return sorted, disjoint batches in the form that is kept."""
    columns = tuple(zip(*batches, strict=True))
    if not columns:
        return NO_BATCHES
    return Batches(array(kind, column) for kind, column in zip(_KINDS, columns, strict=True))


_KINDS: Final = "qqbh"
NO_BATCHES: Final = Batches(array(kind) for kind in _KINDS)


def combined(known: Batches, new: Sequence[StateBatch], start_offset: int) -> Batches:
    """Return known and new batches as one list; a start offset of -1 drops nothing.

    The known batches must be an earlier result. Known batches that no new batch touches are only copied.
    """
    kept, added = _cut(known, start_offset), _pruned(new, start_offset)
    if not added:
        return kept
    low = min(each.first_offset for each in added)
    high = max(each.last_offset for each in added)
    # A new batch may be merged with a batch that ends just before it, so the neighbours are also merged anew.
    begin = max(kept.before(low) - 1, 0)
    end = kept.beginning_by(high) + 1
    touched = in_order([*kept[begin:end], *added])
    if begin == 0 and end >= len(kept):
        return stored(touched)
    return kept[:begin] + stored(touched) + kept[end:]


def in_order(batches: Sequence[StateBatch], start_offset: int = NO_START_OFFSET) -> list[StateBatch]:
    """Return batches in any order as a sorted and disjoint list; a start offset of -1 drops nothing."""
    kept = _pruned(batches, start_offset)
    if all(a.last_offset < b.first_offset for a, b in pairwise(kept)):
        return _coalesced(kept)
    return _coalesced(_swept(kept))


def _cut(known: Batches, start_offset: int) -> Batches:
    """Return sorted batches without the offsets below the start offset."""
    if start_offset == NO_START_OFFSET or not known or known[0].first_offset >= start_offset:
        return known
    kept = known[known.before(start_offset) :]
    if kept and kept[0].first_offset < start_offset:
        return stored([kept[0]._replace(first_offset=start_offset)]) + kept[1:]
    return kept or NO_BATCHES


def _pruned(batches: Sequence[StateBatch], start_offset: int) -> Sequence[StateBatch]:
    """Return batches in any order without the offsets below the start offset."""
    if start_offset == NO_START_OFFSET:
        return batches
    return [
        each if each.first_offset >= start_offset else each._replace(first_offset=start_offset)
        for each in batches
        if each.last_offset >= start_offset
    ]


def are_ranges(batches: Iterable[StateBatch]) -> bool:
    """Whether no batch ends before it begins."""
    return all(each.first_offset <= each.last_offset for each in batches)


def _coalesced(batches: Iterable[StateBatch]) -> list[StateBatch]:
    """Return sorted, disjoint batches; equal neighbours are merged."""
    out: list[StateBatch] = []
    for batch in batches:
        if out:
            last = out[-1]
            if last.last_offset + 1 == batch.first_offset and last[2:] == batch[2:]:
                out[-1] = last._replace(last_offset=batch.last_offset)
                continue
        out.append(batch)
    return out


def _swept(batches: Sequence[StateBatch]) -> list[StateBatch]:
    """Return batches that may overlap as sorted, disjoint batches. At each offset the strongest batch counts."""
    waiting = sorted(batches)
    borders = sorted({each.first_offset for each in batches} | {each.last_offset + 1 for each in batches})
    open_batches: list[tuple[int, int, int]] = []  # a heap of (-count, -state, last offset)
    out: list[StateBatch] = []
    at = 0
    for border, following in pairwise(borders):
        while at < len(waiting) and waiting[at].first_offset <= border:
            batch = waiting[at]
            heapq.heappush(open_batches, (-batch.delivery_count, -batch.delivery_state, batch.last_offset))
            at += 1
        while open_batches and open_batches[0][2] < border:
            heapq.heappop(open_batches)
        if open_batches:
            count, state, _ = open_batches[0]
            out.append(StateBatch(border, following - 1, -state, -count))
    return out
