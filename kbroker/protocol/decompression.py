"""Decompresses piece by piece. The memory and the work of a step do not grow with the size that a batch claims.

Owns the limits of one step of each codec: a step reads some kilobytes, returns at most some hundred kilobytes, and may
return nothing. Never keeps or interprets returned bytes. Does not limit the total of all steps: the caller counts the
bytes.

Snappy has its own module, snappy_format.py. Zstd frames are cut at their blocks, which decompress to at most 128 kB
each.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Generator, Iterator
from typing import Final

import lz4.frame
import zstandard

from kbroker.protocol.errors import Malformed, Undecodable

PIECE: Final = 65536

_GZIP_INPUT = 16384  # one step: some ms if all blocks have the smallest size
_GZIP_MEMBER = b"\x1f\x8b"
_GZIP_FORMAT = 31  # zlib's number for gzip's header and trailer, with the largest window
_RLE_BLOCK, _COMPRESSED_BLOCK = 1, 2
_ZSTD_BLOCK = 128 << 10
_ZSTD_INPUT = 16384
_ZSTD_BLOCKS = 256  # blocks in one step
_ZSTD_LONGEST_HEADER = 18
_SKIPPABLE = b"\x2a\x4d\x18"
_LIBRARYS_WINDOW = 128 << 20  # the largest window that zstd's own decoders accept by default
_KNOWN: Final = 1 << 20  # maximum size of a frame with a known size that one call decompresses
MOST_WINDOW: Final = 8 << 20
"""A zstd frame whose window has more bytes than this must not contain more bytes than this.

Levels above 19 use such a window for content of any size.
"""


def unpack_gzip(data: memoryview) -> Iterator[bytes]:
    """Yield the content of gzip members. Raises Undecodable."""
    unpacker = zlib.decompressobj(_GZIP_FORMAT)
    position, pending = 0, b""
    try:
        while True:
            if not pending:
                pending = bytes(data[position : position + _GZIP_INPUT])
                position += len(pending)
                if not pending:
                    raise Undecodable("gzip stream ends too early")
            yield unpacker.decompress(pending, PIECE)
            pending = unpacker.unconsumed_tail
            if unpacker.eof:
                position -= len(unpacker.unused_data)
                # Java's reader continues with a second member and ignores any other bytes.
                if data[position : position + 2] != _GZIP_MEMBER:
                    return
                pending = b""
                unpacker = zlib.decompressobj(_GZIP_FORMAT)
    except zlib.error as error:
        raise Undecodable(f"broken gzip data: {error}") from error


def unpack_lz4(data: memoryview) -> Iterator[bytes]:
    """Yield the content of an lz4 frame. Ignore bytes after the frame, as Java's reader does. Raises Undecodable."""
    unpacker = lz4.frame.LZ4FrameDecompressor()
    position = 0
    try:
        while not unpacker.eof:
            if unpacker.needs_input:
                if position >= len(data):
                    raise Undecodable("lz4 frame ends too early")
                step = unpacker.decompress(data[position : position + PIECE], PIECE)
                position += PIECE
            else:
                step = unpacker.decompress(b"", PIECE)
            yield step
    except (RuntimeError, ValueError, MemoryError) as error:
        raise Undecodable(f"broken lz4 data: {error}") from error


def unpack_zstd(data: memoryview) -> Iterator[bytes]:
    """Yield the content of zstd frames. Raises Undecodable.

    Raises Malformed for a frame whose window and content are both larger than MOST_WINDOW.
    """
    if not data:
        raise Malformed("no zstd frame")
    position = 0
    library = zstandard.ZstdDecompressor()
    try:
        while position < len(data):
            head = data[position : position + _ZSTD_LONGEST_HEADER]
            if _is_skippable(head):
                position += 8 + int.from_bytes(head[4:8], "little")
                yield b""
            else:
                position = yield from _unpack_frame(library, data, position, head)
    except (zstandard.ZstdError, MemoryError) as error:
        raise Undecodable(f"broken zstd data: {error}") from error
    if position != len(data):
        raise Undecodable("zstd frame ends too early")


class _OfThread(threading.local):
    """A decompressor for each thread. Its creation takes 5 us, and two threads must not share a decompressor."""

    def __init__(self) -> None:
        self.library = zstandard.ZstdDecompressor()


_of_thread = _OfThread()


def _is_skippable(head: memoryview) -> bool:
    """Whether a frame is skippable. A skippable frame has no content, but its bytes may look like blocks."""
    return head[1:4] == _SKIPPABLE and head[0] & 0xF0 == 0x50


def unpack_zstd_at_once(data: memoryview) -> bytes | None:
    """Return the content of a zstd frame if one step can decompress it. Return None if it needs `unpack_zstd`."""
    if _is_skippable(data[:4]):
        return None
    try:
        parameters = zstandard.get_frame_parameters(data)
        end, last = _next_blocks(data, 0, zstandard.frame_header_size(data))
        if not last or end + 4 * parameters.has_checksum != len(data) or parameters.window_size > MOST_WINDOW:
            return None
        if parameters.content_size <= _KNOWN:
            return _of_thread.library.decompress(data)
        return _of_thread.library.decompressobj().decompress(data)
    except (zstandard.ZstdError, MemoryError, Undecodable):
        return None


def _unpack_frame(
    library: zstandard.ZstdDecompressor, data: memoryview, start: int, head: memoryview
) -> Generator[bytes, None, int]:
    """Yield the content of one frame. Return the position of the next frame."""
    parameters = zstandard.get_frame_parameters(head)
    window = parameters.window_size
    if window > _LIBRARYS_WINDOW:
        raise Undecodable(f"zstd frame with a window of {window} bytes")
    unpacker = library.decompressobj()
    position = start + zstandard.frame_header_size(head)
    given = 0
    last = False
    while not last:
        position, last = _next_blocks(data, start, position)
        if last and parameters.has_checksum:
            position += 4
        piece = unpacker.decompress(data[start:position])
        given += len(piece)
        if given > MOST_WINDOW < window:
            raise Malformed(f"zstd frame of more than {MOST_WINDOW} bytes with a window of {window}")
        yield piece
        start = position
    return position


def _next_blocks(data: memoryview, start: int, position: int) -> tuple[int, bool]:
    """Return the end of the blocks for the next step, and whether these are the last blocks of the frame."""
    room = _ZSTD_BLOCK
    for _ in range(_ZSTD_BLOCKS):
        if position >= len(data):
            raise Undecodable("zstd frame ends too early")
        header = int.from_bytes(data[position : position + 3], "little")
        kind, size = header >> 1 & 3, header >> 3
        position += 3 + (1 if kind == _RLE_BLOCK else size)
        if header & 1:
            return position, True
        room -= _ZSTD_BLOCK if kind == _COMPRESSED_BLOCK else size
        if room <= 0 or position - start > _ZSTD_INPUT:
            break
    return position, False


def too_large(max_bytes: int) -> Malformed:
    """Return the error for a batch that would exceed its limit."""
    return Malformed(f"records decompress to more than {max_bytes} bytes")
