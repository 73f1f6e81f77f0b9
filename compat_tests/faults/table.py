"""The table in docs/faults-and-clients.md: read, and rewritten by `python -m compat_tests.faults.table`.

Owns its form. A cell may contain several outcomes with " or " between them, where timing decides.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Final

from compat_tests.faults.catalogue import SCENARIOS, TITLES, Scenario
from compat_tests.faults.client import Client
from compat_tests.faults.seeing import see
from compat_tests.faults.with_aiokafka import WithAiokafka
from compat_tests.faults.with_confluent import WithConfluent
from compat_tests.faults.with_java import java_clients
from compat_tests.faults.with_kafka_python import WithKafkaPython
from compat_tests.harness.parts import fetch

PAGE: Final = Path(__file__).parents[2] / "docs" / "faults-and-clients.md"
NAMES: Final = ("confluent-kafka", "aiokafka", "kafka-python", "Java")
_BEGIN, _END = "<!-- seen: begin -->\n", "<!-- seen: end -->\n"
_OR: Final = " or "
_PREFIX: Final = "broker.faults."


def expected() -> dict[tuple[str, str], dict[str, list[str]]]:
    """Return the outcomes on the page for each action and fault, by client."""
    found: dict[tuple[str, str], dict[str, list[str]]] = {}
    does = ""
    by_title = {title: each for each, title in TITLES.items()}
    for line in PAGE.read_text().partition(_BEGIN)[2].partition(_END)[0].splitlines():
        if line.startswith("### "):
            does = by_title[line.removeprefix("### ")]
        elif line.startswith("| `") and not line.startswith(f"| `{_PREFIX}`"):
            cells = [each.strip() for each in line.strip("|").split(" | ")]
            outcomes = dict(zip(NAMES, (cell.split(_OR) for cell in cells[1:]), strict=True))
            found[does, cells[0].strip().strip("`")] = outcomes
    return found


def written(seen: dict[tuple[str, str], dict[str, str]]) -> str:
    """Return the tables as text."""
    lines: list[str] = []
    for does, title in TITLES.items():
        lines += [
            "",
            f"### {title}",
            "",
            f"| `{_PREFIX}` | {' | '.join(NAMES)} |",
            f"|{'---|' * (len(NAMES) + 1)}",
        ]
        lines += [
            f"| `{fault}` | {' | '.join(cells[name] for name in NAMES)} |"
            for (each, fault), cells in seen.items()
            if each == does
        ]
    return "\n".join([*lines, ""]) + "\n"


def _again(scenario: Scenario, known: dict[str, list[str]] | None, found: dict[str, str]) -> dict[str, str]:
    """Keep the outcomes on the page besides those that were seen now."""
    known = known or {}
    return {name: _OR.join(dict.fromkeys([*known.get(name, []), found[name]])) for name in NAMES}


def main(only: list[str]) -> None:
    """Run all scenarios, or those whose text contains one of the words, and write the page."""
    logging.disable()
    before, _, rest = PAGE.read_text().partition(_BEGIN)
    page = expected()
    seen: dict[tuple[str, str], dict[str, str]] = {}
    with java_clients(fetch("kafka")) as java:
        clients: list[Client] = [WithConfluent(), WithAiokafka(), WithKafkaPython(), java]
        for scenario in SCENARIOS:
            key = scenario.does, scenario.text
            if only and key in page and not any(word in scenario.text for word in only):
                seen[key] = {name: _OR.join(page[key][name]) for name in NAMES}
                continue
            found = see(scenario, clients)
            print(scenario.does, scenario.text, found, flush=True)
            seen[key] = _again(scenario, page.get(key), found)
    PAGE.write_text(before + _BEGIN + written(seen) + _END + rest.partition(_END)[2])


if __name__ == "__main__":
    main(sys.argv[1:])
