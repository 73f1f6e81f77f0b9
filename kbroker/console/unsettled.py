"""Groups that do not settle: whose members are told again and again what to read.

Owns since when that has been seen of each. What is seen are states at moments: members that lose their sessions are
stable in between, and two moments may each be one of a short rebalance. So it takes three, and a group has settled once
it was seen otherwise three times. Never asks a cluster.
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
    """How often, since it was last seen unsettled."""


class Unsettled:
    """The groups that are not settled; times in s, of any one clock."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    def look(self, states: Mapping[str, str], at: float) -> dict[str, float]:
        """See the states of all groups by name; return for how long groups have not settled."""
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
