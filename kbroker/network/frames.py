"""Cuts a stream of bytes into frames: size i32, then that many bytes.

Owns the bytes of an incomplete frame, and the bytes after a request that is in progress. Never reads a socket, and
never parses a frame's content.

A frame uses memory for its received bytes, never for its claimed length. Its buffer grows with the received bytes. A
frame that is larger than a producer's requests is rare, and gets a memory mapping of its complete size. The system
provides the pages of this mapping only when they are written. (A buffer that grew to 90 MB would be copied at each
step, while the loop waits.)
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator

from kbroker.security.tls.session import plain_protocol

_UNPACK_SIZE = struct.Struct(">i").unpack_from
_PACK_SIZE = struct.Struct(">i").pack
FIRST_GROWTH = 64 * 1024
"""The maximum size in bytes of a buffer that is allocated immediately for a claimed size."""
_AT_ONCE = 256 * 1024
"""The maximum number of bytes received in one call.

Most of these bytes are written to new memory, and other connections wait meanwhile.
"""
_ORDINARY = 1024 * 1024 + FIRST_GROWTH
"""The maximum number of bytes that are allocated for a claimed size after FIRST_GROWTH bytes have arrived.

By default, this is a producer's largest request.
"""


class BadFrame(Exception):  # noqa: N818 - named after the frame
    """The size of a frame is invalid or exceeds the limit. The rest of the stream is unreadable."""


class FrameBuffer:
    """The frames of one stream, in order. `limit` is the largest accepted size in bytes.

    The reader of the stream passes received bytes to `cut`, and the bytes after `consumed` to `keep`. While bytes are
    kept, the reader receives the next bytes into `room`, and calls `received` with their number. If there is no room,
    the reader calls `grow` with the size from `wanted`.
    """

    __slots__ = ("consumed", "filled", "granted", "kept", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        """The largest accepted size. It can be increased while frames are cut."""
        self.kept: bytearray | mmap.mmap | None = None
        self.granted = 0
        """The number of bytes of `kept` that may be filled."""
        self.filled = 0
        """The number of received bytes in `kept`."""
        self.consumed = 0
        """The number of bytes of the last `cut` that were returned as frames."""

    def cut(self, data: memoryview) -> Iterator[memoryview]:
        """Yield the complete frames at the beginning of `data`, as views. Raises BadFrame at a bad frame."""
        unpack_from, limit, end = _UNPACK_SIZE, self.limit, len(data)
        start = 4
        self.consumed = 0
        while start <= end:
            (size,) = unpack_from(data, start - 4)
            if not 0 <= size <= limit:
                limit = self.limit
                if not 0 <= size <= limit:
                    raise self._bad(size)
            stop = start + size
            if stop > end:
                return
            self.consumed = stop
            yield data[start:stop]
            start = stop + 4

    def keep(self, data: memoryview) -> None:
        """Keep bytes that cannot be used yet, after the bytes already kept."""
        if self.kept is None:
            self.granted = max(len(data), self._believed(data))
            self.kept = bytearray(self.granted)
            self.filled = 0
        stop = self.filled + len(data)
        if stop > self.granted:
            self.grow(stop)
        self.kept[self.filled : stop] = data
        self.filled = stop

    @property
    def wanted(self) -> int:
        """The size in bytes to which the buffer must grow for more bytes of the frame; 0 while there is room."""
        kept, filled = self.kept, self.filled
        if kept is None or filled < self.granted:
            return 0
        if filled < 4:
            return FIRST_GROWTH
        whole: int = 4 + _UNPACK_SIZE(kept)[0]
        if whole <= filled:
            return filled + FIRST_GROWTH  # other frames follow
        return min(whole, max(2 * filled, _ORDINARY if filled >= FIRST_GROWTH else FIRST_GROWTH))

    def grow(self, size: int) -> None:
        """Grow to `size` bytes. A larger buffer is a new object, so views of the old buffer stay valid."""
        kept, filled = self.kept, self.filled
        assert kept is not None
        if size > len(kept):
            grown: bytearray | mmap.mmap
            if size > _ORDINARY:
                grown = mmap.mmap(-1, max(size, min(4 + _UNPACK_SIZE(kept)[0], 4 + self.limit)))
            else:
                grown = bytearray(size)
            grown[:filled] = memoryview(kept)[:filled]
            self.kept = grown
        self.granted = size

    def room(self) -> memoryview:
        """Return the memory for the next received bytes. Some bytes must be kept already."""
        assert self.kept is not None
        return memoryview(self.kept)[self.filled : min(self.granted, self.filled + _AT_ONCE)]

    def received(self, count: int) -> memoryview | None:
        """Count bytes received into `room`; return all kept bytes if a frame is complete. Raises BadFrame."""
        self.filled += count
        frame, filled = self.kept, self.filled
        if frame is None or filled < 4:
            return None
        (size,) = _UNPACK_SIZE(frame)
        if not 0 <= size <= self.limit:
            raise self._bad(size)
        return self.take() if filled >= 4 + size else None

    def take(self) -> memoryview | None:
        """Return the kept bytes and forget them."""
        kept, self.kept = self.kept, None
        self.granted = 0
        return None if kept is None else memoryview(kept)[: self.filled]

    def _believed(self, data: memoryview) -> int:
        """Return the frame's claimed size, but at most a limit that grows with the received bytes."""
        if len(data) < 4:
            return 4
        (size,) = _UNPACK_SIZE(data)
        return int(min(4 + max(size, 0), max(FIRST_GROWTH, 2 * len(data))))

    def _bad(self, size: int) -> BadFrame:
        text = f"a frame of {size} bytes (socket.request.max.bytes={self.limit})"
        protocol = plain_protocol(_PACK_SIZE(size))
        return BadFrame(f"{text}, which looks like {protocol}" if protocol else text)
