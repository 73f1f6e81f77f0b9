"""Codecs: round trips, what Java writes, and the limit of the decompressed size."""

from __future__ import annotations

import contextlib
import gzip
import random
import tracemalloc
import zlib

import lz4.frame
import pytest
import snappy
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from kbroker.protocol.compression import (
    CODEC_NAMES,
    GZIP,
    LZ4,
    SNAPPY,
    ZSTD,
    codec_of,
    compress,
    decompress,
    pack,
    unpack,
)
from kbroker.protocol.decompression import MOST_WINDOW, unpack_zstd_at_once
from kbroker.protocol.errors import Malformed, Undecodable
from tests.log.bombs import wide_frame

CODECS = range(5)
PACKED = (GZIP, SNAPPY, LZ4, ZSTD)
XERIAL = b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"


@given(st.sampled_from(CODECS), st.binary(max_size=200_000) | st.integers(0, 300_000).map(bytes))
def test_what_goes_in_comes_out(codec: int, data: bytes) -> None:
    packed = compress(codec, data)
    assert bytes(decompress(codec, memoryview(packed), len(data))) == data


@given(st.sampled_from(PACKED), st.binary(min_size=1, max_size=100_000))
def test_the_bound_is_exact(codec: int, data: bytes) -> None:
    packed = compress(codec, data)
    with pytest.raises(Malformed):
        decompress(codec, packed, len(data) - 1)


@pytest.mark.parametrize("codec", PACKED)
def test_every_cut_is_malformed(codec: int) -> None:
    packed = compress(codec, b"some data, some data, some more data " * 50)
    for end in range(1 if codec != SNAPPY else 21, len(packed)):
        with pytest.raises(Malformed):
            decompress(codec, packed[:end], 1 << 20)


@given(st.sampled_from(PACKED), st.binary(max_size=300))
def test_garbage_is_malformed_or_small(codec: int, data: bytes) -> None:
    with contextlib.suppress(Malformed):
        assert len(decompress(codec, data, 1000)) <= 1000


@given(st.sampled_from(PACKED), st.integers(0, 2**32), st.integers(0, 255))
def test_a_flipped_byte_raises_nothing_else(codec: int, place: int, byte: int) -> None:
    packed = bytearray(compress(codec, b"the quick brown fox " * 30))
    packed[place % len(packed)] = byte
    with contextlib.suppress(Malformed):
        decompress(codec, packed, 10_000)


def bombs() -> list[tuple[int, bytes]]:
    size = 64 << 20
    block = snappy.compress(bytes(1 << 20))
    claims = b"\xff\xff\xff\xff\x07" + bytes(10)  # a raw snappy block that claims 2 GB
    return [
        (GZIP, compress(GZIP, bytes(size))),
        (LZ4, compress(LZ4, bytes(size))),
        (ZSTD, compress(ZSTD, bytes(size))),
        (SNAPPY, XERIAL + (len(block).to_bytes(4) + block) * 64),
        (SNAPPY, claims),
        (SNAPPY, XERIAL + len(claims).to_bytes(4) + claims),
        (LZ4, lz4.frame.compress(bytes(size), block_size=lz4.frame.BLOCKSIZE_MAX4MB)),
    ]


def test_a_bomb_costs_no_more_than_the_bound() -> None:
    limit = 1 << 20
    for codec, packed in bombs():
        tracemalloc.start()
        with pytest.raises(Malformed):
            decompress(codec, packed, limit)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2.5 * limit, CODEC_NAMES[codec]


def test_a_wide_window_is_not_filled() -> None:
    """Levels above 19 ask for a wide window whatever they contain; only filling it takes memory."""
    assert len(decompress(ZSTD, wide_frame(27, MOST_WINDOW), 1 << 30)) == MOST_WINDOW
    assert len(decompress(ZSTD, wide_frame(21, 64 << 20), 1 << 30)) == 64 << 20
    for log, error in ((27, Malformed), (31, Undecodable)):
        with pytest.raises(error) as caught:
            decompress(ZSTD, wide_frame(log, 64 << 20), 1 << 30)
        assert caught.type is error


@given(
    st.sampled_from(CODECS), st.lists(st.binary(max_size=500) | st.integers(0, 100_000).map(bytes), max_size=8),
    st.sampled_from([None, 1, 9]),
)  # fmt: skip
def test_packing_piece_by_piece_brings_the_same_bytes(codec: int, pieces: list[bytes], level: int | None) -> None:
    data = b"".join(pieces)
    packed = b"".join(pack(codec, pieces, len(data), level))
    assert packed == compress(codec, data, level)
    assert bytes(decompress(codec, b"".join(pack(codec, pieces, -1, level)), len(data))) == data


