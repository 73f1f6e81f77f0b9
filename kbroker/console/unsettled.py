"""Groups that keep rebalancing.

Owns since when that has been observed for each group. Only states at moments are visible: a group whose members lose
their sessions is stable in between, and two moments may each fall into a short rebalance. So it takes three of them,
and a group has settled once it was seen in other states three times. Never asks a cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kbroker.admin.group_offsets import WITHOUT_MEMBERS

_STATES: Final = ("PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling")
_LOOKS: Final = 3


@dataclass(slots=True)
class _Seen:
    since: float
    unsettled: int = 0
    settled: int = 0
    """How often it was seen settled since it was last unsettled."""


class Unsettled:
    """The groups that are not settled; times in s, of any one clock."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    def look(self, states: Mapping[str, str], at: float) -> dict[str, float]:
        """Record the states of all groups by name; return for how many seconds each group has been unsettled."""
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
                if seen.settled == _LOOKS or state in WITHOUT_MEMBERS:
                    del self._seen[name]
        return {name: at - seen.since for name, seen in self._seen.items() if seen.unsettled >= _LOOKS}
