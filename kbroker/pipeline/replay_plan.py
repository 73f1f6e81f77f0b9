"""How a replay goes through an archive: in slices, each a range of offsets of every partition.

Owns the cutting, as pure functions. Slices follow one another without a gap, so that each partition's records come in
the order of their offsets, however their timestamps jump.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.manifest import Partition

_LONGEST_S: Final = 400 * 86_400
Bounds = dict[Partition, tuple[int, int]]


class Slice(NamedTuple):
    """Offsets to send in one go, `end` exclusive, and when: seconds after the first slice."""

    bounds: Bounds
    due: float


class Bucket(NamedTuple):
    """Neighbouring records of a partition; `newest` is their largest timestamp in ms."""

    partition: Partition
    first: int
    newest: int


def by_count(bounds: Bounds, records: int) -> list[Slice]:
    """Cut so that a slice has about so many offsets; all are due at once."""
    total = sum(end - start for start, end in bounds.values())
    number = max(-(-total // records), 1)
    cuts = {
        partition: [start + (end - start) * step // number for step in range(number + 1)]
        for partition, (start, end) in bounds.items()
    }
    return [
        Slice({p: (cut[step], cut[step + 1]) for p, cut in cuts.items() if cut[step] < cut[step + 1]}, 0.0)
        for step in range(number)
    ]


def by_time(bounds: Bounds, buckets: Iterable[Bucket], speed: float, step_s: float) -> list[Slice]:
    """Cut so that a slice has what came within `speed * step_s` seconds; a slice is due when that time is over.

    A record that is older than one before it goes with that one.
    """
    marks = {partition: _marks(found) for partition, found in _grouped(buckets).items()}
    times = [newest for found in marks.values() for _, newest in found]
    if not times:
        return []
    begin, end, span_ms = min(times), max(times), speed * step_s * 1000
    number = int((end - begin) / span_ms) + 1
    if number * step_s > _LONGEST_S:
        raise PipelineError(
            f"at this speed the replay would take {number * step_s / 86_400:,.0f} days: the timestamps lie far apart"
        )
    limits = [begin + span_ms * step for step in range(1, number + 1)]
    cuts = {p: _cuts(bounds[p], marks.get(p, []), limits) for p in bounds}
    slices = []
    for step, pair in enumerate(pairwise(range(number + 1))):
        ranges = {p: (cut[pair[0]], cut[pair[1]]) for p, cut in cuts.items() if cut[pair[0]] < cut[pair[1]]}
        if ranges:
            slices.append(Slice(ranges, step * step_s))
    return slices


def after(slices: Iterable[Slice], positions: Mapping[Partition, int]) -> list[Slice]:
    """Return what is left behind the positions (next offset to send); the first slice left is due at once."""
    left: list[Slice] = []
    begun = 0.0
    for bounds, due in slices:
        ranges = {p: (max(start, positions.get(p, start)), end) for p, (start, end) in bounds.items()}
        ranges = {p: (start, end) for p, (start, end) in ranges.items() if start < end}
        if ranges:
            begun = begun if left else due
            left.append(Slice(ranges, due - begun))
    return left


def _grouped(buckets: Iterable[Bucket]) -> dict[Partition, list[Bucket]]:
    found: dict[Partition, list[Bucket]] = {}
    for bucket in sorted(buckets):
        found.setdefault(bucket.partition, []).append(bucket)
    return found


def _marks(buckets: list[Bucket]) -> list[tuple[int, int]]:
    """Return (first offset, largest timestamp up to here) of the buckets."""
    newest = accumulate((bucket.newest for bucket in buckets), max)
    return [(bucket.first, stamp) for bucket, stamp in zip(buckets, newest, strict=True)]


def _cuts(bounds: tuple[int, int], marks: list[tuple[int, int]], limits: list[float]) -> list[int]:
    """Return where the slices of a partition begin, and where the last one ends."""
    start, end = bounds
    cuts, place = [start], 0
    for limit in limits[:-1]:
        while place < len(marks) and marks[place][1] < limit:
            place += 1
        cuts.append(max(marks[place][0], cuts[-1]) if place < len(marks) else end)
    return [*cuts, end]
