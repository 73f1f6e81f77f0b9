"""Snappy streams as Java's SnappyOutputStream writes them, and raw snappy blocks, which other producers write.

Owns the stream, in both directions, and those parts of the block format that decompression needs. The library
decompresses small blocks. This module decompresses large blocks, element by element, because the library can only
decompress a complete block. The content of a block may be 21 times as large as the block. Producers that write one
block per batch (such as librdkafka) seldom reach some megabytes.

    stream   magic 8 bytes, two i32 versions, then blocks: size i32 | raw block of at most 32 kB of input
    block    size uvarint | elements         element: tag u8, whose low two bits are its kind
    literal  00, size - 1 in the upper six bits, from 60 on in the next 1 to 4 bytes | bytes
    copy     01, size - 4 in 3 bits, 11 bits of offset; 10, size - 1 in 6 bits, offset u16; 11, the same, offset u32
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from kbroker.protocol.errors import Malformed, Undecodable

XERIAL_HEADER: Final = b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"

_XERIAL_MAGIC = XERIAL_HEADER[:8]
_XERIAL_BLOCK = 32768
_AT_ONCE: Final = 4 << 20  # the number of bytes that one step decompresses, in some ms
_ELEMENTS: Final = 512  # the number of elements that one step reads, in some hundred us
_PIECE: Final = 65536
_REACH: Final = 1 << 20  # the supported distance of copies; the library's copies reach at most 64 kB
_RATIO: Final = 64 / 3  # the largest possible compression ratio: 3 bytes can copy 64


def compress_snappy(data: memoryview) -> bytes:
    """Return `data` compressed as a stream."""
    blocks = (_snappy_block(data[start : start + _XERIAL_BLOCK]) for start in range(0, len(data), _XERIAL_BLOCK))
    return b"".join((XERIAL_HEADER, *blocks))


def pack_snappy(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the pieces compressed as a stream, step by step. Some steps are empty."""
    yield XERIAL_HEADER
    held = b""
    for piece in pieces:
        held += piece
        start = 0
        while len(held) - start >= _XERIAL_BLOCK:
            yield _snappy_block(memoryview(held)[start : start + _XERIAL_BLOCK])
            start += _XERIAL_BLOCK
        held = held[start:]
        yield b""
    if held:
        yield _snappy_block(memoryview(held))


def _snappy_block(data: memoryview) -> bytes:
    import snappy  # imported late, as in unpack_block

    block = snappy.compress(bytes(data))
    return len(block).to_bytes(4) + bytes(block)


def unpack_snappy(data: memoryview, max_bytes: int) -> Iterator[bytes]:
    """Yield the content of raw snappy blocks. Raises Undecodable, or Malformed before a block exceeds the limit."""
    if data[:8] != _XERIAL_MAGIC:
        yield from unpack_block(data, max_bytes)
        return
    position, left = len(XERIAL_HEADER), max_bytes
    while position < len(data):
        if data[position : position + 8] == _XERIAL_MAGIC:  # streams may be concatenated
            position += len(XERIAL_HEADER)
            yield b""
            continue
        if position + 4 > len(data):
            return  # Java's reader ends at an incomplete size
        size = int.from_bytes(data[position : position + 4])
        position += 4
        if size == 0 or position + size > len(data):
            raise Undecodable(f"snappy block of {size} bytes does not fit in its batch")
        for piece in unpack_block(data[position : position + size], left):
            left -= len(piece)
            yield piece
        position += size


def unpack_block(block: memoryview, max_bytes: int) -> Iterator[bytes]:
    """Yield the content of a block. Raises Undecodable, or Malformed if the content exceeds `max_bytes`."""
    size, position = _claimed(block)
    if size > max_bytes:
        raise Malformed(f"records decompress to more than {max_bytes} bytes")
    if size > len(block) * _RATIO:
        raise Undecodable(f"snappy block of {len(block)} bytes claims to hold {size}")
    if size > _AT_ONCE:
        yield from _elements(block, position, size)
        return
    import snappy  # imported late: it takes 5 ms and 2 MB, and few brokers need it

    try:
        yield bytes(snappy.uncompress(bytes(block)))
    except Exception as error:  # different versions of the library raise different types
        raise Undecodable(f"broken snappy data: {error}") from error


def _claimed(block: memoryview) -> tuple[int, int]:
    """Return the uncompressed size that a block claims, and the position of its first element."""
    size = 0
    for index, byte in enumerate(block[:5]):
        size |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return size, index + 1
    raise Undecodable("snappy block without a length")


def _elements(block: memoryview, position: int, size: int) -> Iterator[bytes]:
    data, end = bytes(block), len(block)
    out = bytearray()  # the last decompressed bytes, as far back as copies can reach
    given = before = steps = 0  # `given`: the yielded bytes of `out`; `before`: the dropped bytes before `out`
    while position < end:
        tag = data[position]
        position += 1
        kind, length = tag & 3, (tag >> 2) + 1
        if kind == 0:
            if length > 60:
                number_end = position + length - 60
                length = int.from_bytes(data[position:number_end], "little") + 1
                position = number_end
            if position + length > end:
                raise Undecodable("broken snappy data: literal beyond the end")
            if length > size - before - len(out):
                raise Undecodable("broken snappy data: more than was claimed")
            out += data[position : position + length]
            position += length
        else:
            width = (0, 1, 2, 4)[kind]
            if position + width > end:
                raise Undecodable("broken snappy data: copy beyond the end")
            offset = int.from_bytes(data[position : position + width], "little")
            position += width
            if kind == 1:
                offset |= tag >> 5 << 8
                length = (tag >> 2 & 7) + 4
            if not 0 < offset <= len(out) or length > size - before - len(out):
                raise Undecodable("broken snappy data: a copy of bytes that are not written yet")
            start = len(out) - offset
            if offset >= length:
                out += out[start : start + length]
            else:
                out += (out[start:] * (length // offset + 1))[:length]
        steps += 1
        if len(out) - given >= _PIECE or not steps % _ELEMENTS:
            yield bytes(memoryview(out)[given:])
            given = len(out)
            if given > 2 * _REACH:
                before += given - _REACH
                del out[: given - _REACH]
                given = _REACH
    yield bytes(memoryview(out)[given:])
    if before + len(out) != size:
        raise Undecodable("broken snappy data: less than was claimed")
