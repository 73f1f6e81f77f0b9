"""Runs a scenario on both sides at the same time.

Owns the deadline and what happens when a side fails. If a scenario fails on Apache Kafka's side alone, that says
nothing about kbroker: some client has hung or given up on a loaded machine. The scenario runs once more on both sides,
under other names, and the summary of the run reports it; a second failure counts. A failure on kbroker's side counts
immediately.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from compat_tests.harness import report
from compat_tests.harness.scenarios import Scenario, ScenarioThread

REFERENCE: Final = "apache"
TIMEOUT_S: Final = 90
_PATIENCE: Final[Mapping[str, int]] = {"pipeline": 4, "cluster": 10, "java-tools": 3}
"""Clients whose scenarios may take this many times as long: each runs several Spark jobs, or about twenty tools."""


def run_on_all(scenario: Scenario, addresses: Mapping[str, str]) -> dict[str, object]:
    """Return what each side saw, by side; an exception has a note that names its side."""
    seen, errors = _attempt(scenario, addresses)
    if errors.keys() == {REFERENCE} and len(addresses) > 1:
        why = str(errors[REFERENCE]).partition("\n")[0] or repr(errors[REFERENCE])
        whole = "".join(traceback.format_exception(errors[REFERENCE]))
        report.declare_again(f"{scenario.client}: {scenario.name}: {why}", whole)
        seen, errors = _attempt(replace(scenario, name=f"{scenario.name}_again"), addresses)
    for side, error in errors.items():
        error.side = side  # type: ignore[attr-defined]
        raise error
    return seen


def _attempt(scenario: Scenario, addresses: Mapping[str, str]) -> tuple[dict[str, object], dict[str, Exception]]:
    runs = {side: ScenarioThread(scenario, address) for side, address in addresses.items()}
    for thread in runs.values():
        thread.start()
    deadline = time.monotonic() + TIMEOUT_S * _PATIENCE.get(scenario.client, 1)
    seen: dict[str, object] = {}
    errors: dict[str, Exception] = {}
    for side, thread in runs.items():
        try:
            seen[side] = thread.result(deadline - time.monotonic())
        except Exception as error:  # noqa: BLE001 - judged by the caller
            errors[side] = error
    return seen, errors
