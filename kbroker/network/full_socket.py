"""Whether a socket that is full is asked again at once, or the loop is to tell when it has room.

Owns what one connection's client has shown: how soon it takes what was sent. Never sends, and never reads a clock.

A client that reads on the same machine empties its socket within 25 to 50 us. To wait for that in the poller costs a
sleep and a wake, with the client waiting on its side. A Fetch of 1 MB is more than four times what a socket takes at
once (with `socket.send.buffer.bytes` as it is by default, which Apache Kafka has too): it took some 700 us that way and
takes some 450, medians of one in flight over loopback, for a fifth less CPU time. A client that is slow, or is further
away than that, empties nothing meanwhile: after that was seen once one full socket is not asked, then three, seven and
so on.
"""

from __future__ import annotations

ASKED_FOR = 0.000_05
"""Seconds for which a full socket is asked again."""
ENOUGH_BYTES = 16 * 1024
"""A socket that takes less has as good as taken nothing, unless that is all there is."""
MOST_PASSED_OVER = 63
"""Full sockets one after another that are not asked at all, where it was always in vain."""


class Patience:
    """One socket's; times in seconds."""

    __slots__ = ("_in_vain", "_passes", "_until", "asked_s", "since")

    def __init__(self) -> None:
        self.since = 0.0
        """When the socket was seen to be full; 0.0: it has taken something since."""
        self.asked_s = 0.0
        """For how long, in all, it was full and was asked again."""
        self._until = 0.0
        self._in_vain = 0
        self._passes = 0

    def took(self, at: float) -> None:
        """The socket was full, was asked again, and has taken enough."""
        self.asked_s += at - self.since
        self.since = 0.0
        self._in_vain = 0

    def lasts(self, at: float, end: float, *, crowded: bool) -> bool:
        """Whether to ask a socket again that is full at `at`: not beyond `end`, nor where it is `crowded`.

        False: the loop is to tell.
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
