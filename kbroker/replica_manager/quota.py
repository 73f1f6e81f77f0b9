"""How fast throttled replicas are copied (KIP-73; Apache Kafka: ReplicationQuotaManager).

Owns the count of bytes of the last seconds, and which of a topic's replicas are throttled. What is in sync is never
throttled; whoever asks knows that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

LEADER_REPLICAS: Final = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS: Final = "follower.replication.throttled.replicas"
UNLIMITED: Final = (1 << 63) - 1
_WINDOW_MS: Final = 1000
_WINDOWS: Final = 11
"""Seconds over which the rate is the mean (replication.quota.window.num, replication.quota.window.size.seconds)."""


class ReplicationQuota:
    """Bytes per second, as the mean of the last seconds; times in ms."""

    def __init__(self) -> None:
        self.rate: float = UNLIMITED
        self._seconds: deque[list[int]] = deque()  # [second, bytes]
        self._total = 0

    def record(self, size: int, now_ms: float) -> None:
        """Count bytes that went."""
        second = int(now_ms // _WINDOW_MS)
        self._forget(second)
        if not self._seconds or self._seconds[-1][0] != second:
            self._seconds.append([second, 0])
        self._seconds[-1][1] += size
        self._total += size

    def is_exceeded(self, now_ms: float) -> bool:
        """Tell whether nothing more should go now."""
        if self.rate >= UNLIMITED:
            return False
        self._forget(int(now_ms // _WINDOW_MS))
        if not self._seconds:
            return False
        elapsed_ms = max(now_ms - self._seconds[0][0] * _WINDOW_MS, _WINDOW_MS)
        return self._total * 1000 > self.rate * elapsed_ms

    def _forget(self, second: int) -> None:
        while self._seconds and self._seconds[0][0] <= second - _WINDOWS:
            self._total -= self._seconds.popleft()[1]


def is_throttled(configs: Mapping[str, str], key: str, partition: int, broker: int) -> bool:
    """Tell whether a topic's configs name a replica in a list of `partition:broker`, or all by `*`."""
    text = configs.get(key, "").strip()
    if not text or text == "none":
        return False
    return text == "*" or f"{partition}:{broker}" in (each.strip() for each in text.split(","))
