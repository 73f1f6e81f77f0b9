"""Compresses and decompresses the records section of a batch, with a limit on the decompressed size.

Owns the five codecs by their number in a batch's attributes: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd. Never interprets
the bytes. decompression.py reads a codec piece by piece.

Snappy has its own module, snappy_format.py. Lz4 uses the frame format with independent blocks, the only form that
Java's reader accepts.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterable, Iterator
from typing import Final

import lz4.frame
import zstandard

from kbroker.protocol.decompression import PIECE, too_large, unpack_gzip, unpack_lz4, unpack_zstd
from kbroker.protocol.errors import Malformed
from kbroker.protocol.snappy_format import compress_snappy, pack_snappy, unpack_snappy
from kbroker.protocol.wire import Buffer

NONE: Final = 0
GZIP: Final = 1
SNAPPY: Final = 2
LZ4: Final = 3
ZSTD: Final = 4

CODEC_NAMES: Final = ("none", "gzip", "snappy", "lz4", "zstd")

_DEFAULT_LZ4_LEVEL = 9  # Kafka's number for the fast compressor; every other number selects the high compressor
_DEFAULT_ZSTD_LEVEL = 3
_GZIP_STEP = 16384  # compressed in one step of some hundred us


class _OfThread(threading.local):
    """A compressor of small data for each thread.

    Its creation takes 17 us, and two threads must not share a compressor.
    """

    def __init__(self) -> None:
        self.small = zstandard.ZstdCompressor(level=_DEFAULT_ZSTD_LEVEL)


_of_thread = _OfThread()


def codec_of(name: str) -> int:
    """Return the codec's number. Raises ValueError for a name that is not in CODEC_NAMES."""
    return CODEC_NAMES.index(name)


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    """Compress `data` as Kafka's Java client does. `level` is in the codec's own scale; None means its default."""
    if codec == NONE:
        return bytes(data)
    if codec == GZIP:
        packer = zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, 31)
        return packer.compress(data) + packer.flush()
    if codec == SNAPPY:
        return compress_snappy(memoryview(data))
    if codec == LZ4:
        return bytes(
            lz4.frame.compress(
                data,
                compression_level=_lz4_level(level),
                block_size=lz4.frame.BLOCKSIZE_MAX64KB,
                block_linked=False,
                store_size=False,
            )
        )
    if codec == ZSTD:
        if level is None and len(data) <= PIECE:
            return _of_thread.small.compress(data)
        return zstandard.ZstdCompressor(level=_DEFAULT_ZSTD_LEVEL if level is None else level).compress(data)
    raise Malformed(f"unknown compression codec {codec}")


def pack(codec: int, pieces: Iterable[bytes], size: int, level: int | None = None) -> Iterator[bytes]:
    """Yield the result of `compress` for the pieces, step by step; some steps are empty.

    `size` is the size of all pieces together. If the size is unknown (-1), the output does not contain it.
    """
    if codec == NONE:
        yield from pieces
    elif codec == GZIP:
        deflater = zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, 31)
        for piece in _cut(pieces, _GZIP_STEP):
            yield deflater.compress(piece)
        yield deflater.flush()
    elif codec == SNAPPY:
        yield from pack_snappy(_cut(pieces, PIECE))
    elif codec == LZ4:
        framer = lz4.frame.LZ4FrameCompressor(
            compression_level=_lz4_level(level), block_size=lz4.frame.BLOCKSIZE_MAX64KB, block_linked=False
        )
        yield bytes(framer.begin())
        for piece in _cut(pieces, PIECE):
            yield bytes(framer.compress(piece))
        yield bytes(framer.flush())
    elif codec == ZSTD:
        packer = zstandard.ZstdCompressor(level=_DEFAULT_ZSTD_LEVEL if level is None else level).compressobj(size=size)
        for piece in _cut(pieces, PIECE):
            yield packer.compress(piece)
        yield packer.flush()
    else:
        raise Malformed(f"unknown compression codec {codec}")


def _cut(pieces: Iterable[bytes], longest: int) -> Iterator[bytes]:
    for piece in pieces:
        if len(piece) <= longest:
            yield piece
        else:
            yield from (piece[start : start + longest] for start in range(0, len(piece), longest))


def _lz4_level(level: int | None) -> int:
    return 0 if level is None or level == _DEFAULT_LZ4_LEVEL else level


def decompress(codec: int, data: Buffer, max_bytes: int) -> bytes | bytearray | memoryview:
    """Return the decompressed bytes. Raises Malformed for invalid data, or for more than `max_bytes` of output.

    Whatever size the input claims, this allocates at most `max_bytes` and a small constant.
    """
    if codec == NONE:
        if len(data) > max_bytes:
            raise too_large(max_bytes)
        return data
    out = bytearray()
    for piece in unpack(codec, data, max_bytes):
        out += piece
    return out


def unpack(codec: int, data: Buffer, max_bytes: int) -> Iterator[bytes]:
    """Yield the decompressed bytes in pieces, some of which are empty. A piece takes little work (decompression.py).

    Raises Malformed for invalid data, and when all pieces together would exceed `max_bytes`.
    """
    view = memoryview(data)
    pieces: Iterator[bytes]
    if codec == NONE:
        pieces = (bytes(view[start : start + PIECE]) for start in range(0, len(view), PIECE))
    elif codec == GZIP:
        pieces = unpack_gzip(view)
    elif codec == SNAPPY:
        pieces = unpack_snappy(view, max_bytes)
    elif codec == LZ4:
        pieces = unpack_lz4(view)
    elif codec == ZSTD:
        pieces = unpack_zstd(view)
    else:
        raise Malformed(f"unknown compression codec {codec}")
    left = max_bytes
    for piece in pieces:
        left -= len(piece)
        if left < 0:
            raise too_large(max_bytes)
        yield piece
