"""The partition of a coordinator's topic for a key: Java's hash of the string, modulo the number of partitions.

The coordinator reads the number of partitions when it first sees its topic, and keeps this number until the topic is
deleted or the broker ends. Therefore no key moves away from its state if the topic grows meanwhile. Kafka reads the
number only at the start (TransactionStateManager.startup, GroupCoordinatorService.startup), from the config if the
topic does not exist yet.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from functools import lru_cache
from operator import mul
from typing import Final

log = logging.getLogger(__name__)


SHORT_ID: Final = 128
"""The maximum length in characters of an id whose partition is cached. Clients choose their ids, of up to 32 kB."""
_UTF_16: Final = "utf-16-le" if sys.byteorder == "little" else "utf-16-be"
_POWERS: Final = tuple(pow(31, power, 1 << 32) for power in reversed(range(256)))


def java_hash(text: str) -> int:
    """Return Java's String.hashCode: 32 bits, signed, over UTF-16 units. 32,767 units take about a millisecond."""
    units = memoryview(text.encode(_UTF_16, "surrogatepass")).cast("H")
    first = len(units) % len(_POWERS)
    value: int = sum(map(mul, units[:first], _POWERS[len(_POWERS) - first :]))
    for at in range(first, len(units), len(_POWERS)):
        value = (value * _POWERS[0] * 31 + sum(map(mul, units[at : at + len(_POWERS)], _POWERS))) & 0xFFFFFFFF
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


@lru_cache(maxsize=8192)
def _partition_for(key: str, count: int) -> int:
    value = java_hash(key)
    return 0 if value == -(1 << 31) else abs(value) % count


def partition_for(key: str, count: int) -> int:
    """Return the partition that coordinates `key`: Utils.abs(hash) modulo `count` (abs of the least integer is 0)."""
    if len(key) <= SHORT_ID:
        return _partition_for(key, count)
    uncached: Callable[[str, int], int] = _partition_for.__wrapped__
    return uncached(key, count)


class Partitioning:
    """Maps the keys of a topic to its partitions.

    `there_are` returns the current number of partitions, 0 if the topic does not exist; `planned` is the number with
    which the topic will be created.
    """

    def __init__(self, topic: str, planned: int, there_are: Callable[[], int]) -> None:
        self._topic = topic
        self._planned = planned
        self._there_are = there_are
        self._count = there_are()
        self._growth_logged = False

    def of(self, key: str) -> int:
        """Return the partition that coordinates a key, even if the topic does not exist yet."""
        return partition_for(key, self._count or self._seen() or self._planned)

    def leads(self, partition: int) -> None:
        """Record that this broker leads a partition; warn if no key belongs to the partition."""
        if partition >= self._seen() > 0 and not self._growth_logged:
            self._growth_logged = True
            log.warning(
                "%s has grown: this broker uses %d partitions until it ends; after its next start it uses all, and"
                " looks for some ids in other partitions",
                self._topic,
                self._count,
            )

    def forget(self) -> None:
        """Forget the number of partitions of a deleted topic: a topic that is created later may have another number."""
        self._count, self._growth_logged = 0, False

    def _seen(self) -> int:
        if self._count == 0:
            self._count = self._there_are()
        return self._count
