"""Every metric: its name, its meaning, and the corresponding MBean of Kafka.

Owns the table (names.txt), which is also in the docs (`python -m kbroker.metrics.names` prints it). Names and labels of
Kafka's MBeans are those that the usual rules of Prometheus's JMX exporter produce, so that dashboards and alerts for
Kafka work. Never counts anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from typing import Final

_COUNTS: Final = ",Count", "-request-count", "throttle-count", "-export-count", "-error-count"
"""The name endings of MBeans that only grow."""


@dataclass(frozen=True, slots=True)
class Name:
    """One metric. A counter's name ends in `_total`; a Kafka count without that ending has no type."""

    name: str
    labels: str
    help: str
    mbean: str
    """Kafka's, after "kafka."; empty for kbroker's own metrics."""

    @property
    def kind(self) -> str:
        """Return the type, in Prometheus's words."""
        if self.name.endswith("_total"):
            return "counter"
        return "unknown" if self.mbean.endswith(_COUNTS) else "gauge"


def _read() -> dict[str, Name]:
    text = (files("kbroker.metrics") / "names.txt").read_text(encoding="utf-8")
    rows = (line.split("|") for line in text.splitlines() if line and not line.startswith("#"))
    found = [Name(*(field.strip() for field in [*row, "", ""][:4])) for row in rows]
    return {each.name: each for each in found}


BY_NAME: Final = _read()


def markdown() -> str:
    """Return the table for the docs."""
    rows = ["| metric | labels | meaning | Kafka's MBean |", "|---|---|---|---|"]
    for each in BY_NAME.values():
        mbean = f"`kafka.{each.mbean}`" if each.mbean else ""
        rows.append(f"| `{each.name}` | {each.labels} | {each.help} | {mbean} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    print(markdown(), end="")
