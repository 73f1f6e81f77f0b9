"""Compress and decompress the records section of a batch, with a bound on what comes out.

Owns the five codecs by their number in a batch's attributes: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd. Never looks at
what the bytes mean.

Snappy on the wire is what Java's SnappyOutputStream writes: an 8-byte magic, two i32 versions, then blocks, each an
i32 length and one raw snappy block of at most 32 kB of input. A section without that magic is one raw snappy block.
Lz4 is the frame format with independent blocks, which is all that Java's reader takes.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Final

import lz4.frame
import snappy
import zstandard

from kbroker.protocol.errors import Malformed, Undecodable

NONE: Final = 0
GZIP: Final = 1
SNAPPY: Final = 2
LZ4: Final = 3
ZSTD: Final = 4

CODEC_NAMES: Final = ("none", "gzip", "snappy", "lz4", "zstd")

Buffer = bytes | bytearray | memoryview

# Input is fed, and output taken, in steps of this size, so that a bomb is noticed one step after the bound.
_STEP = 65536
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_BLOCK = 32768
_DEFAULT_LZ4_LEVEL = 9  # Kafka's number for "the fast compressor"; every other number asks for the high compressor
_DEFAULT_ZSTD_LEVEL = 3
_RLE_BLOCK = 1
_SKIPPABLE = b"\x2a\x4d\x18"


def codec_of(name: str) -> int:
    """Return the codec's number; raises ValueError for a name that is none of CODEC_NAMES."""
    return CODEC_NAMES.index(name)


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    """Compress `data` as Kafka's Java client would; `level` in the codec's own scale, None for its default."""
    if codec == NONE:
        return bytes(data)
    if codec == GZIP:
        packer = zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, 31)
        return packer.compress(data) + packer.flush()
    if codec == SNAPPY:
        return _compress_snappy(memoryview(data))
    if codec == LZ4:
        return bytes(
            lz4.frame.compress(
                data,
                compression_level=0 if level in (None, _DEFAULT_LZ4_LEVEL) else level,
                block_size=lz4.frame.BLOCKSIZE_MAX64KB,
                block_linked=False,
                store_size=False,
            )
        )
    if codec == ZSTD:
        return zstandard.ZstdCompressor(level=_DEFAULT_ZSTD_LEVEL if level is None else level).compress(data)
    raise Malformed(f"unknown compression codec {codec}")


def decompress(codec: int, data: Buffer, max_bytes: int) -> bytes | bytearray | memoryview:
    """Return the decompressed bytes; raises Malformed if they are broken or would be more than `max_bytes`.

    What is allocated stays within `max_bytes` and a small constant, whatever the input claims.
    """
    if codec == NONE:
        if len(data) > max_bytes:
            raise _too_large(max_bytes)
        return data
    if codec == GZIP:
        steps = _gunzip(memoryview(data))
    elif codec == SNAPPY:
        steps = _unpack_snappy(memoryview(data), max_bytes)
    elif codec == LZ4:
        steps = _unpack_lz4(memoryview(data))
    elif codec == ZSTD:
        steps = _unpack_zstd(data)
    else:
        raise Malformed(f"unknown compression codec {codec}")
    out = bytearray()
    for step in steps:
        if len(out) + len(step) > max_bytes:
            raise _too_large(max_bytes)
        out += step
    return out


def _too_large(max_bytes: int) -> Malformed:
    return Malformed(f"records decompress to more than {max_bytes} bytes")


def _gunzip(data: memoryview) -> Iterator[bytes]:
    unpacker = zlib.decompressobj(31)
    position = 0
    pending: bytes | memoryview = b""
    try:
        while True:
            if not pending:
                pending = data[position : position + _STEP]
                position += _STEP
            if not pending:
                raise Undecodable("gzip stream ends too early")
            yield unpacker.decompress(pending, _STEP)
            pending = unpacker.unconsumed_tail
            if unpacker.eof:
                rest = bytes(unpacker.unused_data) + bytes(data[position : position + _STEP])
                # Java's reader goes on with a second member and ignores anything else that follows.
                if rest[:2] != b"\x1f\x8b":
                    return
                position += _STEP
                pending = rest
                unpacker = zlib.decompressobj(31)
    except zlib.error as error:
        raise Undecodable(f"broken gzip data: {error}") from error


