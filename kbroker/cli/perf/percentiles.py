"""Times by how often each came, and what is told of them: the mean, the extremes, percentiles.

Owns which percentiles there are, and how a time is counted: in microseconds, in buckets whose width is at most a
thousandth of it, so that millions of records take no more memory than a few. The least, the greatest and the mean are
exact. Never looks at a clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

PERCENTILES: Final[Mapping[str, float]] = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}
_BITS: Final = 11
"""Of a time that are kept: at least 1,024 buckets lie between one and twice as much."""


class Times:
    """How often which time came; times are in seconds."""

    def __init__(self) -> None:
        self.count = 0
        self._sum = 0.0
        self._least = float("inf")
        self._most = 0.0
        self._buckets: Counter[int] = Counter()

    def add(self, seconds: float) -> None:
        """Count a time."""
        self.count += 1
        self._sum += seconds
        self._least = min(self._least, seconds)
        self._most = max(self._most, seconds)
        self._buckets[_bucket(round(seconds * 1_000_000))] += 1

    def percentile(self, part: float) -> float:
        """Return the time within which so great a part of all came, nearest rank; in seconds."""
        rank = max(1, -(-self.count * part // 1))
        seen = 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= rank:
                return min(max(bucket / 1_000_000, self._least), self._most)
        return 0.0

    def summary_ms(self) -> dict[str, float | None]:
        """Return the mean, the least and the greatest, and percentiles, in ms; None where there is nothing."""
        if not self.count:
            return dict.fromkeys(("mean", "min", *PERCENTILES, "max"))
        seconds = {
            "mean": self._sum / self.count,
            "min": self._least,
            **{name: self.percentile(part) for name, part in PERCENTILES.items()},
            "max": self._most,
        }
        return {name: round(value * 1000, 3) for name, value in seconds.items()}


def _bucket(microseconds: int) -> int:
    """Return the middle of the bucket in which a time lies."""
    shift = max(microseconds.bit_length() - _BITS, 0)
    return ((microseconds >> shift) << shift) + ((1 << shift) >> 1)
