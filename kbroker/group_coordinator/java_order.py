"""The order of Java's hash tables.

Where members, topics and protocols have no other order, Kafka uses the iteration order of a HashMap. kbroker needs the
same order to compute the same assignment.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable
from itertools import islice

from kbroker.coordination.partitioning import java_hash
from kbroker.long_work import turn

_AT_ONCE = 200
"""The number of names that are hashed between two turns."""


def in_java_order(names: Iterable[str]) -> list[str]:
    """Return strings in the iteration order of a HashMap of them; collisions keep the given order."""
    known = list(names)
    mask = _table_size(len(known)) - 1
    return sorted(known, key=lambda name: _spread(java_hash(name)) & mask)


def computed_in_java_order(keys: Iterable[str], capacity: int) -> list[str]:
    """Return the keys of a HashMap of a capacity, in iteration order, after computeIfAbsent of each of `keys`.

    Unlike put, computeIfAbsent places a key before those that it collides with, and enlarges the table at a later call.
    """
    size = 1 << max(capacity - 1, 0).bit_length()
    known: dict[str, None] = {}
    for key in keys:
        if len(known) > int(size * 0.75):
            size *= 2
        known.setdefault(key)
    newest_first = list(reversed(known))
    return sorted(newest_first, key=lambda key: _spread(java_hash(key)) & size - 1)


async def list_in_java_order(names: Collection[str]) -> list[str]:
    """Return the result of `in_java_order` for many strings, in steps. The strings must not change meanwhile."""
    mask = _table_size(len(names)) - 1
    left = enumerate(names)
    pieces: list[list[tuple[int, int, str]]] = []
    while piece := sorted((_spread(java_hash(name)) & mask, at, name) for at, name in islice(left, _AT_ONCE)):
        pieces.append(piece)
        await turn
    merged, found = heapq.merge(*pieces), list[str]()
    while step := [name for _, _, name in islice(merged, _AT_ONCE)]:
        found += step
        await turn
    return found


def topics_in_java_order(topic_ids: Iterable[bytes], *, copied: bool) -> list[bytes]:
    """Return topic ids in the iteration order of a HashMap of Kafka's Uuids; or of a HashSet `copied` from others."""
    known = sorted(topic_ids)
    if len(known) < 2:
        return known
    mask = (_copy_size if copied else _table_size)(len(known)) - 1
    return sorted(known, key=lambda topic_id: _spread(_uuid_hash(topic_id)) & mask)


def partitions_in_java_order(indexes: Iterable[int]) -> list[int]:
    """Return partitions in the iteration order of a HashSet copied from a list of them."""
    known = sorted(indexes)
    mask = _copy_size(len(known)) - 1
    return known if not known or known[-1] <= mask else sorted(known, key=lambda index: _spread(index) & mask)


def _table_size(count: int) -> int:
    """Return the table size of a HashMap that has grown to `count` entries."""
    size = 16
    while count > size * 0.75:
        size *= 2
    return size


def _copy_size(count: int) -> int:
    """Return the table size of a HashSet made from a collection of `count`."""
    return max(16, 1 << int(count / 0.75).bit_length())


def _spread(value: int) -> int:
    value &= 0xFFFFFFFF
    return value ^ value >> 16


def _uuid_hash(topic_id: bytes) -> int:
    both = int.from_bytes(topic_id[:8], "big") ^ int.from_bytes(topic_id[8:], "big")
    return (both >> 32 ^ both) & 0xFFFFFFFF
