"""Where groups do not get on: partitions in which a group commits nothing, and more and more waits for it.

Owns since when each such offset has been as it is, of the groups that are looked at. A lag alone is no fault, nor one
that stays as it is: behind a transaction's marker one record is never read. So it counts from a commit that was seen,
and only where the partition has grown since. Never asks a cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kbroker.admin.placement import Key


@dataclass(frozen=True, slots=True)
class Stop:
    """What a group has committed of a partition, since when (s since 1970), and where the partition ended then."""

    offset: int
    since: float
    end: int


class StandingStill:
    """What groups have committed and not read to the end, for at most so many groups.

    One thread may look while others read: what they read is replaced, never changed.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._stops: dict[str, dict[Key, Stop]] = {}

    def look(self, group: str, committed: Mapping[Key, int], ends: Mapping[Key, int], at: float) -> None:
        """See what a group has committed at a time, in s since 1970."""
        before = self._stops.get(group, {})
        if group not in self._stops and len(self._stops) >= self._most:
            return
        stops: dict[Key, Stop] = {}
        for key, offset in committed.items():
            end = ends.get(key, 0)
            if offset < end:
                known = before.get(key)
                stops[key] = known if known is not None and known.offset == offset else Stop(offset, at, end)
        self._stops[group] = stops

    def of(self, group: str, ends: Mapping[Key, int], at: float, span_s: float) -> dict[Key, Stop]:
        """Return where a group has stood still for so many seconds while records came, by partition."""
        stops = self._stops.get(group, {})
        return {key: stop for key, stop in stops.items() if at - stop.since >= span_s and ends.get(key, 0) > stop.end}

    def keep(self, groups: Iterable[str]) -> None:
        """Forget all groups but these."""
        wanted = set(groups)
        self._stops = {name: stops for name, stops in self._stops.items() if name in wanted}
