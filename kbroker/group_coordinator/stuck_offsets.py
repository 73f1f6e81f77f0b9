"""Committed offsets that a group does not get past although its members read the record there again and again.

Owns the evidence for each partition of a group, and the decision whether it suffices. Evidence is: members that owned
the partition have left without a commit; a member that is still there fetches the same record again; a share group
delivers it again. Never reads a clock or a log, never changes a group, and never skips a record: an operator does.

A lag is no evidence, because a slow group has one too. All evidence is about one offset: once another one is
committed, it is dropped. Only a broker's memory holds it, so it starts anew after a restart.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

OWNERS: Final = 3
"""How many owners of a partition must have left, one after the other, without a commit."""
LOOKS: Final = 5
"""In how many looks a member must have fetched the same record again."""
DELIVERIES: Final = 3
"""How many deliveries of a record a share group must have tried."""
MOST: Final = 1_000
"""The most partitions with evidence; the oldest one is dropped for a further one."""

Place = tuple[str, str, int]
"""A group, a topic, and the number of a partition."""
LEFT, READ_AGAIN, DELIVERED_AGAIN = "left", "read again", "delivered again"


class Stuck(NamedTuple):
    """A record that a group does not get past."""

    topic: str
    partition: int
    offset: int
    cause: str
    """LEFT: owners left without a commit. READ_AGAIN: a member fetches it again. DELIVERED_AGAIN: of a share group."""
    times: int
    """The number of owners that left, of looks that saw another fetch, or of deliveries."""
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
        """Note that an owner has left while `offset` was committed, and a record was there to read."""
        self._at(place, offset, now_ms).left += 1

    def read_again(self, place: Place, offset: int, looks: int, now_ms: int) -> None:
        """Note that a member fetched the record at the committed offset again, in so many looks without a break."""
        self._at(place, offset, now_ms).looks = looks

    def delivered_again(self, place: Place, offset: int, deliveries: int, now_ms: int) -> None:
        """Note the deliveries of the first record of a share group's partition that is delivered again."""
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
        """Return the places with evidence, the offset of each, and whether a share group delivers it again."""
        return [(place, each.offset, each.deliveries > 0) for place, each in self._places.items()]

    def drop(self, place: Place) -> None:
        """Drop the evidence of a place: another offset was committed, or the group or its members are gone."""
        self._places.pop(place, None)

    def keep_only(self, cause: str, places: Iterable[Place]) -> None:
        """Drop the evidence of one cause that can end by itself, unless its place is among `places`."""
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
        """Return the records that groups do not get past, by group, in the order of the first evidence."""
        found: dict[str, list[Stuck]] = {}
        for (group, topic, partition), each in self._places.items():
            cause = each.cause
            if cause is not None:
                found.setdefault(group, []).append(Stuck(topic, partition, each.offset, *cause, each.since_ms))
        return found

    def untold(self) -> list[tuple[str, Stuck]]:
        """Return each record once, when its evidence suffices for the first time."""
        found = []
        for group, records in self.stuck().items():
            for each in records:
                evidence = self._places[group, each.topic, each.partition]
                if not evidence.was_told:
                    evidence.was_told = True
                    found.append((group, each))
        return found
