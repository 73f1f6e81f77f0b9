"""The walk through a batch's records finds the same as a reader of single records, including errors, in small steps."""

from __future__ import annotations

import shutil
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kbroker.log import record_walk
from kbroker.log.record_runs import read_varint
from kbroker.log.record_walk import Row, record_slices
from kbroker.protocol import compression
from kbroker.protocol.compression import CODEC_NAMES, GZIP, LZ4, NONE, SNAPPY, ZSTD, compress
from kbroker.protocol.errors import Malformed
from kbroker.protocol.records import HEADER_SIZE, build_batch, parse_header, put_number, read_records, wrap
from tests.log.bombs import BOMBS, Bomb, sealed
from tests.log.builders import NOW
from tests.tries import tries

MAX = 1 << 24
keys = st.none() | st.binary(max_size=200) | st.just(b"k")
values = st.none() | st.binary(max_size=3) | st.sampled_from([63, 64, 8191, 8192, 20_000]).map(bytes)
headers = st.lists(st.tuples(st.sampled_from(["", "h", "long" * 20]), st.none() | st.binary(max_size=70)), max_size=2)
times = st.sampled_from([0, 0, 0, 1, 63, 64, 1000, -100, 2**40, -NOW - 2, -(2**62), 2**62])
number = st.sampled_from([1, 1, 1, 2, 7, 8, 9, 64, 65, 300])
groups = st.lists(st.tuples(times, keys, values, headers, number), min_size=1, max_size=6)
mutations = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=3)


def read(batch: bytes) -> list[Row] | type[Exception]:
    """Return the contents of the records according to the reader that creates an object for each."""
    header = parse_header(batch)
    try:
        return [
            (
                record.offset - header.base_offset,
                record.timestamp,
                -1 if record.key is None else len(record.key),
                -1 if record.value is None else len(record.value),
            )
            for record in read_records(batch, max_bytes=MAX)
        ]
    except Malformed as error:
        return error.__class__


def walked(batch: bytes) -> list[Row] | type[Exception]:
    header = parse_header(batch)
    rows: list[Row] = []
    end = 0
    try:
        for found in record_slices(memoryview(batch), header, MAX):
            if found is None:
                continue
            assert found.end > end
            end = found.end
            told = list(found.rows())
            stamps = {stamp for _, stamp, _, _ in told}
            assert (len(told), min(found.stamps()), max(found.stamps())) == (found.number, min(stamps), max(stamps))
            assert stamps.issuperset(found.stamps())
            assert found.lacks_keys() == any(key < 0 for _, _, key, _ in told)
            assert found.in_order(len(rows)) == ([row[0] for row in told] == [*range(len(rows), len(rows) + len(told))])
            rows += told
    except Malformed as error:
        return error.__class__
    fixed = header.max_timestamp if header.timestamp_type else None
    return [
        (delta, wrap(header.base_timestamp + stamp) if fixed is None else fixed, max(key, -1), max(value, -1))
        for delta, stamp, key, value in rows
    ]


def compare(batch: bytes) -> None:
    expected = read(batch)
    assert walked(batch) == expected
    with patch.object(record_walk, "scan", None):
        assert walked(batch) == expected


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler, without which kbroker reads records in Python")
def test_the_compiled_scan_is_there() -> None:
    assert record_walk.scan is not None


def test_the_scan_leaves_what_it_does_not_pass() -> None:
    """Nothing of a record that is broken, cut off or has many headers, and nothing after it."""
    assert record_walk.scan is not None
    good = build_batch([(NOW, b"k", b"v", ())] * 3)[HEADER_SIZE:]
    many = build_batch([(NOW, b"k", b"v", [("h", None)] * 4097)])[HEADER_SIZE:]
    assert record_walk.scan(good, 0, 9, 0)[:2] == (3, len(good))
    assert record_walk.scan(good[:-1], 0, 9, 0)[:2] == (2, len(good) // 3 * 2)
    assert record_walk.scan(many, 0, 9, 0)[:2] == (0, 0)
    assert record_walk.scan(b"", 0, 9, 0)[:2] == (0, 0)
    with pytest.raises(ValueError, match="position"):
        record_walk.scan(good, len(good) + 1, 9, 0)
    with pytest.raises(TypeError):
        record_walk.scan(good, 0, 9)  # type: ignore[call-arg]


@pytest.mark.parametrize("pure", [True, False])
def test_headers_of_records_that_are_alike_count_too(monkeypatch: pytest.MonkeyPatch, pure: bool) -> None:
    """So that both walks refuse the same batches."""
    if pure:
        monkeypatch.setattr(record_walk, "scan", None)
    batch = build_batch([(NOW, b"k", b"v", (("", b""),) * 5)] * 20)
    header = parse_header(batch)
    assert sum(found.number for found in record_slices(memoryview(batch), header, 1 << 20, 100) if found) == 20
    with pytest.raises(Malformed, match="more headers"):
        for _ in record_slices(memoryview(batch), header, 1 << 20, 99):
            pass


@pytest.mark.parametrize("pure", [True, False])
@settings(max_examples=tries(50), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(groups, st.sampled_from(range(1, 5)), st.data())
def test_no_record_may_be_larger_than_allowed(
    monkeypatch: pytest.MonkeyPatch,
    pure: bool,
    groups: list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]], int]],
    codec: int,
    data: st.DataObject,
) -> None:
    records = [(NOW + time, key, value, tuple(own)) for time, key, value, own, number in groups for _ in range(number)]
    plain = build_batch(records)[HEADER_SIZE:]
    sizes, position = [], 0
    while position < len(plain):
        size, position = read_varint(plain, position)
        sizes.append(size)
        position += size
    largest = data.draw(st.sampled_from(sizes)) + data.draw(st.integers(-1, 1))
    batch = memoryview(build_batch(records, codec=codec))
    with monkeypatch.context() as patch:
        if pure:
            patch.setattr(record_walk, "scan", None)
        walk = record_slices(batch, parse_header(batch), MAX, max_record=largest)
        if max(sizes) <= largest:
            assert sum(found.number for found in walk if found) == len(records)
            return
        first = next(size for size in sizes if size > largest)
        with pytest.raises(Malformed, match=f"size: {first} exceeds the configured maximum record size of {largest}"):
            for _ in walk:
                pass


