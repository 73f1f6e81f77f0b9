"""The handling of stop signals in a program that waits in many places.

Owns the signal handlers while it is open. A signal ends only the current or next call of `pause` or `wait`, in any part
of the program. So it interrupts no other work.
"""

from __future__ import annotations

import select
import signal
import socket
from types import FrameType
from typing import Final, Self

_ORDERS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(Exception):  # noqa: N818 - an order, not a failure
    """Raised after a signal has ordered this program to stop."""


class StopSignals:
    """Handles SIGINT, SIGTERM and SIGHUP. Use this only in the main thread."""

    def __init__(self) -> None:
        self.requested = False
        self._woken, self._waker = socket.socketpair()
        for end in (self._woken, self._waker):
            end.setblocking(False)
        self._wakeup_before = signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        self._before = [(number, signal.signal(number, self._note)) for number in _ORDERS]

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self.requested = True

    def pause(self, seconds: float) -> None:
        """Wait. Raise Stopped immediately if a stop signal has arrived or arrives during the wait."""
        if not self.requested:
            select.select([self._woken], [], [], seconds)
        if self.requested:
            raise Stopped
        self._drain()

    def wait(self, other: int, seconds: float) -> bool:
        """Wait until a descriptor is readable, and return whether it is. Raises Stopped as `pause` does."""
        readable: list[int] = []
        if not self.requested:
            readable = select.select([self._woken.fileno(), other], [], [], seconds)[0]
        if self.requested:
            raise Stopped
        self._drain()
        return other in readable

    def _drain(self) -> None:
        try:
            while self._woken.recv(64):
                pass
        except BlockingIOError:
            pass

    def forget(self) -> None:
        """Clear the signal that is being handled, so that only the next signal raises Stopped."""
        self.requested = False

    def close(self) -> None:
        """Restore the previous handlers."""
        for number, handler in self._before:
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_before)
        self._woken.close()
        self._waker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
