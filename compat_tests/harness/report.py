"""The last lines of a test run: how many scenarios each client ran, and on which sides.

Owns the count. A pytest plugin, loaded by the root conftest.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import pytest

COUNTS: Final[Counter[tuple[str, str]]] = Counter()
EXCHANGES: Final[Counter[str]] = Counter()
DECLARED: Final[Counter[str]] = Counter()
AGAIN: Final[list[tuple[str, str]]] = []
_WHERE: Final = {"both": "compared on both sides", "recorded": "compared with what Apache Kafka's side saw"}
FILES: Final[dict[str, tuple[int, int, int]]] = {}


def count(client: str, sides: str) -> None:
    """Note that a scenario of `client` ran on `sides`: "both", "recorded", or the one side that ran."""
    COUNTS[client, sides] += 1


def count_exchanges(tier: str, number: int) -> None:
    """Note that a sequence of `number` exchanges was compared on both sides."""
    COUNTS[f"{tier}: sequences", "both"] += 1
    EXCHANGES[tier] += number


def declare(line: str) -> None:
    """Note a declared difference that was met."""
    DECLARED[line] += 1


def declare_again(line: str, whole: str) -> None:
    """Note a scenario that runs again because it failed on Apache Kafka's side alone, and its `whole` error."""
    AGAIN.append((line, whole))


def count_files(direction: str, files: int, records: int, answers: int) -> None:
    """Note that another broker took a data directory over, and how many answers were the same on both sides."""
    FILES[direction] = files, records, answers


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the counts, and each declared difference that was met."""
    if FILES:
        terminalreporter.section("data directories")
        terminalreporter.write_line(f"{'direction':45} {'log files':>9} {'records':>8} {'equal answers':>13}")
        for direction, (files, records, answers) in FILES.items():
            terminalreporter.write_line(f"{direction:45} {files:9} {records:8} {answers:13}")
    if not COUNTS:
        return
    terminalreporter.section("scenarios")
    for (client, sides), number in sorted(COUNTS.items()):
        where = _WHERE.get(sides, f"run on {sides} only, nothing compared")
        terminalreporter.write_line(f"{client:20} {number:4}  {where}")
    total = sum(number for (_, sides), number in COUNTS.items() if sides in _WHERE)
    terminalreporter.write_line(f"{'all clients':20} {total:4}  compared")
    for tier, number in sorted(EXCHANGES.items()):
        terminalreporter.write_line(f"{tier}: {number} exchanges compared, field by field")
    for line, number in sorted(DECLARED.items()):
        terminalreporter.write_line(f"declared difference, met in {number} scenarios: {line}")
    for line, whole in AGAIN:
        terminalreporter.write_line(f"run again, for it failed on Apache Kafka's side alone: {line}\n{whole}")


@pytest.hookimpl
def pytest_sessionstart() -> None:
    """Begin counting anew: one process may run several sessions."""
    COUNTS.clear()
    EXCHANGES.clear()
    DECLARED.clear()
    AGAIN.clear()
    FILES.clear()
