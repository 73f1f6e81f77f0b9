"""Record batches: round trips, and bytes that only claim to be a batch."""

from __future__ import annotations

import contextlib
import random
import struct
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.protocol.compression import GZIP
from kbroker.protocol.errors import Malformed
from kbroker.protocol.records import (
    HEADER_SIZE,
    EndTxnMarker,
    build_batch,
    build_marker,
    compute_crc,
    iter_batches,
    parse_header,
    read_marker,
    read_records,
)
from tests.tries import tries

MAX = 1 << 20
optional_bytes = st.none() | st.binary(max_size=300)
headers = st.lists(st.tuples(st.text(max_size=20), optional_bytes), max_size=4)
records = st.lists(st.tuples(st.integers(-1, 2**62), optional_bytes, optional_bytes, headers), min_size=1, max_size=20)


@given(records, st.sampled_from(range(5)), st.integers(0, 2**40), st.integers(-1, 2**31 - 1))
def test_round_trip(rows: Any, codec: int, base_offset: int, epoch: int) -> None:
    batch = build_batch(rows, base_offset=base_offset, leader_epoch=epoch, codec=codec)
    header = parse_header(batch)
    assert header.size == len(batch)
    assert header.crc == compute_crc(batch)
    assert (header.codec, header.leader_epoch, header.record_count) == (codec, epoch, len(rows))
    assert header.max_timestamp == max(row[0] for row in rows)
    found = list(read_records(batch, max_bytes=MAX))
    assert [(r.timestamp, r.key, r.value, list(r.headers)) for r in found] == rows
    assert [r.offset for r in found] == list(range(base_offset, base_offset + len(rows)))
    assert found[-1].offset == header.last_offset


def test_header_properties() -> None:
    batch = build_batch(
        [(5, b"k", None, ())] * 3, producer_id=7, producer_epoch=2, base_sequence=2**31 - 2, transactional=True,
        timestamp_type=1, codec=GZIP,
    )  # fmt: skip
    header = parse_header(batch)
    assert (header.is_transactional, header.is_control, header.timestamp_type, header.codec) == (True, False, 1, GZIP)
    assert header.last_sequence == 0, "sequences wrap after 2^31-1 (T2)"
    assert parse_header(build_batch([(1, None, None, ())])).last_sequence == -1


def test_log_append_time_is_every_records_time() -> None:
    batch = bytearray(build_batch([(5, None, b"a", ()), (9, None, b"b", ())], timestamp_type=1))
    struct.pack_into(">q", batch, 35, 77)
    assert [record.timestamp for record in read_records(batch, max_bytes=MAX)] == [77, 77]


def test_markers() -> None:
    marker = build_marker(producer_id=1, producer_epoch=2, commit=False, coordinator_epoch=9, timestamp=3)
    assert parse_header(marker).is_control
    assert read_marker(marker) == EndTxnMarker(commit=False, coordinator_epoch=9)
    other = build_batch([(0, struct.pack(">hh", 0, 5), b"", ())], control=True)
    assert read_marker(other) is None, "a control record of another kind"
    with pytest.raises(Malformed):
        read_marker(build_batch([(0, b"", b"", ())], control=True))


def test_iter_batches_stops_at_a_partial_one() -> None:
    one = build_batch([(1, None, b"v", ())])
    two = build_batch([(1, None, b"v", ())] * 2, base_offset=1)
    both = one + two
    for cut in range(len(both)):
        whole = [position for position, _ in iter_batches(memoryview(both)[:cut])]
        assert whole == ([0] if cut >= len(one) else [])
    assert [position for position, _ in iter_batches(both)] == [0, len(one)]


@pytest.mark.parametrize(
    ("place", "content"),
    [
        (16, b"\x01"),  # magic
        (8, struct.pack(">i", 48)),  # shorter than its header
        (8, struct.pack(">i", -1)),
        (57, struct.pack(">i", -1)),  # count
        (57, struct.pack(">i", 2)),  # more records than there are
        (57, struct.pack(">i", 2**31 - 1)),
        (61, b"\x7f"),  # record length
        (61, b"\x01"),
        (61, b"\xff" * 6),  # a number without an end
    ],
)
def test_broken_fields(place: int, content: bytes) -> None:
    batch = bytearray(build_batch([(1, b"key", b"value", [("h", b"v")])]))
    batch[place : place + len(content)] = content
    with pytest.raises(Malformed):
        list(read_records(batch, max_bytes=MAX))


def test_left_over_bytes() -> None:
    batch = bytearray(build_batch([(1, b"key", b"value", ())] * 2))
    struct.pack_into(">i", batch, 57, 1)
    with pytest.raises(Malformed):
        list(read_records(batch, max_bytes=MAX))


def test_mutated_batches_raise_only_malformed() -> None:
    seeds = [
        build_batch([(i, b"k" * i, b"v" * i, [("h", None)]) for i in range(6)], codec=codec, producer_id=1)
        for codec in range(5)
    ]
    rng = random.Random(20)
    tracemalloc.start()
    for _ in range(tries(20_000)):
        batch = bytearray(rng.choice(seeds))
        for _ in range(rng.randint(1, 4)):
            batch[rng.randrange(8, len(batch))] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
        if rng.random() < 0.3:
            del batch[rng.randrange(len(batch)) :]
        try:
            for position, header in iter_batches(batch):
                list(read_records(batch[position : position + header.size], max_bytes=100_000))
        except Malformed:
            pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_000_000


@given(st.binary(max_size=200))
def test_random_bytes_behind_a_header(body: bytes) -> None:
    header = bytearray(build_batch([(1, None, None, ())])[:HEADER_SIZE])
    struct.pack_into(">i", header, 8, HEADER_SIZE - 12 + len(body))
    with contextlib.suppress(Malformed):
        list(read_records(bytes(header) + body, max_bytes=MAX))
