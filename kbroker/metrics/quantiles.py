"""Which quantiles are told of times: those that Kafka has, as the rules for its exporter write them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kbroker.metrics.values import NONE, Labels, Values, put

QUANTILES: Final = (("0.50", 0.5), ("0.75", 0.75), ("0.95", 0.95), ("0.98", 0.98), ("0.99", 0.99), ("0.999", 0.999))


def put_times(values: Values, name: str, seconds: Sequence[float], labels: Labels = NONE) -> None:
    """Add the quantiles of a sample, in milliseconds; nothing where it is empty."""
    if not seconds:
        return
    ordered = sorted(seconds)
    for text, quantile in QUANTILES:
        at = min(int(quantile * len(ordered)), len(ordered) - 1)
        put(values, name, ordered[at] * 1000, labels | {"quantile": text})
