"""Where groups do not get on: partitions in which a group commits nothing, and more and more waits for it.

Owns since when each such offset has been as it is, of the groups that are looked at. A lag alone is no fault, nor one
that stays as it is: behind a transaction's marker one record is never read. So it counts from a commit that was seen,
and only where the partition has grown since. What was not looked at has not stood still: a group is judged by what its
own last look has found. Never asks a cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from kbroker.admin.placement import Key

STANDING_S: Final = 120.0
"""So long a group with members commits nothing of a partition that grows before it is said to stand still: twice the
minute in which Kafka Connect's sinks commit once."""


@dataclass(frozen=True, slots=True)
class Stop:
    """What a group has committed of a partition, first and last seen when (s), and where the partition ended then."""

    offset: int
    since: float
    end: int
    seen: float
    last_end: int

    @property
    def lasted_s(self) -> float:
        """For how many seconds it has been seen like that."""
        return self.seen - self.since


class StandingStill:
    """What groups have committed and not read to the end; at most so many partitions of groups, the rest is not judged.

    One thread may look while others ask: a group's stops are replaced, never changed. Times are in s, of any one clock.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._count = 0
        self._stops: dict[str, dict[Key, Stop]] = {}

    def look(self, group: str, committed: Mapping[Key, int], ends: Mapping[Key, int], at: float) -> None:
        """See what a group with members has committed at a time."""
        before = self._stops.get(group, {})
        room = self._most - self._count + len(before)
        stops: dict[Key, Stop] = {}
        for key, offset in committed.items():
            known, end = before.get(key), ends.get(key)
            if end is None and known is not None and known.offset == offset:
                stops[key] = known  # its leader is away
                continue
            if end is None or offset >= end or len(stops) >= room:
                continue
            if known is None or known.offset != offset:
                stops[key] = Stop(offset, at, end, at, end)
            else:
                stops[key] = Stop(offset, known.since, known.end, at, end)
        if stops:
            self._stops[group] = stops
            self._count += len(stops) - len(before)
        else:
            self.forget(group)

    def suspects(self, group: str, committed: Mapping[Key, int], at: float, span_s: float) -> bool:
        """Tell whether what a group has committed of some partition is `span_s` seconds old at least."""
        stops = self._stops.get(group, {})
        return any(committed.get(key) == each.offset and at - each.since >= span_s for key, each in stops.items())

    def of(self, group: str, span_s: float) -> dict[Key, Stop]:
        """Return where a group has stood still for `span_s` seconds at least while records came."""
        stops = self._stops.get(group, {})
        return {key: each for key, each in stops.items() if each.last_end > each.end and each.lasted_s >= span_s}

    def keep(self, groups: Iterable[str]) -> None:
        """Forget all groups but these: those that have members now."""
        for group in self._stops.keys() - groups:
            self.forget(group)

    def forget(self, group: str) -> None:
        """Forget a group, as one that does not tell."""
        self._count -= len(self._stops.pop(group, ()))
