"""Putting a scenario to both sides at the same time.

Owns the deadline and what happens when a side fails. A scenario that Apache Kafka's own side fails while kbroker's ends
well says nothing of kbroker: some client, on a loaded machine, has hung or given up. It is put to both sides once more,
under other names, and the summary of the run says so; a second failure is one. What fails on kbroker's side fails.
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
"""Clients whose scenarios may take so many times as long: each runs several jobs of Spark, or some twenty tools."""


def run_on_all(scenario: Scenario, addresses: Mapping[str, str]) -> dict[str, object]:
    """Return what each side saw, by side; raises what a side raised, with a note that names the side in `side`."""
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
