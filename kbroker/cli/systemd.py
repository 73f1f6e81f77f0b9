"""Notifications to systemd about a broker that it has started with Type=notify.

Owns the datagrams to NOTIFY_SOCKET. They state that the broker serves, that it stops, and, with WATCHDOG_USEC, that its
event loop is alive. This module sends the notification that the loop is alive twice as often as systemd requires. Sends
nothing if NOTIFY_SOCKET is not set, and never raises.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Mapping

log = logging.getLogger(__name__)


class Systemd:
    """The notifications to systemd; none if systemd has not started this process."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        self._warned = False
        self._watchdog_s = _watchdog_s(environment) / 2
        self._socket: socket.socket | None = None
        self._timer: asyncio.TimerHandle | None = None

    def ready(self, loop: asyncio.AbstractEventLoop) -> None:
        """Notify that the broker serves; from now on also notify regularly that its loop is alive."""
        self._notify("READY=1")
        if self._watchdog_s and self._address:
            self._alive(loop)

    def _alive(self, loop: asyncio.AbstractEventLoop) -> None:
        self._notify("WATCHDOG=1")
        self._timer = loop.call_later(self._watchdog_s, self._alive, loop)

    def stopping(self) -> None:
        """Notify that the broker stops; watchdog notifications continue."""
        self._notify("STOPPING=1")

    def close(self) -> None:
        """Send no more notifications."""
        if self._timer is not None:
            self._timer.cancel()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _notify(self, text: str) -> None:
        if not self._address:
            return
        try:
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                self._socket.setblocking(False)
            # "@" marks an abstract name, which begins with a zero byte.
            abstract = self._address.startswith("@")
            with contextlib.suppress(BlockingIOError):
                self._socket.sendto(text.encode(), "\0" + self._address[1:] if abstract else self._address)
        except OSError as error:
            if not self._warned:
                # Continue to notify: systemd may return, and its watchdog kills a broker that sends no notifications.
                log.warning("NOTIFY_SOCKET %s does not accept %s: %s", self._address, text, error)
            self._warned = True


def _watchdog_s(environment: Mapping[str, str]) -> float:
    """Return the seconds within which systemd expects a notification, or 0."""
    usec, pid = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
    if not usec.isdecimal() or (pid and pid != str(os.getpid())):
        return 0.0
    return int(usec) / 1_000_000
