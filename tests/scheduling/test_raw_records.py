"""Delivered records are the same bytes, whether they are passed on or decoded and encoded."""

from __future__ import annotations

from array import array
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.log import record_walk
from kbroker.protocol.partitioner import partition_of
from kbroker.protocol.records import (
    HEADER_SIZE,
    NewRecord,
    build_batch,
    enclose,
    parse_header,
    put_number,
    read_records,
)
from kbroker.schedules.language import ScheduleError, fired_headers, read_schedule
from kbroker.scheduling.raw_records import Delivered, Raw, encoded, find_in_python, raw_at, raw_records

NOW = 1_700_000_000_000
names = st.one_of(
    st.sampled_from(
        (
            *("x-deliver-at", "x-deliver-after", "x-delay", "x-deliver-to", "x-deliver-key", "x-deliver-partition"),
            *("x-schedule", "x-schedule-timezone", "__schedule.at", "__schedule.", "__other", "x-", "x-other", "x-d"),
        )
    ),
    st.text(max_size=80),
)
headers = st.lists(st.tuples(names, st.one_of(st.none(), st.binary(max_size=200))), max_size=6).map(tuple)
records = st.lists(
    st.tuples(
        st.integers(0, 10_000).map(lambda delta: NOW + delta),
        st.one_of(st.none(), st.binary(max_size=200)),
        st.one_of(st.none(), st.binary(max_size=5000)),
        headers,
    ),
    min_size=1,
    max_size=5,
)


def raws(batch: bytes, begin: int = 0) -> list[Raw | None]:
    return list(raw_records(batch, HEADER_SIZE, parse_header(batch), begin))


@given(records, st.booleans(), st.integers(0, 6))
def test_the_walk_finds_what_the_decoder_finds(written: list[NewRecord], is_stamped: bool, begin: int) -> None:
    batch = build_batch(written, base_offset=10, timestamp_type=int(is_stamped))
    expected = list(read_records(batch, max_bytes=1 << 24))
    found = raws(batch, 10 + begin)
    assert [each is None for each in found] == [each.offset < 10 + begin for each in expected]
    for raw, record in zip(found, expected, strict=True):
        if raw is not None:
            assert (raw.offset, raw.stamp_ms, raw.key_bytes(), raw.value_bytes(), raw.read_headers()) == tuple(
                getattr(record, name) for name in ("offset", "timestamp", "key", "value", "headers")
            )
            assert raw.has_value() == (record.value is not None)


@given(records, st.integers(0, 3000), st.integers(0, 1 << 45))
def test_both_ways_give_the_same_bytes(written: list[NewRecord], delta: int, due_ms: int) -> None:
    batch = build_batch(written, base_offset=123)
    delivered = Delivered("later", 7)
    for raw, record in zip(raws(batch), read_records(batch, max_bytes=1 << 24), strict=True):
        assert raw is not None
        short = delivered.short(raw, due_ms, delta)
        own = fired_headers(record.headers, "later", 7, record.offset, due_ms)
        if short is not None:
            assert short == encoded(record.key, record.value, own, delta)
            try:
                schedule = read_schedule(record.key, record.headers, NOW, "target")
            except ScheduleError:
                continue  # nothing that is refused when it is produced gets here
            assert schedule is None or (schedule.repeat, schedule.partition, schedule.key) == (None, None, record.key)


@pytest.mark.parametrize("null", [b"\x01", b"\x03", b"\x7f", b"\x81\x01", b"\xc7\x01", b"\x83\x80\x00"])
@pytest.mark.parametrize("place", range(3))
def test_each_negative_length_stands_for_null(null: bytes, place: int) -> None:
    """Kafka and the check of appended batches accept them. Taken for something else, they moved all that follows."""
    key, value, content = (null if place == number else b"\x02k" for number in range(3))
    body = b"\0\0\0" + key + value + b"\x04\x0ex-delay\x025\x0aother" + content
    record = bytearray()
    put_number(record, len(body))
    batch = enclose(bytes(record) + body, 1, NOW, NOW)
    (raw,), (expected,) = raws(batch), read_records(batch, max_bytes=1 << 20)
    assert raw is not None
    assert (raw.key_bytes(), raw.value_bytes(), raw.read_headers()) == (
        expected.key, expected.value, expected.headers,
    )  # fmt: skip
    assert (raw.has_no_key, raw.has_value()) == (place == 0, place != 1)
    short = Delivered("later", 7).short(raw, 5, 0)
    assert short is not None
    (passed,) = read_records(enclose(short, 1, NOW, NOW), max_bytes=1 << 20)
    own = fired_headers(expected.headers, "later", 7, expected.offset, 5)
    assert (passed.key, passed.value, passed.headers) == (expected.key, expected.value, own)


@given(records)
def test_an_encoded_record_is_as_in_a_batch(written: list[NewRecord]) -> None:
    of_now = [(NOW, key, value, headers) for _, key, value, headers in written]
    body = b"".join(encoded(key, value, tuple(own), number) for number, (_, key, value, own) in enumerate(of_now))
    assert body == build_batch(of_now)[HEADER_SIZE:]


