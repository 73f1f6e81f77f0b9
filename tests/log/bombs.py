"""Batches that are small on the wire and large for a reader that decompresses them, for every codec.

Some headers lie.
"""

from __future__ import annotations

import gzip
import struct
from dataclasses import dataclass
from functools import partial
from typing import Final

import lz4.frame
import snappy
import zstandard

from kbroker.protocol.compression import CODEC_NAMES, GZIP, LZ4, NONE, SNAPPY, ZSTD, compress
from kbroker.protocol.records import HEADER, HEADER_SIZE, LOG_OVERHEAD, compute_crc, put_number
from kbroker.protocol.snappy_format import XERIAL_HEADER

BASE: Final = 1_700_000_000_000
MINIMAL: Final = bytes([12, 0, 0, 0, 1, 1, 0])
"""A record of seven bytes: no key, no value, no headers, offset delta 0."""
_MB: Final = 1 << 20


def sealed(
    body: bytes,
    count: int,
    codec: int,
    *,
    compressed: bool = False,
    base_timestamp: int = BASE,
    max_timestamp: int | None = None,
    timestamp_type: int = 0,
) -> bytes:
    """Return a batch with these bytes as its records, and a valid CRC."""
    payload = body if compressed else compress(codec, body)
    batch = bytearray(HEADER_SIZE + len(payload))
    times = (base_timestamp, base_timestamp if max_timestamp is None else max_timestamp)
    size = len(batch) - LOG_OVERHEAD
    HEADER.pack_into(batch, 0, 0, size, -1, 2, 0, codec | timestamp_type << 3, count - 1, *times, -1, -1, -1, count)
    batch[HEADER_SIZE:] = payload
    struct.pack_into(">I", batch, 17, compute_crc(batch))
    return bytes(batch)


def minimal(count: int, codec: int = ZSTD, base_timestamp: int = BASE) -> bytes:
    """Return a batch of identical records of seven bytes."""
    return sealed(MINIMAL * count, count, codec, base_timestamp=base_timestamp)


def numbered(count: int, codec: int = ZSTD, key: bytes | None = b"k", base_timestamp: int = BASE) -> bytes:
    """Return a batch of small records whose offsets are in order."""
    body = bytearray()
    rest = (b"\1" if key is None else varint(len(key)) + key) + b"\1\0"
    for delta in range(count):
        number = varint(delta)
        body += varint(2 + len(number) + len(rest)) + b"\0\0" + number + rest
    return sealed(bytes(body), count, codec, base_timestamp=base_timestamp)


def one_record(value_size: int, codec: int) -> bytes:
    """Return a batch with one record whose value is all zeros."""
    record = b"\0\0\0\2k" + varint(value_size) + bytes(value_size) + b"\0"
    return sealed(varint(len(record)) + record, 1, codec)


def many_headers(count: int, codec: int) -> bytes:
    """Return a batch with one record that has `count` empty headers."""
    record = b"\0\0\0\2k\1" + varint(count) + b"\0\1" * count
    return sealed(varint(len(record)) + record, 1, codec)


def varint(value: int) -> bytes:
    out = bytearray()
    put_number(out, value)
    return bytes(out)


def gzip_members(count: int) -> bytes:
    """Return a batch of empty gzip members, with one record after them."""
    body = gzip.compress(b"", mtime=0) * count + compress(GZIP, MINIMAL)
    return sealed(body, 1, GZIP, compressed=True)


def zstd_frames(count: int) -> bytes:
    frame = zstandard.ZstdCompressor(write_content_size=False).compress(b"")
    return sealed(frame * count + compress(ZSTD, MINIMAL), 1, ZSTD, compressed=True)


def zstd_window(log: int, filled: int) -> bytes:
    """Return a batch whose records are in a zstd frame with a large window."""
    return sealed(wide_frame(log, filled), 1 << 20, ZSTD, compressed=True)


