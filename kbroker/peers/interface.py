"""The interface between the requesters of other brokers (controller, fetchers, transactions) and the transport.

Owns the two protocols and their errors; connection.py implements them in production, queues in memory in tests.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

Answer = TypeVar("Answer")


class PeerGone(Exception):  # noqa: N818 - an outcome to be handled, not a fault
    """No response arrived: not connected, cut off, or too late. Whether the request was carried out is unknown."""


class Peer(Protocol):
    """A connection to one broker. Requests arrive in the order of sending, and are answered in it."""

    async def ask(self, request: Any, version: int, answer: type[Answer], timeout_ms: float) -> Answer:
        """Send a message of kbroker.protocol and return its response; raises PeerGone.

        Connects if necessary. Requests in flight are lost when a connection ends. A `records` field of the response may
        be a view on the received data.
        """

    def close(self) -> None:
        """Stop all requests; waiting callers get PeerGone."""


class Peers(Protocol):
    """A factory of peers."""

    def peer(self, host: str, port: int, client_id: str) -> Peer:
        """Return a new peer for the broker at an address; nothing is connected yet."""