@pytest.mark.parametrize("codec", CODECS)
def test_no_piece_is_large(codec: int) -> None:
    packed = compress(codec, bytes(32 << 20))
    assert max(map(len, unpack(codec, packed, 64 << 20))) <= 128 << 10


def test_many_blocks_of_one_frame_are_all_there() -> None:
    data = random.Random(5).randbytes(1 << 20)
    packed = compress(ZSTD, data)
    assert bytes(decompress(ZSTD, packed, len(data))) == data
    ends = [end for end in range(len(packed) - 131200, len(packed)) if end % 499 == 0 or len(packed) - end < 9]
    for end in ends:
        with pytest.raises(Malformed):
            decompress(ZSTD, packed[:end], 1 << 24)


def test_forms_that_clients_send() -> None:
    data = b"abc" * 40_000
    assert bytes(decompress(SNAPPY, snappy.compress(data), 1 << 20)) == data, "one raw block, as librdkafka writes it"
    assert bytes(decompress(SNAPPY, compress(SNAPPY, b"x") + compress(SNAPPY, b"y"), 10)) == b"xy", "two xerial streams"
    assert bytes(decompress(GZIP, gzip.compress(b"x") + gzip.compress(b"y"), 10)) == b"xy", "two gzip members"
    assert bytes(decompress(GZIP, gzip.compress(b"x") + b"rest", 10)) == b"x", "Java ignores what follows a member"
    streamed = zstandard.ZstdCompressor().compressobj()
    assert bytes(decompress(ZSTD, streamed.compress(data) + streamed.flush(), 1 << 20)) == data, "no content size"
    linked = lz4.frame.compress(data, block_linked=True, content_checksum=True, store_size=True)
    assert bytes(decompress(LZ4, linked, 1 << 20)) == data


def test_what_follows_the_compressed_records_is_ignored_as_in_java() -> None:
    for codec, rest in ((LZ4, b"rest"), (LZ4, b"\0" * 70_000), (SNAPPY, b"\0\0\1")):
        assert bytes(decompress(codec, compress(codec, b"x") + rest, 10)) == b"x", CODEC_NAMES[codec]


def test_a_zstd_frame_without_content_does_not_hide_the_next_one() -> None:
    """Its bytes may look like the blocks of a frame that ends with the data."""
    data = b"hello " * 40
    packed = compress(ZSTD, data)
    blocks_at, size = 8, 6
    rest = size - 3 + len(packed)
    frame = b"\x50\x2a\x4d\x18" + size.to_bytes(4, "little") + (rest << 3 | 1).to_bytes(3, "little") + bytes(3)
    whole = frame + packed
    assert zstandard.frame_header_size(whole) == blocks_at
    assert bytes(decompress(ZSTD, whole, 1 << 20)) == data
    assert unpack_zstd_at_once(memoryview(whole)) in (None, data)


def test_an_empty_zstd_body_is_no_broken_zstd_data() -> None:
    """Kafka then answers INVALID_RECORD; to data that zstd does not accept, it answers UNKNOWN_SERVER_ERROR."""
    with pytest.raises(Malformed) as caught:
        decompress(ZSTD, b"", 10)
    assert caught.type is Malformed


def test_levels_reach_the_codec() -> None:
    data = bytes(i * i % 251 for i in range(100_000))
    assert compress(GZIP, data, 9) == _gzip(data, 9)
    assert len(compress(ZSTD, data, 19)) <= len(compress(ZSTD, data, -5))
    assert compress(LZ4, data, 9) == compress(LZ4, data), "9 is Kafka's default, the fast compressor"
    assert bytes(decompress(LZ4, compress(LZ4, data, 17), 1 << 20)) == data


def _gzip(data: bytes, level: int) -> bytes:
    packer = zlib.compressobj(level, zlib.DEFLATED, 31)
    return packer.compress(data) + packer.flush()


def test_unknown_codecs() -> None:
    for codec in (5, 6, 7):
        with pytest.raises(Malformed):
            decompress(codec, b"x", 10)
        with pytest.raises(Malformed):
            compress(codec, b"x")
    assert codec_of("zstd") == ZSTD
    with pytest.raises(ValueError):
        codec_of("brotli")
