"""Large raw snappy blocks decompress as with the library, in steps and with little memory."""

from __future__ import annotations

import random
from collections.abc import Generator
from typing import cast
from unittest.mock import patch

import snappy
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.protocol import snappy_format
from kbroker.protocol.errors import Malformed, Undecodable
from kbroker.protocol.snappy_format import unpack_block
from tests.tries import tries

parts = st.lists(
    st.binary(max_size=100) | st.tuples(st.binary(min_size=1, max_size=9), st.integers(1, 20_000)), max_size=8
)


def unpacked(block: bytes, at_once: int) -> bytes | type[Exception]:
    with patch.object(snappy_format, "_AT_ONCE", at_once):
        try:
            return b"".join(unpack_block(memoryview(block), 1 << 24))
        except Malformed as error:
            return error.__class__


@settings(max_examples=tries(300))
@given(parts, st.lists(st.tuples(st.integers(0, 2**20), st.integers(0, 255)), max_size=3), st.integers(0, 10))
def test_as_the_library(parts: list[bytes | tuple[bytes, int]], mutations: list[tuple[int, int]], cut: int) -> None:
    data = b"".join(part if isinstance(part, bytes) else part[0] * part[1] for part in parts)
    block = bytearray(snappy.compress(data))
    for place, byte in mutations:
        block[place % len(block)] = byte
    if cut == 1 and len(block) > 1:
        del block[-1]
    with patch.object(snappy_format, "_REACH", 1 << 17):
        assert unpacked(bytes(block), -1) == unpacked(bytes(block), 1 << 24)


def test_what_is_random_and_what_repeats() -> None:
    rng = random.Random(3)
    data = b"".join(rng.randbytes(rng.randrange(70_000)) + b"abc" * rng.randrange(50_000) for _ in range(30))
    assert unpacked(bytes(snappy.compress(data)), -1) == data


def test_a_large_block_takes_steps_and_little_memory() -> None:
    block = bytes(snappy.compress(bytes(20 << 20)))
    work = cast("Generator[bytes]", snappy_format._elements(memoryview(block), 4, 20 << 20))
    sizes, kept = [], 0
    for piece in work:
        sizes.append(len(piece))
        kept = max(kept, len(work.gi_frame.f_locals["out"]))
    assert sum(sizes) == 20 << 20
    assert len(sizes) > 300
    assert max(sizes) < 128 << 10
    assert kept < 3 << 20


def test_a_copy_from_further_back_than_is_kept() -> None:
    far = bytes(snappy.compress(bytes(6 << 20)))[4:]
    claim = (6 << 20) + 4
    head = bytes(claim >> 7 * i & 0x7F | (0x80 if i < 3 else 0) for i in range(4))
    block = head + far + b"\x0f" + (5 << 20).to_bytes(4, "little")
    assert unpacked(block, 1 << 20) is Undecodable
