"""A table of kbroker beside Apache Kafka: alternating rounds, the median of each figure, the ratio, and the target.

Owns the table and its file under benchmarks/results/. Measures nothing, and asserts no times.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

RESULTS = Path(__file__).parent / "results"
SUBJECTS = ("kbroker", "kafka")
Figures = dict[str, float]
Work = dict[str, Figures]
"""The figures of each piece of work."""


@dataclass(frozen=True)
class Row:
    """One line: a figure of a piece of work, and its target.

    The target concerns the ratio kbroker/Kafka, or kbroker's own figure; None for no target.
    """

    work: str
    figure: str
    unit: str
    aim: float | None = None
    more_is_better: bool = False
    of_ratio: bool = True


def alternate(rounds: int, measure: Callable[[str], Work], names: Iterable[str] = SUBJECTS) -> dict[str, list[Work]]:
    """Measure both alternately, or only one; print the figures of each round as they arrive."""
    found: dict[str, list[Work]] = {name: [] for name in names}
    for _ in range(rounds):
        for name, measured in found.items():
            measured.append(measure(name))
            for work, figures in measured[-1].items():
                told = ", ".join(f"{figure} {value:,.3f}" for figure, value in figures.items())
                print(f"  {name:8} {work}: {told}", flush=True)
    return found


def table(rows: Iterable[Row], rounds: dict[str, list[Work]], decimals: int = 1) -> list[str]:
    """Return the lines of the rows that were measured."""
    lines = ["| work | unit | kbroker | Apache Kafka | ratio | aim |", "|---|---|---|---|---|---|"]
    for row in rows:
        told = {name: [each[row.work][row.figure] for each in rounds[name] if row.work in each] for name in SUBJECTS}
        if not all(told.values()):
            continue
        ours, theirs = (median(told[name]) for name in SUBJECTS)
        values = f"{ours:,.{decimals}f} | {theirs:,.{decimals}f} | {ours / theirs:.2f}"
        lines.append(f"| {row.work} | {row.unit} | {values} | {_verdict(row, ours, theirs)} |")
    return lines


def _verdict(row: Row, ours: float, theirs: float) -> str:
    if row.aim is None:
        return ""
    found = ours / theirs if row.of_ratio else ours
    missed = found < row.aim if row.more_is_better else found > row.aim
    return f"{'>=' if row.more_is_better else '<='} {row.aim}{' MISSED' if missed else ''}"


def save(name: str, title: str, command: str, lines: list[str], *facts: str) -> None:
    """Print the lines; write them to a file with the time, the command, the machine, the versions and `facts`."""
    print("\n".join(lines))
    stamp = time.strftime("%Y-%m-%d-%H%M", time.gmtime())
    head = [
        f"# {title}, {stamp} UTC",
        "",
        f"- command: `python -m benchmarks.{command}`",
        f"- machine: {os.cpu_count()} cores, {platform.machine()}, Linux {platform.release()}; "
        f"Python {platform.python_version()}; Apache Kafka 4.4.0",
        *(f"- {fact}" for fact in facts),
        "",
    ]
    (RESULTS / f"{stamp}-{name}.md").write_text("\n".join([*head, *lines, ""]))