def wide_frame(log: int, filled: int) -> bytes:
    """Return a zstd frame with a window of 2^log bytes that contains runs of zeros."""
    frame = b"\x28\xb5\x2f\xfd\x00" + bytes([(log - 10) << 3])
    block = (131072 << 3 | 1 << 1).to_bytes(3, "little") + b"\0"
    return frame + block * (filled // 131072) + (1).to_bytes(3, "little")


def zstd_value(log: int, size: int) -> bytes:
    """Return a batch of one record, whose value fills the 2^log bytes of its zstd frame's window."""
    record = b"\0\0\0\2k" + varint(size) + bytes(size) + b"\0"
    parameters = zstandard.ZstdCompressionParameters.from_level(1, window_log=log)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return sealed(packer.compress(varint(len(record)) + record) + packer.flush(), 1, ZSTD, compressed=True)


def zstd_blocks(count: int) -> bytes:
    """Return a batch in a zstd frame of empty blocks."""
    frame = b"\x28\xb5\x2f\xfd\x00\x58" + bytes(3 * count) + (1).to_bytes(3, "little")
    return sealed(frame, 1, ZSTD, compressed=True)


def lz4_block_sizes(size: int) -> bytes:
    """Return a batch in an lz4 frame of the largest blocks."""
    packed = lz4.frame.compress(MINIMAL * (size // 7), block_size=lz4.frame.BLOCKSIZE_MAX4MB, store_size=False)
    return sealed(packed, size // 7, LZ4, compressed=True)


def lz4_frames(count: int) -> bytes:
    return sealed(lz4.frame.compress(MINIMAL) * count, count, LZ4, compressed=True)


def snappy_blocks(count: int) -> bytes:
    """Return a batch of empty snappy blocks."""
    empty = bytes(snappy.compress(b""))
    payload = XERIAL_HEADER + (len(empty).to_bytes(4) + empty) * count
    return sealed(payload + compress(SNAPPY, MINIMAL), 1, SNAPPY, compressed=True)


def snappy_raw(size: int) -> bytes:
    packed = bytes(snappy.compress(MINIMAL * (size // 7)))
    return sealed(packed, size // 7, SNAPPY, compressed=True)


SNAPPY_CLAIM: Final = sealed(b"\xff\xff\xff\xff\x0f" + bytes(10), 1 << 20, SNAPPY, compressed=True)
"""A raw block that claims to decompress to 4 GB."""
SNAPPY_LIE: Final = sealed(varint(80 * _MB // 2) + bytes(900), 1 << 20, SNAPPY, compressed=True)
"""A raw block that claims more than its bytes can decompress to, though a batch might be that large."""


@dataclass(frozen=True)
class Bomb:
    """A small batch that decompresses to much: its allowed verdicts, the limits of memory and of a step."""

    name: str
    make: partial[bytes]
    verdicts: tuple[str, ...] = ("whole",)
    memory: int = 4 * _MB
    enough: int = 20_000

    @property
    def batch(self) -> bytes:
        found = _made.get(self.name)
        if found is None:
            found = _made[self.name] = self.make()
        return found


_made: dict[str, bytes] = {}
_UNDECODABLE: Final = ("Undecodable",)
_BROKEN: Final = ("Malformed",)

BOMBS: Final = [
    *(Bomb(f"30,000 records, {CODEC_NAMES[codec]}", partial(minimal, 30_000, codec), memory=_MB) for codec in range(5)),
    Bomb("100,000 records in order", partial(numbered, 100_000), memory=8 * _MB),
    Bomb("100,000 records without keys", partial(numbered, 100_000, ZSTD, None), memory=8 * _MB),
    *(
        Bomb(f"a value of 30 MB, {CODEC_NAMES[codec]}", partial(one_record, 30 * _MB, codec))
        for codec in (GZIP, SNAPPY, LZ4, ZSTD)
    ),
    Bomb("a value beyond the bound", partial(one_record, 150 * _MB, ZSTD), _BROKEN),
    Bomb("100,000 headers, none", partial(many_headers, 100_000, NONE)),
    Bomb("100,000 headers, zstd", partial(many_headers, 100_000, ZSTD)),
    Bomb("a count of 2^31-1", partial(sealed, MINIMAL * 1000, 2**31 - 1, ZSTD), _BROKEN),
    Bomb("a count of one", partial(sealed, MINIMAL * 100_000, 1, ZSTD), _BROKEN),
    Bomb("20,000 gzip members", partial(gzip_members, 20_000), enough=30_000),
    Bomb("20,000 zstd frames", partial(zstd_frames, 20_000), enough=30_000),
    Bomb("300,000 zstd blocks", partial(zstd_blocks, 300_000), _BROKEN),
    Bomb("a zstd window of 2 GB", partial(zstd_window, 31, 90 * _MB), _UNDECODABLE),
    Bomb("lz4 blocks of 4 MB", partial(lz4_block_sizes, _MB), memory=14 * _MB),
    Bomb("lz4 frames", partial(lz4_frames, 10_000), _BROKEN),
    Bomb("30,000 snappy blocks", partial(snappy_blocks, 30_000), enough=45_000),
    Bomb("one snappy block of 1 MB", partial(snappy_raw, _MB), memory=14 * _MB),
    Bomb("a snappy block that claims 4 GB", partial(bytes, SNAPPY_CLAIM), _BROKEN),
    Bomb("a snappy block that claims 40 MB", partial(bytes, SNAPPY_LIE), _UNDECODABLE),
]