@settings(max_examples=tries(300))
@given(groups, mutations, st.sampled_from(range(5)), st.sampled_from([-1, 0, 0, 0, 1]), st.booleans(), st.booleans())
def test_records(
    groups: list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]], int]],
    mutations: list[tuple[int, int]],
    codec: int,
    miscount: int,
    append_time: bool,
    tiny: bool,
) -> None:
    new = [(NOW + time, key, value, tuple(h)) for time, key, value, h, times_over in groups for _ in range(times_over)]
    body = bytearray(build_batch(new)[HEADER_SIZE:])
    for place, byte in mutations:
        body[place % len(body)] = byte
    batch = sealed(bytes(body), len(new) + miscount, codec, timestamp_type=int(append_time))
    with ExitStack() as stack:
        if tiny:  # so that each boundary between pieces, and between small and large records, is tested
            for module, name, size in (
                (record_walk, "_LARGE", 40), (record_walk, "_AHEAD", 104), (record_walk, "_HEADER_BYTES", 8),
                (compression, "PIECE", 50),
            ):  # fmt: skip
                stack.enter_context(patch.object(module, name, size))
        compare(batch)


@settings(max_examples=tries(300))
@given(groups, st.sampled_from([GZIP, SNAPPY, LZ4, ZSTD]), mutations, st.integers(0, 5000))
def test_compressed_bytes(
    groups: list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]], int]],
    codec: int,
    mutations: list[tuple[int, int]],
    cut: int,
) -> None:
    new = [(NOW + time, key, (value or b"")[:99], tuple(h)) for time, key, value, h, _ in groups]
    payload = bytearray(compress(codec, build_batch(new)[HEADER_SIZE:]))
    for place, byte in mutations:
        payload[place % len(payload)] = byte
    if cut % 3 == 0:
        del payload[cut % len(payload) :]
    compare(sealed(bytes(payload), len(new), codec, compressed=True))


@pytest.mark.parametrize("place", range(30))
def test_every_field_of_a_large_record(place: int) -> None:
    batch = build_batch([(NOW, b"k" * 300, b"v" * 20_000, [("name", b"x" * 40_000), ("n", None)])] * 2)
    starts = [HEADER_SIZE, HEADER_SIZE + 314, HEADER_SIZE + 20_317, len(batch) - 10]
    for start in starts:
        for byte in (0, 1, 0x7F, 0x80, 0xFF):
            body = bytearray(batch[HEADER_SIZE:])
            body[(start - HEADER_SIZE + place) % len(body)] = byte
            compare(sealed(bytes(body), 2, NONE))


def test_a_record_larger_than_all_pieces() -> None:
    body = bytearray()
    record = b"\0\0\0\1" + varint(3 << 20) + bytes(3 << 20) + b"\0"
    put_number(body, len(record))
    body += record
    for codec in range(5):
        compare(sealed(bytes(body), 1, codec))


def varint(value: int) -> bytes:
    out = bytearray()
    put_number(out, value)
    return bytes(out)


def steps(bomb: Bomb) -> Iterator[object]:
    batch = memoryview(bomb.batch)
    return record_slices(batch, parse_header(batch), 100 << 20)


@pytest.mark.long
@pytest.mark.parametrize("bomb", BOMBS, ids=lambda bomb: bomb.name)
def test_a_bomb_takes_small_steps_and_little_memory(bomb: Bomb) -> None:
    """A step returns a bounded amount, and the walk keeps a bounded amount."""
    header = parse_header(bomb.batch)
    told = walked_steps = 0
    largest = 0
    tracemalloc.start()
    try:
        for found in steps(bomb):
            walked_steps += 1
            if walked_steps > bomb.enough:
                break
            if found is not None:
                told += found.number  # type: ignore[attr-defined]
                largest = max(largest, found.number)  # type: ignore[attr-defined]
        verdict = "whole" if told == header.record_count else "left"
    except Malformed as error:
        verdict = error.__class__.__name__
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    print(f"{bomb.name}: {len(bomb.batch)} bytes, {told} records in {walked_steps} steps, {peak} bytes, {verdict}")
    assert verdict in bomb.verdicts
    assert largest <= 4096
    assert peak < bomb.memory
    assert walked_steps >= told // 4096


@pytest.mark.long
def test_names() -> None:
    assert {CODEC_NAMES[parse_header(bomb.batch).codec] for bomb in BOMBS} == set(CODEC_NAMES)
