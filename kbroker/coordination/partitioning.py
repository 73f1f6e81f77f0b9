"""Which partition of a coordinator's topic a key belongs to, by Java's hash of strings."""

from __future__ import annotations

from functools import lru_cache


def java_hash(text: str) -> int:
    """Return Java's String.hashCode: over UTF-16 units, signed 32 bit."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for i in range(0, len(units), 2):
        value = (31 * value + (units[i] << 8) + units[i + 1]) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


@lru_cache(maxsize=8192)
def partition_for(key: str, count: int) -> int:
    """Return the partition that coordinates `key`: Utils.abs(hash) modulo `count` (abs of the least integer is 0)."""
    value = java_hash(key)
    return 0 if value == -(1 << 31) else abs(value) % count
