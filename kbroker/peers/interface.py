"""The seam between who asks other brokers (controller, fetchers, transactions) and how the question gets there.

Owns the two protocols and their errors; connection.py stands behind them in production, queues in memory in tests.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

Answer = TypeVar("Answer")


class PeerGone(Exception):  # noqa: N818 - an outcome to be handled, not a fault
    """No answer came: not connected, cut off, or too late. Whether the request was carried out is not known."""


class Peer(Protocol):
    """A way to one broker. Requests arrive in the order in which they were asked, and are answered in it."""

    async def ask(self, request: Any, version: int, answer: type[Answer], timeout_ms: float) -> Answer:
        """Send a message of kbroker.protocol and return its answer; raises PeerGone.

        Connects when there is no connection. What is in flight when a connection ends is gone with it. A `records`
        field of the answer may be a view on what was received.
        """

    def close(self) -> None:
        """Ask nothing more; whoever waits hears PeerGone."""


class Peers(Protocol):
    """Where peers come from."""

    def peer(self, host: str, port: int, client_id: str) -> Peer:
        """Return a new way to the broker at an address; nothing is connected yet."""
