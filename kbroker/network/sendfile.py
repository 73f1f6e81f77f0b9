"""Sends one answer whose records lie in files: `os.sendfile`, page cache to socket, no byte of it in Python.

Owns the duplicate of a connection's descriptor and the piece being sent. Works only while the transport's own write
buffer is empty, so the order of bytes is kept; when the socket is full it waits by `loop.add_writer` on the duplicate
(neither asyncio's nor uvloop's transport offers its own descriptor for that).
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable
from typing import Any

Piece = Any
"""bytes-like, or a slice of a file with `fd`, `position`, `size`."""

SENDFILE_BYTES = 32 * 1024
"""A slice from this size on leaves by sendfile; below it one gathered write is cheaper."""


class Transfer:
    """One connection's way past its transport."""

    __slots__ = ("_done", "_fd", "_loop", "_offset", "_pieces", "waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop, socket_fd: int) -> None:
        self._loop = loop
        self._fd = os.dup(socket_fd)
        self._pieces: deque[Piece] = deque()
        self._offset = 0
        self._done: Callable[[bool], None] | None = None
        self.waiting = False
        """Whether something has not been taken by the kernel yet."""

    def send(self, pieces: list[Piece], done: Callable[[bool], None]) -> bool:
        """Send `pieces` in order. True: all is with the kernel. False: `done(ok)` will be called."""
        self._pieces.extend(pieces)
        self._offset = 0
        if self._push():
            return True
        self._done = done
        self.waiting = True
        self._loop.add_writer(self._fd, self._writable)
        return False

    @property
    def left(self) -> int:
        """How many bytes have not been taken by the kernel yet."""
        return sum(len(piece) for piece in self._pieces) - self._offset

    def close(self) -> None:
        """Stop, and give the descriptor back."""
        if self.waiting:
            self._loop.remove_writer(self._fd)
            self.waiting = False
        self._pieces.clear()
        self._done = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _writable(self) -> None:
        try:
            finished = self._push()
        except OSError:
            self._end(ok=False)
            return
        if finished:
            self._end(ok=True)

    def _end(self, *, ok: bool) -> None:
        self._loop.remove_writer(self._fd)
        self.waiting = False
        self._pieces.clear()
        self._offset = 0
        done, self._done = self._done, None
        if done is not None:
            done(ok)

    def _push(self) -> bool:
        """Send until all is sent (True) or the socket is full (False). Raises OSError when the peer is gone."""
        pieces = self._pieces
        while pieces:
            piece = pieces[0]
            size = len(piece)
            try:
                if hasattr(piece, "fd"):
                    sent = os.sendfile(self._fd, piece.fd, piece.position + self._offset, size - self._offset)
                    if sent == 0:
                        raise OSError("a segment is shorter than the slice of it")
                else:
                    sent = os.write(self._fd, memoryview(piece)[self._offset :])
            except BlockingIOError:
                return False
            self._offset += sent
            if self._offset == size:
                pieces.popleft()
                self._offset = 0
        return True
