"""Records of an opened batch: decoded by compiled code as in Python, whatever the bytes are."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from kbroker.filters.filtering import Filter, compile_filter
from kbroker.log import record_walk
from kbroker.protocol.errors import Malformed
from kbroker.protocol.records import HEADER_SIZE, NewRecord, Record, build_batch, parse_header, put_number, record_at
from kbroker.views.opened_batch import _decoded
from tests.log.builders import NOW
from tests.tries import tries

needs_compiled = pytest.mark.skipif(record_walk.record is None, reason="built without a compiler")


def some_batch(rng: random.Random) -> bytes:
    records: list[NewRecord] = []
    for _ in range(rng.randrange(1, 6)):
        headers = [
            (rng.choice(("", "a", "région", "x" * 130)), rng.choice((None, b"", b"v", b"y" * 200)))
            for _ in range(rng.randrange(4))
        ]
        some = (None, b"", b"k", rng.randbytes(rng.randrange(300)))
        records.append((NOW + rng.randrange(-(1 << 33), 1 << 33), rng.choice(some), rng.choice(some), headers))
    return build_batch(records)


def in_python(data: bytes, position: int) -> tuple[Record, int] | None:
    try:
        return record_at(data, position, 0, 0, None)
    except Malformed:
        return None


@needs_compiled
@pytest.mark.parametrize("seed", range(20261130, 20261130 + tries(40)))
def test_a_record_is_decoded_as_in_python(seed: int) -> None:
    assert record_walk.record is not None
    rng = random.Random(seed)
    for _ in range(50):
        data = some_batch(rng)[HEADER_SIZE:]
        position = 0
        while position < len(data):
            there = in_python(data, position)
            assert there is not None
            assert record_walk.record(data, position) is not None
            header = parse_header(build_batch([(0, None, None, [])]))
            assert _decoded(data, position, header) == there[0]
            position = there[1]
        for _ in range(30):
            broken = bytearray(data)
            for _ in range(rng.randrange(1, 4)):
                broken[rng.randrange(len(broken))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
            cut = bytes(broken[: rng.randrange(len(broken) + 1)])
            position = rng.randrange(-1, len(cut) + 2)
            found = record_walk.record(cut, position)
            if found is not None:
                expected = in_python(cut, position)
                assert expected is not None
                later, offset, *others = found
                assert (offset, *others) == (expected[0].offset, *expected[0][2:])
                assert later == expected[0].timestamp


WANTED: dict[str, tuple[str, Callable[[bytes], bool]]] = {
    "header.a = 'v'": ("a", lambda value: value == b"v"),
    "header.a IN ('v', 'w')": ("a", lambda value: value in (b"v", b"w")),
    "header.a LIKE 'yy%'": ("a", lambda value: value.startswith(b"yy")),
    "header.région = 'v' OR header.région LIKE 'y%'": ("région", lambda value: value == b"v" or value.startswith(b"y")),
}


def read_all(data: bytes) -> list[Record]:
    found, position = [], 0
    while position < len(data):
        there = in_python(data, position)
        assert there is not None
        found.append(there[0])
        position = there[1]
    return found


def with_header(data: bytes, count: int, wanted: Filter) -> list[tuple[int, int, int]] | None:
    assert record_walk.with_header is not None
    assert wanted.header_values is not None
    packed = record_walk.with_header(data, count, *wanted.header_values)
    if packed is None:
        return None
    numbers = iter(memoryview(packed).cast("i").tolist())
    return list(zip(numbers, numbers, numbers, strict=True))


@needs_compiled
@pytest.mark.parametrize("seed", range(20261201, 20261201 + tries(40)))
def test_a_header_is_found_in_all_records_that_have_it_and_in_no_others(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(20):
        data, (text, (name, is_wanted)) = some_batch(rng)[HEADER_SIZE:], rng.choice(list(WANTED.items()))
        wanted = compile_filter(text)
        expected, position, count = [], 0, 0
        while position < len(data):
            there = in_python(data, position)
            assert there is not None
            if any(each == name and value is not None and is_wanted(value) for each, value in there[0].headers):
                expected.append((count, position, there[1]))
            position, count = there[1], count + 1
        assert with_header(data, count, wanted) == expected
        assert record_walk.header_values is not None
        values = {value for each in read_all(data) for at, value in each.headers if at == name and value is not None}
        assert record_walk.header_values(data, count, name.encode()) == values
        assert record_walk.header_values(data, count + 1, name.encode()) is None
        assert with_header(data, count + 1, wanted) is None
        assert count == 0 or with_header(data, count - 1, wanted) is None
        for _ in range(30):
            broken = bytearray(data)
            for _ in range(rng.randrange(1, 4)):
                broken[rng.randrange(len(broken))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
            cut = bytes(broken[: rng.randrange(len(broken) + 1)])
            there_are = record_walk.header_values(cut, count, name.encode())
            found = with_header(cut, count, wanted)
            if found is None:
                continue
            if there_are is not None:
                assert bool(found) == any(map(is_wanted, there_are))
            position, known = 0, {index for index, _, _ in found}
            for index in range(count):
                there = in_python(cut, position)
                if there is None:
                    assert index in known  # to be decoded, and refused
                    break
                assert index in known or not wanted(there[0], 0)
                position = there[1]


@needs_compiled
def test_a_search_for_a_header_has_a_limit() -> None:
    wanted = compile_filter("header.a = 'v'")
    for headers, is_found in ((1000, True), (300_000, False)):
        data = build_batch([(NOW, None, None, [("a", b"w")] * headers + [("a", b"v")])])[HEADER_SIZE:]
        assert with_header(data, 1, wanted) == ([(0, 0, len(data))] if is_found else None)


def test_only_filters_that_need_one_header_are_searched_by_it() -> None:
    for text in ("header.a = 'v' OR key = 'k'", "header.a = 'v' OR header.b = 'v'", "header.a > 5", "*", "FALSE"):
        assert compile_filter(text).header_values is None


@needs_compiled
def test_what_is_unusual_is_left_to_python() -> None:
    assert record_walk.record is not None

    def framed(body: bytes) -> bytes:
        size = bytearray()
        put_number(size, len(body))
        return bytes(size) + body

    many = bytearray(b"\x00\x00\x00\x01\x01")
    put_number(many, 5000)
    data = framed(bytes(many) + b"\x02a\x01" * 5000)
    assert record_walk.record(data, 0) is None
    there = in_python(data, 0)
    assert there is not None
    assert len(there[0].headers) == 5000
    nameless = framed(b"\x00\x00\x00\x01\x01\x02\x01\x01")
    assert record_walk.record(nameless, 0) is None
    assert in_python(nameless, 0) is None
    odd_name = framed(b"\x00\x00\x00\x01\x01\x02\x04\xff\xc3\x01")
    assert record_walk.record(odd_name, 0) == (0, 0, None, None, (("\ufffd\ufffd", None),))
    for empty in (b"", b"\x00", b"\x01", b"\x02\x00"):
        assert record_walk.record(empty, 0) is None
    with pytest.raises(TypeError):
        record_walk.record(b"", "0")  # type: ignore[arg-type]
