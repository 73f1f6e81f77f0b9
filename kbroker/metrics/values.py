"""The form of collected values: each metric has values with their labels.

Owns this form. Knows neither the broker nor the page.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
    """Add values of several metrics that have the same prefix and the same labels."""
    for name, value in found:
        put(values, f"{prefix}_{name}", value, labels)


QUANTILES: Final = (("0.50", 0.5), ("0.75", 0.75), ("0.95", 0.95), ("0.98", 0.98), ("0.99", 0.99), ("0.999", 0.999))


def put_times(values: Values, name: str, seconds: Sequence[float], labels: Labels = NONE) -> None:
    """Add the quantiles of a sample, in ms. Add nothing for an empty sample."""
    if not seconds:
        return
    ordered = sorted(seconds)
    for text, quantile in QUANTILES:
        at = min(int(quantile * len(ordered)), len(ordered) - 1)
        put(values, name, ordered[at] * 1000, labels | {"quantile": text})
