"""The table of keys: its bound, and what it says of a batch."""

from __future__ import annotations

import tracemalloc

import pytest

from kbroker.log.cleaner.offset_map import OffsetMap
from kbroker.log.cleaner.record_runs import read_runs
from kbroker.protocol.records import HEADER_SIZE, build_batch
from tests.log.builders import NOW


def body(*keys: bytes) -> bytes:
    return build_batch([(NOW, key, b"v" * (index % 3), ()) for index, key in enumerate(keys)])[HEADER_SIZE:]


def add(offsets: OffsetMap, base_offset: int, *keys: bytes) -> None:
    data = body(*keys)
    offsets.add(data, read_runs(data, len(keys)), base_offset)


def kept(offsets: OffsetMap, base_offset: int, *keys: bytes) -> list[int]:
    data = body(*keys)
    return list(b"".join(offsets.keep(data, read_runs(data, len(keys)), base_offset)))


@pytest.mark.parametrize("key_size", [4, 10, 40, 300])
def test_the_table_takes_no_more_memory_than_it_may(key_size: int) -> None:
    limit = 4 << 20
    offsets = OffsetMap(0, limit)
    tracemalloc.start()
    batches = 0
    while offsets.has_room(10, key_size):
        add(offsets, batches * 10, *[b"%0*d" % (key_size, batches * 10 + index) for index in range(10)])
        batches += 1
        if key_size == 4 and batches == 999:
            break
    offsets.finish()
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert batches > 400
    assert used < limit * 1.25  # the lists of `finish`, and what tracing counts


def test_the_first_batch_always_has_room() -> None:
    offsets = OffsetMap(0, 1)
    assert offsets.has_room(1000, 1000)
    add(offsets, 0, b"a")
    assert not offsets.has_room(1, 1)


def test_a_batch_with_repeated_keys_keeps_the_last_of_each() -> None:
    offsets = OffsetMap(0, 1 << 20)
    keys = [b"a", b"b", b"a", b"a", b"c"]
    add(offsets, 0, *keys)
    add(offsets, 5, b"c")
    offsets.finish()
    assert kept(offsets, 0, *keys) == [0, 1, 0, 1, 0]
    assert kept(offsets, 5, b"c") == [1]
    assert offsets.is_superseded(3)
    assert not offsets.is_superseded(5)


def test_a_batch_across_the_start_of_the_dirty_part() -> None:
    offsets = OffsetMap(3, 1 << 20)
    keys = [b"a", b"b", b"c", b"a", b"d"]
    add(offsets, 0, *keys)
    add(offsets, 5, b"d")
    offsets.finish()
    assert kept(offsets, 0, *keys) == [0, 1, 1, 1, 0]
    clean = OffsetMap(100, 1 << 20)
    add(clean, 100, b"b")
    clean.finish()
    assert kept(clean, 0, *keys) == [1, 0, 1, 1, 1]
