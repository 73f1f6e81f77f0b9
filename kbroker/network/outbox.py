"""The responses that a connection still has to send, in order: bytes, and ranges of files.

Owns the socket's sending side. Bytes are sent by `send`. Ranges of files are sent by `os.sendfile`, from the page cache
to the socket without any copy in Python. If the socket is full, the outbox retries, or waits until the loop reports
that the socket has room. `Patience` chooses between retrying and waiting: the choice depends on the time after which
the client reads the sent bytes. Never interprets a response.

The bytes of a response before a range are sent immediately, not together with the range (MSG_MORE). The first packet
wakes the client while the range is being sent, and sending to a client that is awake uses less CPU time. This was
measured over loopback with one Fetch of 1 MB in flight: 0.315 s of CPU for each GB, instead of 0.345 s with MSG_MORE;
with 256 kB, 0.58 s instead of 0.68 s, at the same throughput. With five Fetches in flight, the CPU time is 0.30 s
instead of 0.32 to 0.37 s. The throughput was the same in two runs, and a fifth lower in one run.

A client that reads on the same machine empties its socket within 25 to 50 us. If the outbox waited for the poller's
report, this would cost a sleep and a wake-up, and the client would also wait. A Fetch of 1 MB is more than four times
the bytes that a socket accepts (with the default of `socket.send.buffer.bytes`, the same as Apache Kafka's). With the
poller it took about 700 us; with retries it takes about 450 us, and a fifth less CPU time (medians with one Fetch in
flight over loopback). A client that is slow or far away reads no bytes within this time. Therefore, after a failed
retry, the next full socket is not retried; after two failed retries in a row, the next three are not retried, then
seven and so on.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable
from typing import Any

from kbroker.network.turns import SLICE, TURN, Turns, now
from kbroker.protocol.compiler import Spill

ASKED_FOR = 0.000_05
"""The time in seconds for which a full socket is retried."""
ENOUGH_BYTES = 16 * 1024
"""A socket that accepts fewer bytes than this counts as still full, if more bytes are left."""
MOST_PASSED_OVER = 63
"""The maximum number of successive full sockets that are skipped without a retry, after all retries have failed."""


class Patience:
    """Decides whether to retry a full socket, from the results of earlier retries. Times are in seconds."""

    __slots__ = ("_in_vain", "_passes", "_until", "asked_s", "since")

    def __init__(self) -> None:
        self.since = 0.0
        """The time at which the socket was found full; 0.0 if it has accepted bytes since."""
        self.asked_s = 0.0
        """The total time of the retries."""
        self._until = 0.0
        self._in_vain = 0
        self._passes = 0

    def took(self, at: float) -> None:
        """Record that the retries succeeded: the socket has accepted enough bytes."""
        self.asked_s += at - self.since
        self.since = 0.0
        self._in_vain = 0

    def lasts(self, at: float, end: float, *, crowded: bool) -> bool:
        """Whether to retry a socket that is full at `at`: not after `end`, and not if connections wait (`crowded`).

        If the result is False, wait until the loop reports room.
        """
        if not self.since:
            self.since = at
            self._until = at if crowded or self._passes else min(at + ASKED_FOR, end)
        if at < self._until:
            return True
        self.asked_s += at - self.since
        if self.since < at < end:
            self._passes = self._in_vain = min(2 * self._in_vain + 1, MOST_PASSED_OVER)
        elif self._passes:
            self._passes -= 1
        self.since = 0.0
        return False


Piece = Any
"""A bytes-like object, or a range of a file with `fd`, `position`, `size`, and `view()`, which reads the range."""

BY_FILE_BYTES = 32 * 1024
"""Ranges of at least this size are sent by sendfile. For smaller ranges, a read and a gathered send take less time."""
GATHERED_BYTES = 64 * 1024
"""The maximum bytes of a response that are read into memory; sendfile sends the rest. Responses may wait for long."""
TINY_BYTES = 1024
"""A range with fewer bytes than this is always gathered: a range object would use as much memory."""
_LEAST_COST = 8 * 1024
"""The fixed cost of sending a range, as the number of bytes that could be sent in the same time."""
_AT_ONCE = 4 * 1024 * 1024
"""A client that reads immediately is sent at most this number of bytes before other connections have a turn."""
_RANGE_BYTES = 200
_BYTES = frozenset({bytes, bytearray, memoryview})


def is_range(piece: Piece) -> bool:
    """Return whether a piece is a range of a file. Do not read `fd`: that would open the file and keep it open."""
    return piece.__class__ not in _BYTES


def pieces_of(out: bytearray, spill: Spill) -> list[Piece]:
    """Return a response's pieces in order. Small ranges are joined with the response's bytes, up to a limit.

    The other ranges are pieces of their own.
    """
    if len(spill) == 1 and len(spill[0][1]) < TINY_BYTES:
        at, piece = spill[0]
        out[at:at] = _bytes_of(piece)
        return [out]
    pieces: list[Piece] = []
    position = 0
    room = GATHERED_BYTES
    gathered = bytearray()
    for at, piece in spill:
        gathered += memoryview(out)[position:at]
        position = at
        size = len(piece)
        if (size >= BY_FILE_BYTES or (size > room and size >= TINY_BYTES)) and is_range(piece):
            if gathered:
                pieces.append(gathered)
                gathered = bytearray()
            pieces.append(piece)
        else:
            gathered += _bytes_of(piece)
            room -= size
    gathered += memoryview(out)[position:]
    if gathered:
        pieces.append(gathered)
    return pieces


def _bytes_of(piece: Piece) -> Any:
    data = piece.view() if hasattr(piece, "view") else piece
    if len(data) != len(piece):
        raise OSError("a segment is shorter than the range to send")
    return data


def _ignore(_error: OSError | None) -> None:
    pass


class Outbox:
    """The sending side of one connection."""

    __slots__ = (
        "__weakref__", "_armed", "_done", "_fd", "_loop", "_offset", "_patience", "_pieces", "_queued", "_sock",
        "_turns",
    )  # fmt: skip

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        turns: Turns,
        sock: socket.socket,
        done: Callable[[OSError | None], None],
    ) -> None:
        """Initialize; `done` is called when the kernel has accepted all bytes, or with a broken connection's error."""
        self._loop = loop
        self._turns = turns
        self._queued = False
        self._armed = False
        """Whether the loop will report when the socket has room."""
        self._sock = sock
        self._fd = sock.fileno()
        self._pieces: deque[Piece] | tuple[()] = ()  # a deque is created later: an empty deque takes 0.6 kB
        self._offset = 0
        """The number of sent bytes of the first piece."""
        self._patience = Patience()
        self._done = done

    @property
    def waiting(self) -> bool:
        """Whether some bytes are not accepted by the kernel yet."""
        return bool(self._pieces)

    @property
    def asked_s(self) -> float:
        """The total time of retries while the socket was full, in seconds."""
        return self._patience.asked_s

    @property
    def left(self) -> int:
        """The number of waiting bytes, including the bytes in files."""
        return sum(len(piece) for piece in self._pieces) - self._offset

    @property
    def in_memory(self) -> int:
        """The memory of the waiting pieces in bytes. A range of a file counts as a fixed number of bytes."""
        size = 0
        for piece in self._pieces:  # for each request, a loop is some hundred ns faster than sum()
            size += _RANGE_BYTES if is_range(piece) else len(piece)
        return size

    def send(self, data: bytearray) -> None:
        """Send as many bytes as the socket accepts, and keep the rest. Raise OSError if the connection is broken."""
        if self._pieces:
            self._pieces.append(data)
            return
        try:
            sent = self._sock.send(data)
        except BlockingIOError:
            sent = 0
        if sent < len(data):
            self._pieces = deque((data,))
            self._offset = sent
            self._wait()

    def send_pieces(self, pieces: list[Piece]) -> None:
        """Send bytes and ranges of files in order. Raise OSError if the connection is broken."""
        if self._pieces:
            self._pieces.extend(pieces)
            return
        waiting = self._pieces = deque(pieces)
        if self._push(waiting):
            self._pieces = ()
        else:
            self._wait()

    def close(self) -> None:
        """Stop sending and calling `done`. The socket stays open."""
        self._done = _ignore
        self._pieces = ()
        self._stop_waiting()

    def _wait(self) -> None:
        if not self._armed:
            self._armed = True
            self._loop.add_writer(self._fd, self._writable)

    def _stop_waiting(self) -> None:
        if self._armed:
            self._armed = False
            self._loop.remove_writer(self._fd)

    def _writable(self) -> None:
        turns = self._turns
        if turns.spent >= TURN:
            if not self._queued:
                self._queued = True
                turns.put(self)
            return
        started = now()
        turns.serves(self._fd, started)
        self._send_on()
        turns.used(now() - started)

    def go_on(self, _deadline: float) -> None:
        """Send as many bytes as the socket accepts, after a wait for a turn."""
        self._queued = False
        if self.waiting:
            self._turns.serves(self._fd, now())
            self._send_on()

    def _send_on(self) -> None:
        error = None
        try:
            if not self._push(self._pieces):
                return
        except OSError as err:
            error = err
        self._pieces = ()
        self._offset = 0
        try:
            self._done(error)
        finally:
            # Keep the writer if the next response already waits: removing and adding the writer would cost a Fetch two
            # epoll_ctl calls and an io_uring_enter.
            if not self.waiting:
                self._stop_waiting()

    def _push(self, pieces: deque[Piece] | tuple[()]) -> bool:
        """Send bytes. Return True if all are sent, False if the socket is full or other connections have their turn."""
        budget, send_range, socket_fd = _AT_ONCE, os.sendfile, self._fd
        patience, end = self._patience, now() + SLICE
        patience.since = 0.0
        while pieces and budget > 0:
            piece, offset = pieces[0], self._offset
            left = len(piece) - offset
            # Read these once for each piece: each lookup costs a call, and a Fetch of 1 MB needs seven sendfile calls.
            by_file = is_range(piece)
            fd, begin = (piece.fd, piece.position) if by_file else (-1, 0)
            while left and budget > 0:
                wanted = left if left < budget or not by_file else budget
                try:
                    if by_file:
                        sent = send_range(socket_fd, fd, begin + offset, wanted)
                        if sent == 0:
                            raise OSError("a segment is shorter than the range to send")
                    else:
                        sent = self._sock.send(memoryview(piece)[offset:] if offset else piece)
                except BlockingIOError:
                    sent = 0
                budget -= sent if sent > _LEAST_COST else _LEAST_COST
                if sent:
                    left -= sent
                    offset += sent
                    self._offset = offset
                    if patience.since and (sent == wanted or sent >= ENOUGH_BYTES):
                        patience.took(now())
                if sent < wanted:
                    at = now()
                    if not patience.lasts(at, end, crowded=self._turns.crowded(at)):
                        return False
            if not left:
                pieces.popleft()
                self._offset = 0
        return not pieces
