"""Scenarios: functions that use a broker through one client and return what they saw.

Owns their registration and running one on both sides. Never holds a scenario itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

Observe = Callable[[str, str], object]


@dataclass(frozen=True, slots=True)
class Scenario:
    """A scenario of a client: `run(bootstrap, unique)` returns JSON values.

    `unique` is a name that no other scenario uses, the same on both sides, for topics and groups. The brokers of a run
    are fresh, so names are too.
    """

    client: str
    name: str
    run: Observe

    @property
    def unique(self) -> str:
        """Prefix for the names of this scenario's topics and groups."""
        return f"{self.client}-{self.name.replace('_', '-')}"


class Scenarios:
    """The scenarios of one client, collected by decorator."""

    def __init__(self, client: str) -> None:
        self.client = client
        self._all: list[Scenario] = []

    def add(self, run: Observe) -> Observe:
        """Register a scenario; its name is the function's."""
        self._all.append(Scenario(self.client, run.__name__, run))
        return run

    def __iter__(self) -> Iterator[Scenario]:
        return iter(self._all)
