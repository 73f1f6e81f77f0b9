"""The tiers of a topic as its page shows them: a row for each partition, the totals, and the offsets of each tier.

Owns the rule by which an offset is only remote, on both tiers, or only local. Never sends a request, and never replaces
an unknown number with a guess.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kbroker.admin.topic_tiers import PartitionTiers, Tiers

_MOST_TROUBLES: Final = 10


@dataclass(frozen=True, slots=True)
class Spread:
    """The number of offsets that are only in remote storage, on both tiers, and only on the local disk."""

    only_remote: int = 0
    both: int = 0
    only_local: int = 0

    def __add__(self, other: Spread) -> Spread:
        """Return the offsets of both."""
        return Spread(self.only_remote + other.only_remote, self.both + other.both, self.only_local + other.only_local)

    @property
    def whole(self) -> int:
        """The number of all offsets."""
        return self.only_remote + self.both + self.only_local

    @property
    def parts(self) -> list[tuple[str, int]]:
        """The parts of a bar, by the class of their colour."""
        return [("only-remote", self.only_remote), ("both", self.both), ("only-local", self.only_local)]

    @property
    def words(self) -> str:
        """The numbers as text."""
        return f"{self.only_remote:,} only remote, {self.both:,} on both, {self.only_local:,} only local"


@dataclass(frozen=True, slots=True)
class Total:
    """The sum of the known bytes of all partitions."""

    size: int | None
    """The sum in bytes; None if no partition's bytes are known."""
    is_whole: bool
    """Whether the bytes of all partitions are known."""


@dataclass(frozen=True, slots=True)
class Row:
    """A partition."""

    tiers: PartitionTiers
    only_local: int | None
    """The number of offsets that are not in remote storage; None if unknown."""
    spread: Spread | None
    """None if unknown."""


class TiersShown:
    """The tiers of a topic: the rows of its partitions, and the totals."""

    def __init__(self, topic: str, partitions: Iterable[int], tiers: Tiers) -> None:
        known = {each.partition: each for each in tiers.partitions}
        nothing = (None,) * 8
        self.rows = [_row(known.get(index) or PartitionTiers(topic, index, *nothing)) for index in partitions]
        """All partitions, also those without a leader."""
        self.local = _total(each.tiers.local_bytes for each in self.rows)
        self.remote = _total(each.tiers.remote_bytes for each in self.rows)
        spreads = [each.spread for each in self.rows if each.spread is not None]
        self.spread = sum(spreads, Spread()) if spreads else None
        """The offsets of all partitions; None if no partition's offsets are known."""
        self.unknown = len(self.rows) - len(spreads)
        """The number of partitions that `spread` leaves out."""
        self.troubles = tiers.troubles[:_MOST_TROUBLES]
        self.more_troubles = len(tiers.troubles) - len(self.troubles)
        self.is_known = bool(known)


def _total(sizes: Iterable[int | None]) -> Total:
    found = list(sizes)
    known = [each for each in found if each is not None]
    return Total(sum(known) if known else None, len(known) == len(found))


def _row(tiers: PartitionTiers) -> Row:
    copied = _copied_to(tiers)
    only_local = None if copied is None or tiers.end is None else max(tiers.end - copied, 0)
    return Row(tiers, only_local, _spread(tiers))


def _copied_to(tiers: PartitionTiers) -> int | None:
    """Return the offset after the last record in remote storage, but at least the start; None if it is unknown."""
    if tiers.latest_tiered is not None:
        return max(tiers.latest_tiered + 1, tiers.start or 0)
    # Without a segment there is no latest tiered offset. Otherwise the leader has not returned it.
    return tiers.start if tiers.remote_segments == 0 else None


def _spread(tiers: PartitionTiers) -> Spread | None:
    copied = _copied_to(tiers)
    if copied is None or tiers.start is None or tiers.local_start is None or tiers.end is None:
        return None
    local_start = max(tiers.local_start, tiers.start)
    return Spread(
        only_remote=min(local_start, copied) - tiers.start,
        both=max(copied - local_start, 0),
        only_local=max(tiers.end - copied, 0),
    )
