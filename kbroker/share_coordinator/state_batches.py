"""State batches of a share partition: ranges of offsets with their delivery state and count.

Owns the combination of known and new batches, as Kafka's PersisterStateBatchCombiner does it: where ranges overlap, the
greater delivery count wins, then the greater delivery state; equal neighbours become one; offsets below the start
offset are dropped. The result is sorted, and its ranges are disjoint.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

NO_START_OFFSET = -1


class StateBatch(NamedTuple):
    """The state of the offsets from first to last, both included: 0 available, 2 acknowledged, 4 archived."""

    first_offset: int
    last_offset: int
    delivery_state: int
    delivery_count: int


Batches = tuple[StateBatch, ...]


def combined(known: Batches, new: Sequence[StateBatch], start_offset: int) -> Batches:
    """Return known and new batches as one list; a start offset of -1 drops nothing.

    The known batches must be an earlier result. Those that no new one touches are only copied.
    """
    kept, added = _cut(known, start_offset), _pruned(new, start_offset)
    if not added:
        return kept
    if not kept and all(a.last_offset < b.first_offset for a, b in pairwise(added)):
        return _coalesced(added)
    low = min(each.first_offset for each in added)
    high = max(each.last_offset for each in added)
    # A batch that ends just before a new one may become one with it, so the neighbours belong to the swept part.
    begin = max(bisect_left(kept, low, key=_last_offset) - 1, 0)
    end = bisect_left(kept, high + 1, key=_first_offset) + 1
    return (*kept[:begin], *_sweep((*kept[begin:end], *added)), *kept[end:])


def _cut(known: Batches, start_offset: int) -> Batches:
    """Return sorted batches without the offsets below the start offset."""
    if start_offset == NO_START_OFFSET or not known or known[0].first_offset >= start_offset:
        return known
    kept = known[bisect_left(known, start_offset, key=_last_offset) :]
    if kept and kept[0].first_offset < start_offset:
        return (kept[0]._replace(first_offset=start_offset), *kept[1:])
    return kept


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
    """Return whether no batch ends before it begins."""
    return all(each.first_offset <= each.last_offset for each in batches)


def _first_offset(batch: StateBatch) -> int:
    return batch.first_offset


def _last_offset(batch: StateBatch) -> int:
    return batch.last_offset


def _coalesced(batches: Iterable[StateBatch]) -> Batches:
    """Return sorted, disjoint batches with equal neighbours as one."""
    out: list[StateBatch] = []
    for batch in batches:
        if out:
            last = out[-1]
            if last.last_offset + 1 == batch.first_offset and last[2:] == batch[2:]:
                out[-1] = last._replace(last_offset=batch.last_offset)
                continue
        out.append(batch)
    return tuple(out)


def _sweep(batches: Sequence[StateBatch]) -> Batches:
    """Return batches that may overlap as sorted, disjoint ones: at each offset the strongest batch counts."""
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
    return _coalesced(out)
