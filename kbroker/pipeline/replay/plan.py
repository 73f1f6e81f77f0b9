"""The slices of a replay. Each slice is a range of offsets of every partition.

Owns the division of a replay into slices, with pure functions. Slices follow one another without a gap. So each
partition's records are sent in order of their offsets, even if their timestamps are not in order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.ranges import Partition

_LONGEST_S: Final = 400 * 86_400
Bounds = dict[Partition, tuple[int, int]]


class Slice(NamedTuple):
    """The offsets to send together (`end` is exclusive), and their time in seconds after the first slice."""

    bounds: Bounds
    due: float


class Bucket(NamedTuple):
    """Neighbouring records of a partition. `newest` is their largest timestamp, in ms."""

    partition: Partition
    first: int
    newest: int


def by_count(bounds: Bounds, records: int) -> list[Slice]:
    """Cut the bounds into slices of about `records` offsets. All slices are due immediately."""
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
    """Cut the bounds into slices of `speed * step_s` seconds of records. A slice is due every `step_s` seconds.

    A record that is older than an earlier record belongs to the same slice as the earlier record.
    """
    marks = {partition: _marks(found) for partition, found in _grouped(buckets).items()}
    times = [newest for found in marks.values() for _, newest in found]
    if not times:
        return []
    begin, end, span_ms = min(times), max(times), speed * step_s * 1000
    if (end - begin) / span_ms * step_s > _LONGEST_S:
        raise PipelineError(
            f"at this speed the replay would take {(end - begin) / span_ms * step_s / 86_400:,.0f} days:"
            " the timestamps are far apart"
        )
    slices: defaultdict[int, Bounds] = defaultdict(dict)
    for partition, whole in bounds.items():
        steps = [(first, int((newest - begin) / span_ms)) for first, newest in marks.get(partition, [])]
        for step, found in _stretches(whole, steps):
            slices[step][partition] = found
    return [Slice(slices[step], step * step_s) for step in sorted(slices)]


def after(slices: Iterable[Slice], positions: Mapping[Partition, int]) -> list[Slice]:
    """Return the remaining slices, given each partition's next offset to send. The first slice is due immediately."""
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
    """Return (first offset, largest timestamp so far) of the buckets."""
    newest = accumulate((bucket.newest for bucket in buckets), max)
    return [(bucket.first, stamp) for bucket, stamp in zip(buckets, newest, strict=True)]


def _stretches(whole: tuple[int, int], steps: list[tuple[int, int]]) -> list[tuple[int, tuple[int, int]]]:
    """Return the offsets of each step of a partition, as (step, offsets).

    A step's offsets end at the first record of the partition's next step. `steps` are (offset, step); both increase.
    Offsets before the first record belong to the first record's step. A partition without records is due immediately.
    """
    start, end = whole
    firsts = [steps[0]] if steps else [(start, 0)]
    firsts += [after for before, after in pairwise(steps) if after[1] > before[1]]
    edges = [start, *(first for first, _ in firsts[1:]), end]
    found = [(step, pair) for (_, step), pair in zip(firsts, pairwise(edges), strict=True)]
    return [(step, (first, last)) for step, (first, last) in found if first < last]
