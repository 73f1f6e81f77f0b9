"""The partition of a key, as the default partitioner of Kafka's clients chooses it (murmur2).

Owns the hash. Never chooses a partition for a record without a key.
"""

from __future__ import annotations

import struct
from typing import Final

_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF
_POSITIVE: Final = 0x7FFFFFFF


def murmur2(data: bytes) -> int:
    """Return the hash of `data` (Utils.murmur2 of Apache Kafka), as an unsigned number of 32 bits."""
    size = len(data)
    value = _SEED ^ size
    words = size >> 2
    for word in struct.unpack_from(f"<{words}I", data):
        word = word * _M & _MASK
        value = value * _M & _MASK ^ (word ^ word >> 24) * _M & _MASK
    rest = data[words << 2 :]
    if rest:
        value = (value ^ int.from_bytes(rest, "little")) * _M & _MASK
    value = (value ^ value >> 13) * _M & _MASK
    return value ^ value >> 15


def partition_of(key: bytes, count: int) -> int:
    """Return the partition of a key in a topic with `count` partitions."""
    return (murmur2(key) & _POSITIVE) % count