def _compress_snappy(data: memoryview) -> bytes:
    parts = [_XERIAL_HEADER]
    for position in range(0, len(data), _XERIAL_BLOCK):
        block = snappy.compress(bytes(data[position : position + _XERIAL_BLOCK]))
        parts += (len(block).to_bytes(4), block)
    return b"".join(parts)


def _unpack_snappy(data: memoryview, max_bytes: int) -> Iterator[bytes]:
    if data[:8] != _XERIAL_MAGIC:
        yield _unpack_snappy_block(data, max_bytes)
        return
    position = len(_XERIAL_HEADER)
    left = max_bytes
    while position < len(data):
        if data[position : position + 8] == _XERIAL_MAGIC:  # streams may be concatenated
            position += len(_XERIAL_HEADER)
            continue
        size = int.from_bytes(data[position : position + 4])
        position += 4
        if size == 0 or position + size > len(data):
            raise Undecodable(f"snappy block of {size} bytes does not fit in its batch")
        block = _unpack_snappy_block(data[position : position + size], left)
        left -= len(block)
        position += size
        yield block


def _unpack_snappy_block(block: memoryview, max_bytes: int) -> bytes:
    # The block's own preamble says how much it will allocate, so it is read before the library sees it.
    claimed = shift = 0
    for byte in block[:5]:
        claimed |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    else:
        raise Undecodable("snappy block without a length")
    if claimed > max_bytes:
        raise _too_large(max_bytes)
    try:
        return bytes(snappy.uncompress(bytes(block)))
    except Exception as error:  # the library raises different types in its versions
        raise Undecodable(f"broken snappy data: {error}") from error


def _unpack_lz4(data: memoryview) -> Iterator[bytes]:
    unpacker = lz4.frame.LZ4FrameDecompressor()
    position = 0
    try:
        while not unpacker.eof:
            if unpacker.needs_input:
                if position >= len(data):
                    raise Undecodable("lz4 frame ends too early")
                step = unpacker.decompress(data[position : position + _STEP], _STEP)
                position += _STEP
            else:
                step = unpacker.decompress(b"", _STEP)
            yield step
    except (RuntimeError, ValueError, MemoryError) as error:
        raise Undecodable(f"broken lz4 data: {error}") from error
    if unpacker.unused_data or position < len(data):
        raise Malformed("bytes follow the lz4 frame")


def _unpack_zstd(data: Buffer) -> Iterator[bytes]:
    try:
        _check_zstd_frames(memoryview(data))
        with zstandard.ZstdDecompressor().stream_reader(data, read_size=_STEP, read_across_frames=True) as reader:
            while step := reader.read(_STEP):
                yield step
    except (zstandard.ZstdError, MemoryError) as error:
        raise Undecodable(f"broken zstd data: {error}") from error


def _check_zstd_frames(data: memoryview) -> None:
    """Walk the blocks' headers to see that the last frame is whole: the library takes a cut-off one for the end."""
    position = 0
    while position < len(data):
        frame = data[position : position + 18]  # the longest header
        if frame[1:4] == _SKIPPABLE and frame[0] & 0xF0 == 0x50:
            position += 8 + int.from_bytes(frame[4:8], "little")
            continue
        has_checksum = zstandard.get_frame_parameters(frame).has_checksum
        position += zstandard.frame_header_size(frame)
        is_last = False
        while not is_last:
            header = int.from_bytes(data[position : position + 3], "little")
            is_last = bool(header & 1) or position >= len(data)
            position += 3 + (1 if header >> 1 & 3 == _RLE_BLOCK else header >> 3)
        position += 4 if has_checksum else 0
    if position != len(data) or not position:
        raise Undecodable("zstd frame ends too early")