def test_usual_records_take_the_short_way() -> None:
    batch = build_batch([(NOW, b"k", b"v", (("x-deliver-at", b"5"), ("x-deliver-to", b"t"), ("tag" * 50, b"a")))])
    (raw,) = raws(batch)
    assert raw is not None
    assert Delivered("later", 0).short(raw, 5, 0) is not None


@given(records, st.lists(st.integers(0, 20), unique=True, max_size=20), st.integers(0, 5), st.data())
def test_compiled_code_and_python_find_the_same_places(
    written: list[NewRecord], offsets: list[int], extra: int, data: st.DataObject
) -> None:
    batch = bytearray(build_batch(written, base_offset=7))
    is_whole = data.draw(st.booleans())
    if not is_whole:
        batch[data.draw(st.integers(HEADER_SIZE, len(batch) - 1))] = data.draw(st.integers(0, 255))
    wanted = array("q", sorted(offsets))
    found = places(find_in_python, bytes(batch), len(written) + extra, wanted)
    if record_walk.find is not None:
        assert places(record_walk.find, bytes(batch), len(written) + extra, wanted) == found
    if is_whole:
        for offset, place in zip(wanted, found, strict=True):
            raw = None if place < 0 else raw_at(bytes(batch), place, parse_header(batch))
            assert (raw is None) == (not 7 <= offset < 7 + len(written))
            assert raw is None or raw.offset == offset


def places(search: Any, batch: bytes, count: int, wanted: array[int]) -> list[int]:
    position, found = HEADER_SIZE, array("q")
    while count:
        some, position, count = search(batch, position, count, 7, wanted[len(found) :])
        found.frombytes(some)
    return [*found, *[-1] * (len(wanted) - len(found))]


@pytest.mark.skipif(record_walk.deliver is None, reason="kbroker was built without a C compiler")
@given(records, st.integers(1, 5), st.integers(-1, 4), st.booleans(), st.integers(0, 200), st.integers(0, 20_000))
def test_compiled_code_and_python_deliver_the_same_bytes(
    written: list[NewRecord], partitions: int, partition: int, takes_keyless: bool, delta: int, room: int
) -> None:
    assert record_walk.deliver is not None
    batch = build_batch(written, base_offset=123)
    delivered, due = Delivered("later", 7), 1_700_000_000_123
    found = places(record_walk.find, batch, len(written), array("q", range(7, 7 + len(written))))
    offsets, dues = array("q", range(123, 123 + len(written))), array("q", [due] * len(written))
    begin = 0
    expected: list[bytes] = []
    made = b""
    while begin < len(written):
        whole, fates = record_walk.deliver(
            batch, array("q", found), offsets, dues, begin, delivered.shape, partition, partitions, takes_keyless,
            delta + len(expected), room,
        )  # fmt: skip
        made += whole
        count = len(expected)
        for place, fate in enumerate(fates, begin):
            raw = raw_at(batch, found[place], parse_header(batch))
            assert raw is not None
            key = raw.key_bytes()
            is_here = takes_keyless if key is None else partition_of(key, partitions) == partition
            assert fate == is_here
            if is_here:
                short = delivered.short(raw, due, delta + len(expected))
                assert short is not None
                expected.append(short)
        assert len(whole) <= room
        begin += len(fates)
        if not fates:
            raw = raw_at(batch, found[begin], parse_header(batch))
            assert raw is not None
            short = delivered.short(raw, due, delta + count)
            assert short is None or len(short) + 100 > room
            begin += 1
    assert made == b"".join(expected)


def test_broken_records_stop_compiled_code_and_need_no_memory_beyond_the_room() -> None:
    if record_walk.deliver is None:
        pytest.skip("kbroker was built without a C compiler")
    random = Random(1)
    good = build_batch([(NOW, b"key", b"v" * 50, (("x-delay", b"5"), ("other", b"x" * 20)))] * 3)
    offsets = array("q", range(3))
    shape = Delivered("later", 7).shape
    for _ in range(20_000):
        batch = bytearray(good)
        for _ in range(random.randint(1, 3)):
            batch[random.randrange(HEADER_SIZE, len(batch))] = random.choice((0, 1, 127, 128, 255))
        spots = array("q", [random.randrange(-1, len(batch) + 5) for _ in range(3)])
        whole, fates = record_walk.deliver(bytes(batch), spots, offsets, offsets, 0, shape, 0, 1, True, 0, 300)
        assert len(whole) <= 300
        assert len(fates) <= 3


@given(st.binary(max_size=40), st.integers(1, 100))
def test_compiled_code_chooses_the_partition_of_kafkas_clients(key: bytes, count: int) -> None:
    if record_walk.deliver is None:
        return
    batch = build_batch([(NOW, key, b"v", ())])
    place, shape = array("q", [HEADER_SIZE]), Delivered("later", 7).shape
    for partition in {partition_of(key, count), 0}:
        _, fates = record_walk.deliver(batch, place, place, place, 0, shape, partition, count, False, 0, 1000)
        assert fates[0] == (partition == partition_of(key, count))
