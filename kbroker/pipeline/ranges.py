"""Ranges of a partition's offsets, with sums of their records. All jobs describe sets of records in this form.

Owns the arithmetic of ranges. Never reads a record or a file.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

_CHECKSUM_BITS: Final = 64


class Partition(NamedTuple):
    """A topic's partition."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.number}"


@dataclass(frozen=True, slots=True)
class Sums:
    """The number of records, and the sum of their hashes modulo 2^64."""

    records: int = 0
    checksum: int = 0

    def __add__(self, other: Sums) -> Sums:
        return Sums(self.records + other.records, (self.checksum + other.checksum) % (1 << _CHECKSUM_BITS))


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets [start, end) of a partition, with sums of their records."""

    partition: Partition
    start: int
    end: int
    sums: Sums = field(default_factory=Sums)

    def encode(self) -> dict[str, Any]:
        """Return the fields as values for JSON."""
        place = {"topic": self.partition.topic, "partition": self.partition.number}
        sums = {"records": self.sums.records, "checksum": f"{self.sums.checksum:016x}"}
        return {**place, "start": self.start, "end": self.end, **sums}

    @classmethod
    def decode(cls, fields: Mapping[str, Any]) -> Range:
        sums = Sums(fields["records"], int(fields["checksum"], 16))
        return cls(Partition(fields["topic"], fields["partition"]), fields["start"], fields["end"], sums)


def joined_ranges(ranges: Iterable[Range]) -> list[Range]:
    """Join neighbouring ranges that have no gap between them."""
    joined: list[Range] = []
    for each in ranges:
        if joined and joined[-1].end == each.start:
            last = joined.pop()
            each = Range(last.partition, last.start, each.end, last.sums + each.sums)
        joined.append(each)
    return joined


def by_partition(ranges: Iterable[Range]) -> dict[Partition, list[Range]]:
    """Return each partition's ranges, in the order of their offsets."""
    found: defaultdict[Partition, list[Range]] = defaultdict(list)
    for each in ranges:
        found[each.partition].append(each)
    for each_list in found.values():
        each_list.sort(key=lambda each: (each.start, each.end))
    return dict(found)
