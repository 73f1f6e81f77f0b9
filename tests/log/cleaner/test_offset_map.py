"""The table of keys: its memory bound, and its verdict on a batch."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

import pytest

from kbroker.log.cleaner.offset_map import OffsetMap
from kbroker.log.record_runs import read_runs
from kbroker.protocol.records import HEADER_SIZE, build_batch
from tests.log.builders import NOW

_ROUNDED = 16  # allocations are rounded up to a multiple of it


def body(*keys: bytes) -> bytes:
    return build_batch([(NOW, key, b"v" * (index % 3), ()) for index, key in enumerate(keys)])[HEADER_SIZE:]


def add(offsets: OffsetMap, base_offset: int, *keys: bytes) -> bool:
    data = body(*keys)
    return offsets.add(data, read_runs(data, len(keys)), base_offset)


def kept(offsets: OffsetMap, base_offset: int, *keys: bytes) -> list[int]:
    data = body(*keys)
    return list(b"".join(offsets.keep(data, read_runs(data, len(keys)), base_offset)))


def held(thing: Any) -> int:
    """Return the bytes of everything that an object references, without concurrent allocations of other threads."""
    seen: dict[int, Any] = {}

    def walk(found: list[Any]) -> Iterator[Any]:
        while found:
            each = found.pop()
            if id(each) not in seen and not isinstance(each, type | FunctionType | ModuleType):
                seen[id(each)] = each
                found += gc.get_referents(each)
                yield each

    return sum(sys.getsizeof(each) + _ROUNDED - 1 & -_ROUNDED for each in walk([thing]))


@pytest.mark.parametrize("per_batch", [1, 10, 100])
@pytest.mark.parametrize("key_size", [4, 10, 40, 300])
def test_the_table_takes_no_more_memory_than_it_may(key_size: int, per_batch: int) -> None:
    limit = 1 << 18
    base = 9990  # the most that four digits can distinguish
    offsets = OffsetMap(0, base + per_batch, limit)
    batches = 0
    while base >= 0 and add(offsets, base, *[b"%0*d" % (key_size, base + index) for index in range(per_batch)]):
        base -= per_batch
        batches += 1
    used = held(offsets)
    assert base >= 0, "the table never was full"
    assert limit * 0.5 < used < limit * 1.05  # a set is counted with the size to which it would grow


def test_a_batch_that_does_not_fit_changes_nothing() -> None:
    offsets = OffsetMap(0, 30, 5000)
    assert add(offsets, 20, *[b"%d" % key for key in range(10)])
    assert not add(offsets, 10, *[b"%d" % key for key in range(5, 500)])
    assert add(offsets, 10, b"9", b"0")
    assert offsets.is_superseded(10)
    assert kept(offsets, 20, *[b"%d" % key for key in range(10)]) == [1] * 10


def test_the_first_batch_always_has_room() -> None:
    offsets = OffsetMap(0, 20, 1)
    assert add(offsets, 10, *[b"%d" % key for key in range(10)])
    assert not add(offsets, 9, b"a")
    assert add(offsets, 8, b"7")  # nothing new


def test_batches_that_are_set_apart_take_memory_too() -> None:
    """A log may have nothing but batches whose records cannot be read."""
    limit = 1 << 16
    offsets = OffsetMap(0, 10_000, limit)
    fitted = [base for base in reversed(range(5_000, 10_000)) if offsets.set_apart(base)]
    assert limit * 0.5 < held(offsets) < limit * 1.05
    assert not any(offsets.is_superseded(base) for base in fitted)
    assert offsets.is_superseded(fitted[-1] - 1)


def test_a_large_key_is_not_counted_for_its_neighbours() -> None:
    offsets = OffsetMap(0, 200, 1 << 20)
    assert add(offsets, 100, b"first")
    assert add(offsets, 0, b"x" * 100_000, *[b"%d" % key for key in range(99)])


def test_a_batch_with_repeated_keys_keeps_the_last_of_each() -> None:
    offsets = OffsetMap(0, 6, 1 << 20)
    keys = [b"a", b"b", b"a", b"a", b"c"]
    assert add(offsets, 5, b"c")
    assert add(offsets, 0, *keys)
    assert kept(offsets, 0, *keys) == [0, 1, 0, 1, 0]
    assert kept(offsets, 5, b"c") == [1]
    assert offsets.is_superseded(3)
    assert not offsets.is_superseded(5)


def test_a_batch_across_the_start_of_the_dirty_part() -> None:
    offsets = OffsetMap(3, 6, 1 << 20)
    keys = [b"a", b"b", b"c", b"a", b"d"]
    assert add(offsets, 5, b"d")
    assert add(offsets, 0, *keys)
    assert kept(offsets, 0, *keys) == [0, 1, 1, 1, 0]
    clean = OffsetMap(100, 101, 1 << 20)
    assert add(clean, 100, b"b")
    assert kept(clean, 0, *keys) == [1, 0, 1, 1, 1]
