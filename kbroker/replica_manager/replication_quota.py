"""Limits the rate at which throttled replicas are copied (KIP-73; Apache Kafka: ReplicationQuotaManager).

Owns the byte counts of the last samples, and decides which of a topic's replicas are throttled. In-sync replicas are
never throttled; replicated_partition.py excludes them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

from kbroker.quota.rate import Window

LEADER_REPLICAS: Final = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS: Final = "follower.replication.throttled.replicas"
UNLIMITED: Final = (1 << 63) - 1
THROTTLED_PAUSE_MS: Final = 100
"""The pause of a replica that was copied too fast, in ms."""
_WINDOW: Final = Window(11, 1000)


class ReplicationQuota:
    """The rate in bytes per second, as the mean of the last samples; times in ms.

    (replication.quota.window.num, replication.quota.window.size.seconds)
    """

    def __init__(self, window: Window = _WINDOW) -> None:
        self.rate: float = UNLIMITED
        self._window = window
        self._samples: deque[list[int]] = deque()  # [number, bytes]
        self._total = 0

    def record(self, size: int, now_ms: float) -> None:
        """Count bytes."""
        number = int(now_ms // self._window.sample_ms)
        self._forget(number)
        if not self._samples or self._samples[-1][0] != number:
            self._samples.append([number, 0])
        self._samples[-1][1] += size
        self._total += size

    def is_exceeded(self, now_ms: float) -> bool:
        """Whether the rate is exceeded, so that no more bytes may be copied now."""
        if self.rate >= UNLIMITED:
            return False
        sample_ms = self._window.sample_ms
        self._forget(int(now_ms // sample_ms))
        if not self._samples:
            return False
        elapsed_ms = max(now_ms - self._samples[0][0] * sample_ms, sample_ms)
        return self._total * 1000 > self.rate * elapsed_ms

    def _forget(self, number: int) -> None:
        while self._samples and self._samples[0][0] <= number - self._window.samples:
            self._total -= self._samples.popleft()[1]


def is_throttled(configs: Mapping[str, str], key: str, partition: int, broker: int) -> bool:
    """Whether a topic's config throttles a replica: by a list of `partition:broker`, or by `*` for all replicas."""
    text = configs.get(key, "").strip()
    if not text or text == "none":
        return False
    return text == "*" or f"{partition}:{broker}" in (each.strip() for each in text.split(","))
