"""Committed offsets at which a group makes no progress, although its members read the record there repeatedly.

Owns the evidence for each partition of a group, and the decision whether the evidence suffices. There are three kinds
of evidence: members that owned the partition have left without a commit; a member that is still in the group fetches
the same record again; a share group delivers the record again. Never reads a clock or a log, never changes a group, and
never skips a record: an operator does.

A lag is not evidence, because a slow group also has a lag. All evidence of a partition is about one offset, and is
dropped when another offset is committed. The evidence is only in the broker's memory, so a restart removes it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

OWNERS: Final = 3
"""The number of a partition's owners that must have left, one after the other, without a commit."""
LOOKS: Final = 5
"""The number of successive checks in which a member must have fetched the same record again."""
DELIVERIES: Final = 3
"""The number of times that a share group must have tried to deliver a record."""
MOST: Final = 1_000
"""The maximum number of partitions with evidence; a new partition replaces the oldest partition."""

Place = tuple[str, str, int]
"""A group, a topic, and the number of a partition."""
LEFT, READ_AGAIN, DELIVERED_AGAIN = "left", "read again", "delivered again"


class Stuck(NamedTuple):
    """A record at which a group makes no progress."""

    topic: str
    partition: int
    offset: int
    cause: str
    """LEFT: owners left without a commit.

    READ_AGAIN: a member fetches the record again. DELIVERED_AGAIN: a share group delivers the record again.
    """
    times: int
    """How often the cause was observed: owners that left, checks that found another fetch, or deliveries."""
    since_ms: int
    """The time of the first evidence, in ms since 1970."""


@dataclass(slots=True)
class _Evidence:
    offset: int
    since_ms: int
    left: int = 0
    looks: int = 0
    deliveries: int = 0
    was_told: bool = False

    @property
    def cause(self) -> tuple[str, int] | None:
        if self.deliveries >= DELIVERIES:
            return DELIVERED_AGAIN, self.deliveries
        if self.left >= OWNERS:
            return LEFT, self.left
        return (READ_AGAIN, self.looks) if self.looks >= LOOKS else None


class StuckOffsets:
    """The evidence of one broker."""

    def __init__(self) -> None:
        self._places: dict[Place, _Evidence] = {}

    def left(self, place: Place, offset: int, now_ms: int) -> None:
        """Record that an owner has left, while the committed offset was `offset` and a record was there."""
        self._at(place, offset, now_ms).left += 1

    def read_again(self, place: Place, offset: int, looks: int, now_ms: int) -> None:
        """Record that `looks` successive checks saw a member fetch the record at the committed offset again."""
        self._at(place, offset, now_ms).looks = looks

    def delivered_again(self, place: Place, offset: int, deliveries: int, now_ms: int) -> None:
        """Record how often a share group has delivered the partition's first record that is not done."""
        self._at(place, offset, now_ms).deliveries = deliveries

    def _at(self, place: Place, offset: int, now_ms: int) -> _Evidence:
        found = self._places.get(place)
        if found is None or found.offset != offset:
            self._places.pop(place, None)
            if len(self._places) >= MOST:
                del self._places[next(iter(self._places))]
            found = self._places[place] = _Evidence(offset, now_ms)
        return found

    def places(self) -> list[tuple[Place, int, bool]]:
        """Return (place, offset, whether a share group delivers the record again) for each place with evidence."""
        return [(place, each.offset, each.deliveries > 0) for place, each in self._places.items()]

    def drop(self, place: Place) -> None:
        """Drop the evidence of a place: another offset was committed, or the group or its members are gone."""
        self._places.pop(place, None)

    def keep_only(self, cause: str, places: Iterable[Place]) -> None:
        """Drop the evidence of a cause, except the evidence at `places`. The cause is one that can end by itself."""
        kept = set(places)
        for place, each in list(self._places.items()):
            if place in kept:
                continue
            if cause == READ_AGAIN:
                each.looks = 0
            elif cause == DELIVERED_AGAIN:
                each.deliveries = 0
            if not (each.left or each.looks or each.deliveries):
                del self._places[place]

    def stuck(self) -> dict[str, list[Stuck]]:
        """Return the records at which groups make no progress, by group, in the order of the first evidence."""
        found: dict[str, list[Stuck]] = {}
        for (group, topic, partition), each in self._places.items():
            cause = each.cause
            if cause is not None:
                found.setdefault(group, []).append(Stuck(topic, partition, each.offset, *cause, each.since_ms))
        return found

    def untold(self) -> list[tuple[str, Stuck]]:
        """Return the stuck records that no earlier call has returned."""
        found = []
        for group, records in self.stuck().items():
            for each in records:
                evidence = self._places[group, each.topic, each.partition]
                if not evidence.was_told:
                    evidence.was_told = True
                    found.append((group, each))
        return found
