"""The figures of a run: records, bytes, and both per second.

Owns the definition of a run's time, the percentiles, and the distribution of single records' times. Times are counted
in microseconds, in buckets. The width of a bucket is at most a thousandth of the time. So memory does not grow with the
number of records. The minimum, the maximum and the mean are exact. Never reads a clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

PERCENTILES: Final[Mapping[str, float]] = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}
_BITS: Final = 11
"""The number of significant bits of a counted time: there are at least 1,024 buckets between a time and its double."""


class Times:
    """A distribution of times in seconds, as counts."""

    def __init__(self) -> None:
        self.count = 0
        self._sum = 0.0
        self._least = float("inf")
        self._most = 0.0
        self._buckets: Counter[int] = Counter()

    def add(self, seconds: float) -> None:
        """Count one measured time."""
        self.count += 1
        self._sum += seconds
        self._least = min(self._least, seconds)
        self._most = max(self._most, seconds)
        self._buckets[_bucket(round(seconds * 1_000_000))] += 1

    def percentile(self, part: float) -> float:
        """Return the time in seconds within which the share `part` of the measurements lies (nearest rank)."""
        rank = max(1, -(-self.count * part // 1))
        seen = 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= rank:
                return min(max(bucket / 1_000_000, self._least), self._most)
        return 0.0

    def summary_ms(self) -> dict[str, float | None]:
        """Return the mean, the minimum, the maximum and percentiles, in ms; None if there are no times."""
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
    """Return the middle of a time's bucket."""
    shift = max(microseconds.bit_length() - _BITS, 0)
    return ((microseconds >> shift) << shift) + ((1 << shift) >> 1)


MB: Final = 1024 * 1024
"""The number of bytes of 1 MB in Kafka's tools."""


@dataclass(slots=True)
class Run:
    """The number of records since the start of a run, their size in bytes, and each record's duration if known."""

    began: float
    ended: float = 0.0
    records: int = 0
    octets: int = 0
    failed: int = 0
    times: Times = field(default_factory=Times)

    def rates(self) -> dict[str, float | int]:
        """Return records and MB, total and per second, for the time from `began` to `ended`."""
        took = max(self.ended - self.began, 0.0)
        return {
            "records": self.records,
            "seconds": round(took, 3),
            "mb": round(self.octets / MB, 3),
            "records_per_s": round(self.records / took, 1) if took else 0.0,
            "mb_per_s": round(self.octets / MB / took, 3) if took else 0.0,
        }
