"""The figures of a run: records, bytes, and both a second.

Owns what counts as a run's time. percentiles.py counts the times of single records. Never reads a clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from kbroker.cli.perf.percentiles import Times

MB: Final = 1024 * 1024
"""The bytes of an MB in Kafka's tools."""


@dataclass(slots=True)
class Run:
    """The records since a moment, their bytes, and the time of each if known."""

    began: float
    ended: float = 0.0
    records: int = 0
    octets: int = 0
    failed: int = 0
    times: Times = field(default_factory=Times)

    def rates(self) -> dict[str, float | int]:
        """Return records and MB, total and per second, over the time from the first to the last."""
        took = max(self.ended - self.began, 0.0)
        return {
            "records": self.records,
            "seconds": round(took, 3),
            "mb": round(self.octets / MB, 3),
            "records_per_s": round(self.records / took, 1) if took else 0.0,
            "mb_per_s": round(self.octets / MB / took, 3) if took else 0.0,
        }
