"""Where groups do not get on: partitions in which a group commits nothing, and more and more waits for it.

Owns since when each such offset has been as it is, of the groups that are looked at. A lag alone is no fault, nor one
that stays as it is: behind a transaction's marker one record is never read. So it counts from a commit that was seen,
and only where the partition has grown since. What was not looked at has not stood still: a group is judged by what its
own last look has found. Never asks a cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kbroker.admin.placement import Key


@dataclass(frozen=True, slots=True)
class Stop:
    """What a group has committed of a partition, since when (s), where that ended then, and whether more has come."""

    offset: int
    since: float
    end: int
    grown: bool = False


@dataclass(frozen=True, slots=True)
class Looked:
    """What a look at a group has found, and when (s)."""

    at: float
    stops: Mapping[Key, Stop]


class StandingStill:
    """What groups have committed and not read to the end; at most so many partitions of groups, the rest is not judged.

    One thread may look while others read: what they read is replaced, never changed. Times are in s, of any one clock.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._looked: dict[str, Looked] = {}

    def look(self, group: str, committed: Mapping[Key, int], ends: Mapping[Key, int], at: float) -> None:
        """See what a group with members has committed at a time."""
        looked = self._looked.get(group)
        before: Mapping[Key, Stop] = {} if looked is None else looked.stops
        room = self._most - sum(len(each.stops) for name, each in self._looked.items() if name != group)
        stops: dict[Key, Stop] = {}
        for key, offset in committed.items():
            end = ends.get(key, 0)
            if offset >= end or len(stops) >= room:
                continue
            known = before.get(key)
            if known is None or known.offset != offset:
                stops[key] = Stop(offset, at, end)
            else:
                stops[key] = Stop(offset, known.since, known.end, end > known.end)
        self._looked = {**self._looked, group: Looked(at, stops)}

    def of(self, group: str, span_s: float) -> dict[Key, float]:
        """Return for how many seconds, `span_s` at least, a group has stood still while records came, by partition."""
        looked = self._looked.get(group)
        if looked is None:
            return {}
        lasting = {key: looked.at - stop.since for key, stop in looked.stops.items() if stop.grown}
        return {key: lasted for key, lasted in lasting.items() if lasted >= span_s}

    def stop(self, group: str, key: Key) -> int | None:
        """Return the offset that a group has committed of a partition in which it may stand still."""
        looked = self._looked.get(group)
        stop = None if looked is None else looked.stops.get(key)
        return None if stop is None else stop.offset

    def keep(self, groups: Iterable[str]) -> None:
        """Forget all groups but these: those that have members now."""
        wanted = set(groups)
        self._looked = {name: looked for name, looked in self._looked.items() if name in wanted}

    def forget(self, group: str) -> None:
        """Forget a group that does not tell."""
        self._looked = {name: looked for name, looked in self._looked.items() if name != group}
