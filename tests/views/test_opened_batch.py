"""Records of an opened batch: decoded by compiled code as in Python, whatever the bytes are."""

from __future__ import annotations

import random

import pytest

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
