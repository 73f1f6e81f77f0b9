"""Groups that make no progress: they commit nothing although records wait, or they keep rebalancing.

Owns the time since which each committed offset of the sampled groups is unchanged. A lag is no fault, not even a
constant lag, because a transaction marker adds to the lag but is never read. So the time counts from an observed
commit, and only if the partition has grown since then. A group is evaluated by its last sample. A group without a
sample does not count as standing still. Also owns the time since which a group keeps rebalancing. Samples show only
single moments. A group whose members keep losing their sessions is stable in between, and two samples may each fall
into a short rebalance. So a group counts as unsettled after three samples in a rebalance, and as settled again after
three samples in other states. Never sends a request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from kbroker.admin.group_offsets import WITHOUT_MEMBERS
from kbroker.admin.placement import Key

STANDING_S: Final = 120.0
"""The seconds without a commit after which a group counts as standing still in a growing partition.

This is twice the commit interval of Kafka Connect's sinks (a minute).
"""


@dataclass(frozen=True, slots=True)
class Stop:
    """An unchanged committed offset: the times (s) of its first and last sample, and the partition's end at each."""

    offset: int
    since: float
    end: int
    seen: float
    last_end: int

    @property
    def lasted_s(self) -> float:
        """The seconds for which the offset was unchanged."""
        return self.seen - self.since


class StandingStill:
    """The committed offsets of groups with a lag, for a limited number of partitions.

    Other partitions are not evaluated. One thread may update while others read, because the `Stop` objects of a group
    are replaced and never changed. Times are in seconds, all from the same clock.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._count = 0
        self._stops: dict[str, dict[Key, Stop]] = {}

    def update(self, group: str, committed: Mapping[Key, int], ends: Mapping[Key, int], at: float) -> None:
        """Record the committed offsets, at the time `at`, of a group that has members."""
        before = self._stops.get(group, {})
        room = self._most - self._count + len(before)
        stops: dict[Key, Stop] = {}
        for key, offset in committed.items():
            known, end = before.get(key), ends.get(key)
            if end is None and known is not None and known.offset == offset:
                stops[key] = known  # the partition has no leader now
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
        """Whether a committed offset of a group is unchanged for at least `span_s` seconds."""
        stops = self._stops.get(group, {})
        return any(committed.get(key) == each.offset and at - each.since >= span_s for key, each in stops.items())

    def of(self, group: str, span_s: float) -> dict[Key, Stop]:
        """Return the partitions in which a group stood still for at least `span_s` seconds while records arrived."""
        stops = self._stops.get(group, {})
        return {key: each for key, each in stops.items() if each.last_end > each.end and each.lasted_s >= span_s}

    def keep(self, groups: Iterable[str]) -> None:
        """Drop all groups except the given groups, which are those with members."""
        for group in self._stops.keys() - groups:
            self.forget(group)

    def forget(self, group: str) -> None:
        """Drop a group, for instance if the coordinator has not answered."""
        self._count -= len(self._stops.pop(group, ()))


_STATES: Final = ("PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling")
_ROUNDS: Final = 3


@dataclass(slots=True)
class _Seen:
    since: float
    unsettled: int = 0
    settled: int = 0
    """The number of samples in other states since the last sample in a rebalance."""


class Unsettled:
    """The groups that keep rebalancing; times are in seconds, all from the same clock."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    def update(self, states: Mapping[str, str], at: float) -> dict[str, float]:
        """Record the states of all groups by name; return the seconds for which each group has been unsettled."""
        for name in self._seen.keys() - states.keys():
            del self._seen[name]
        for name, state in states.items():
            seen = self._seen.get(name)
            if state in _STATES:
                seen = seen or self._seen.setdefault(name, _Seen(at))
                seen.unsettled += 1
                seen.settled = 0
            elif seen is not None:
                seen.settled += 1
                if seen.settled == _ROUNDS or state in WITHOUT_MEMBERS:
                    del self._seen[name]
        return {name: at - seen.since for name, seen in self._seen.items() if seen.unsettled >= _ROUNDS}
