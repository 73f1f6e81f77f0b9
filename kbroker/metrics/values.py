"""Values as they are collected: by metric, with their labels.

Owns the shape. Knows neither the broker nor the page.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

Labels = dict[str, str]
Values = dict[str, list[tuple[Labels, float]]]
NONE: Final[Labels] = {}


def put(values: Values, name: str, value: float, labels: Labels = NONE) -> None:
    """Add one value of a metric."""
    found = values.get(name)
    if found is None:
        found = values[name] = []
    found.append((labels, value))


def put_all(values: Values, prefix: str, found: Iterable[tuple[str, float]], labels: Labels = NONE) -> None:
    """Add a value of each of some metrics that have a prefix and their labels in common."""
    for name, value in found:
        put(values, f"{prefix}_{name}", value, labels)
