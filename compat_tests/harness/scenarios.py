"""Scenarios: functions that use a broker through one client and return what they saw.

Owns their registration, and running one on both sides. Never contains a scenario itself.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass

Observe = Callable[[str, str], object]


@dataclass(frozen=True, slots=True)
class Scenario:
    """A scenario of a client: `run(bootstrap, unique)` returns JSON values.

    `unique` is a name that no other scenario uses, for topics and groups; it is the same on both sides. The brokers of
    a run are new, so no name has been used before.
    """

    client: str
    name: str
    run: Observe

    @property
    def unique(self) -> str:
        """Prefix for the names of this scenario's topics and groups."""
        return f"{self.client}-{self.name.replace('_', '-')}"


class ScenarioThread(threading.Thread):
    """One run of a scenario. A daemon thread: a client that hangs must not keep the test run from ending."""

    def __init__(self, scenario: Scenario, bootstrap: str) -> None:
        super().__init__(name=scenario.unique, daemon=True)
        self._scenario, self._address = scenario, bootstrap
        self._seen: object = None
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._seen = self._scenario.run(self._address, self._scenario.unique)
        except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
            self._error = error

    def result(self, timeout: float) -> object:
        """Return what the scenario saw, or raise its exception; fail after `timeout` seconds."""
        self.join(max(timeout, 0))
        if self.is_alive():
            frame = sys._current_frames().get(self.ident or 0)
            where = "".join(traceback.format_stack(frame)[-8:]) if frame else "?"
            raise TimeoutError(f"{self._scenario.name} did not end; it is here:\n{where}")
        if self._error is not None:
            raise self._error
        return self._seen


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
