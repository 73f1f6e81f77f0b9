"""Runs describe each record in the same way as reading the records one at a time."""

from __future__ import annotations

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kbroker.log import record_runs
from kbroker.log.record_runs import Run, read_runs
from kbroker.protocol.errors import Malformed
from kbroker.protocol.records import HEADER_SIZE, build_batch, compute_crc, read_records
from tests.log.builders import NOW

keys = st.none() | st.integers(0, 99).map(lambda n: b"%03d" % n) | st.binary(max_size=200)
values = st.none() | st.binary(max_size=3)
times = st.sampled_from([0, 1, 63, 64, 70, 9000, -1, -70, 2**40])
records = st.lists(st.tuples(times, keys, values, st.integers(1, 150)), min_size=1, max_size=12)


@given(records)
@example([(0, b"k", b"v", 9000)])
@example([(0, b"k", b"v", 150), (0, b"k", None, 1), (0, b"k", b"v", 150), (64, b"k", b"v", 150)])
def test_runs_hold_what_the_records_hold(groups: list[tuple[int, bytes | None, bytes | None, int]]) -> None:
    new = [(NOW + time, key, value, ()) for time, key, value, times_over in groups for _ in range(times_over)]
    batch = build_batch(new)
    data = batch[HEADER_SIZE:]
    runs = read_runs(data, len(new))
    expected = list(read_records(batch, max_bytes=1 << 24))
    found = []
    delta = 0
    for run in runs:
        assert (run.below(delta), run.below(delta + 1), run.last_delta) == (0, 1, delta + run.number - 1)
        stamps = [record.timestamp - NOW - groups[0][0] for record in expected[delta : delta + run.number]]
        odd = bytes(index % 2 for index in range(1, run.number + 1))
        assert run.largest_stamp(data, odd) == max(stamps[::2])
        assert run.largest_stamp(data, b"\1" * run.number) == max(stamps)
        keys_ = list(run.keys(data)) if run.key_size >= 0 else [None] * run.number
        nulls = run.nulls(data) or bytes(run.number)
        assert len(keys_) == len(nulls) == run.number
        found += [(key, bool(null)) for key, null in zip(keys_, nulls, strict=True)]
        delta += run.number
    assert found == [(record.key, record.value is None) for record in expected]
    assert b"".join(record for run in runs for record in run.records(data)) == data


def test_a_thousand_records_of_one_layout_are_few_runs() -> None:
    new = [(NOW, b"%05d" % index, b"v" * 80, ()) for index in range(10_000)]
    runs = read_runs(build_batch(new)[HEADER_SIZE:], 10_000)
    assert [run.number for run in runs] == [64, 8192 - 64, 10_000 - 8192]


def test_looking_for_neighbours_costs_no_square_of_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runs end just after the records that are checked first."""
    looked = []
    alike = record_runs._alike

    def counted(data: bytes, run: Run, count: int, *places: int) -> int:
        looked.append(count)
        return alike(data, run, count, *places)

    monkeypatch.setattr(record_runs, "_alike", counted)
    new = ([(NOW, b"k", b"", ())] * 65 + [(NOW, b"k", b"longer", ())]) * 100
    assert sum(run.number for run in read_runs(build_batch(new)[HEADER_SIZE:], len(new))) == len(new)
    assert sum(looked) < 20 * len(new)


def test_a_batch_of_very_many_records_is_not_remembered() -> None:
    record_runs._shapes.clear()
    for count in (4000, 8000):
        read_runs(build_batch([(NOW, b"%05d" % index, b"v", ()) for index in range(count)])[HEADER_SIZE:], count)
    assert [count for _, count in record_runs._shapes] == [4000]


@given(st.data())
def test_broken_records_are_malformed_and_nothing_else(data: st.DataObject) -> None:
    good = build_batch([(NOW, b"key", b"value" * 20, (("h", b"x"),))] * 8)[HEADER_SIZE:]
    broken = bytearray(good)
    for _ in range(data.draw(st.integers(1, 4))):
        broken[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(broken[: data.draw(st.integers(0, len(good)))])
    try:
        runs = read_runs(cut, 8)
    except Malformed:
        return
    assert sum(run.number for run in runs) == 8
    assert runs[-1].end == len(cut)


@pytest.mark.parametrize("count", [7, 9])
def test_a_wrong_count_is_malformed(count: int) -> None:
    with pytest.raises(Malformed):
        read_runs(build_batch([(NOW, b"key", b"value", ())] * 8)[HEADER_SIZE:], count)


def long_form(number: int, length: int, high_bits: int) -> bytes:
    """Return a number encoded in at least `size` bytes; 5 bytes have room for bits above the 32nd."""
    left = number << 1 ^ number >> 31
    left = left & 0xFFFFFFFF | (high_bits << 32 if length == 5 else 0)
    out = bytearray()
    while left > 0x7F or len(out) < length - 1:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*out, left])


sizes = st.integers(1, 5)
value_sizes = st.sampled_from([-1, -2, -9, 0, 1, 70])
high = st.integers(0, 7)
odd_numbers = st.tuples(sizes, high)


@given(
    st.lists(
        st.tuples(
            st.sampled_from([None, b"", b"k", b"key"]), st.sampled_from([-1, -2, -9, 0, 1, 70]), odd_numbers, sizes
        ),
        min_size=1,
        max_size=40,
    ),
    odd_numbers,
)
@example([(b"k", 1, (5, 1), 1)], (1, 0))
@example([(b"k", 1, (1, 0), 1)] * 3, (5, 1))
@example([(b"k", -2, (1, 0), 1), (b"k", -1, (1, 0), 2)], (1, 0))
def test_numbers_in_other_forms_mean_the_same(
    parts: list[tuple[bytes | None, int, tuple[int, int], int]], delta_form: tuple[int, int]
) -> None:
    """A client may encode numbers in more bytes than necessary, with bits that are ignored, and null as -2."""
    data = b""
    for index, (key, value_size, (length, bits), value_length) in enumerate(parts):
        body = b"\0" + b"\0" + long_form(index, *delta_form)
        body += long_form(-1 if key is None else len(key), length, bits) + (key or b"")
        body += long_form(value_size, value_length, 0) + bytes(max(value_size, 0)) + b"\0"
        data += long_form(len(body), length, bits) + body
    batch = bytearray(build_batch([(NOW, b"x", b"", ())] * len(parts))[:HEADER_SIZE] + data)
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">I", batch, 17, compute_crc(batch))
    expected = [(record.key, record.value is None) for record in read_records(batch, max_bytes=1 << 20)]
    found: list[tuple[bytes | None, bool]] = []
    runs = read_runs(data, len(parts))
    for run in runs:
        keys_ = list(run.keys(data)) if run.key_size >= 0 else [None] * run.number
        found += zip(keys_, map(bool, run.nulls(data) or bytes(run.number)), strict=True)
    assert found == expected
    assert runs[-1].last_delta == len(parts) - 1
