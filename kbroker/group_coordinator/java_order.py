"""The order of Java's hash tables.

Where members, topics and protocols have no other order, Kafka uses the iteration order of a HashMap. kbroker needs the
same order to compute the same assignment.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Hashable, Iterable
from functools import lru_cache
from itertools import islice
from typing import Generic, TypeVar

from kbroker.coordination.partitioning import java_hash
from kbroker.long_work import turn

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
_AT_ONCE = 200
"""The number of names that are hashed between two turns of the event loop."""


def in_java_order(names: Iterable[str]) -> list[str]:
    """Return strings in the iteration order of a HashMap that contains them. Colliding strings keep the given order."""
    known = list(names)
    mask = _table_size(len(known)) - 1
    return sorted(known, key=lambda name: _spread(java_hash(name)) & mask)


def computed_in_java_order(keys: Iterable[str], capacity: int) -> list[str]:
    """Return the keys of a HashMap of a given capacity, in iteration order, after computeIfAbsent of each of `keys`.

    Unlike put, computeIfAbsent places a key before the keys with which it collides, and enlarges the table one
    insertion later than put.
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


def copied_in_java_order(names: Iterable[str]) -> list[str]:
    """Return strings in the iteration order of a HashSet that is created from a list of these strings."""
    known = list(names)
    mask = _copy_size(len(known)) - 1
    return sorted(known, key=lambda name: _spread(java_hash(name)) & mask)


def topics_in_java_order(topic_ids: Iterable[bytes], *, copied: bool) -> list[bytes]:
    """Return topic ids in the order of a HashMap of Kafka's Uuids or, if `copied`, of a HashSet created from a list."""
    known = sorted(topic_ids)
    if len(known) < 2:
        return known
    mask = (_copy_size if copied else _table_size)(len(known)) - 1
    return sorted(known, key=lambda topic_id: _spread(_uuid_hash(topic_id)) & mask)


def partitions_in_java_order(indexes: Iterable[int]) -> list[int]:
    """Return partitions in the iteration order of a HashSet that is created from a list of these partitions."""
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
    """Return the table size of a HashSet that is created from a collection of `count` elements."""
    return max(16, 1 << int(count / 0.75).bit_length())


def _spread(value: int) -> int:
    value &= 0xFFFFFFFF
    return value ^ value >> 16


@lru_cache(maxsize=1024)
def _uuid_hash(topic_id: bytes) -> int:
    both = int.from_bytes(topic_id[:8], "big") ^ int.from_bytes(topic_id[8:], "big")
    return (both >> 32 ^ both) & 0xFFFFFFFF


def integer_hash(number: int) -> int:
    """Return Java's Integer.hashCode."""
    return number


def uuid_hash(topic_id: bytes) -> int:
    """Return the hash of Kafka's Uuid, unsigned."""
    return _uuid_hash(topic_id)


class HashOrder(Generic[K, V]):
    """A map that lists its keys in the iteration order of Java's HashMap, created for `expected` keys.

    `hash_of` returns the hash of a key. The table only grows, as in Java. If several keys have the same place, keys
    that `add` stored keep their order, and keys that `get_or_add` created have the reverse order (computeIfAbsent); a
    map uses only one of the two. Java's trees, for eight keys or more in one place, are not imitated.
    """

    __slots__ = ("_entries", "_hash_of", "_newest_first", "_size")

    def __init__(self, hash_of: Callable[[K], int], expected: int | None = None) -> None:
        self._hash_of = hash_of
        self._entries: dict[K, V] = {}
        self._newest_first = False
        # AssignorHelpers.newHashMap: the capacity is a power of two of at least (expected + 1) / 0.75 + 1.
        self._size = 16 if expected is None else 1 << (int((expected + 1) / 0.75 + 1) - 1).bit_length()

    def add(self, key: K, value: V) -> None:
        """Store a value under a key."""
        self._entries[key] = value
        if len(self._entries) > self._size * 0.75:
            self._size *= 2

    def get_or_add(self, key: K, make: Callable[[], V]) -> V:
        """Return the value of a key; create the value if there is none."""
        if len(self._entries) > self._size * 0.75:
            self._size *= 2
        if key not in self._entries:
            self._entries[key] = make()
            self._newest_first = True
        return self._entries[key]

    def remove(self, key: K) -> None:
        """Remove a key, if the map contains it."""
        self._entries.pop(key, None)

    def ordered(self) -> list[K]:
        """Return the keys in Java's order."""
        mask = self._size - 1
        known = reversed(self._entries) if self._newest_first else self._entries
        hash_of = self._hash_of
        return sorted(known, key=lambda key: _spread(hash_of(key)) & mask)

    def __getitem__(self, key: K) -> V:
        return self._entries[key]

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)
