"""Decides whether to retry a full socket at once, or to wait until the loop reports room.

Owns the experience with one connection's client: how soon it takes the sent bytes. Never sends, and never reads a
clock.

A client that reads on the same machine empties its socket within 25 to 50 us. Waiting for that in the poller costs a
sleep and a wake-up, while the client waits, too. A Fetch of 1 MB is more than four times what a socket takes at once
(with the default of `socket.send.buffer.bytes`, the same as Apache Kafka's): it took some 700 us that way and takes
some 450, medians of one in flight over loopback, for a fifth less CPU time. A client that is slow, or further away than
that, empties nothing meanwhile: after the first failed retry, one full socket is not retried, then three, seven and so
on.
"""

from __future__ import annotations

ASKED_FOR = 0.000_05
"""Seconds for which a full socket is retried."""
ENOUGH_BYTES = 16 * 1024
"""A socket that takes fewer bytes counts as still full, unless no more bytes are left."""
MOST_PASSED_OVER = 63
"""Most full sockets in a row that are not retried, if all retries failed."""


class Patience:
    """The experience with one socket; times in seconds."""

    __slots__ = ("_in_vain", "_passes", "_until", "asked_s", "since")

    def __init__(self) -> None:
        self.since = 0.0
        """When the socket was found full; 0.0: it has taken something since."""
        self.asked_s = 0.0
        """Total time of the retries."""
        self._until = 0.0
        self._in_vain = 0
        self._passes = 0

    def took(self, at: float) -> None:
        """Note that the retries succeeded: the socket has taken enough."""
        self.asked_s += at - self.since
        self.since = 0.0
        self._in_vain = 0

    def lasts(self, at: float, end: float, *, crowded: bool) -> bool:
        """Whether to retry a socket that is full at `at`: not beyond `end`, and not if others wait (`crowded`).

        False: wait for the loop to report room.
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
