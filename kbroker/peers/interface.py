"""The interface between the transport and the senders of requests (controller, fetchers, transactions).

Owns the two protocols and their errors. In production connection.py implements the protocols; in tests, queues in
memory do. Also owns the peers by broker id: it creates one peer for each requested broker, and drops it when the
broker's address changes. Never retries.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

Answer = TypeVar("Answer")


class PeerUnavailable(Exception):  # noqa: N818 - an outcome to be handled, not a fault
    """No response arrived in time, or there is no connection. It is unknown whether the broker handled the request."""


class Peer(Protocol):
    """A connection to one broker. The broker receives and answers requests in the order in which they are sent."""

    async def ask(self, request: Any, version: int, answer: type[Answer], timeout_ms: float) -> Answer:
        """Send a message of kbroker.protocol and return its response. Raises PeerUnavailable.

        Connect if necessary. Requests in flight fail when a connection ends. A `records` field of the response may be a
        view of the received data.
        """

    def close(self) -> None:
        """Stop all requests; waiting callers get PeerUnavailable."""


class Peers(Protocol):
    """A factory of peers."""

    def peer(self, host: str, port: int, client_id: str) -> Peer:
        """Return a new peer for the broker at an address. The peer does not connect yet."""


Endpoint = tuple[str, int]


class PeersByNode:
    """Sends requests to brokers by id.

    `endpoint_of` returns a broker's address, or None if the broker is not known to be live.
    """

    def __init__(self, peers: Peers, endpoint_of: Callable[[int], Endpoint | None], client_id: str) -> None:
        self._peers = peers
        self._endpoint_of = endpoint_of
        self._client_id = client_id
        self._known: dict[int, tuple[Endpoint, Peer]] = {}

    def knows(self, node_id: int) -> bool:
        """Whether a broker's address is known."""
        return self._endpoint_of(node_id) is not None

    async def ask(self, node_id: int, request: Any, version: int, answer: type[Answer], timeout_ms: float) -> Answer:
        """Send a message like `Peer.ask`. Also raises PeerUnavailable for an unknown broker."""
        endpoint = self._endpoint_of(node_id)
        known = self._known.get(node_id)
        if known is not None and known[0] != endpoint:
            known[1].close()
            del self._known[node_id]
            known = None
        if endpoint is None:
            raise PeerUnavailable(f"broker {node_id} is not known to live")
        if known is None:
            known = self._known[node_id] = endpoint, self._peers.peer(*endpoint, self._client_id)
        return await known[1].ask(request, version, answer, timeout_ms)

    def drop_gone(self) -> None:
        """Stop requests to brokers that are no longer live or have new addresses.

        These requests raise PeerUnavailable.
        """
        for node_id, (endpoint, peer) in list(self._known.items()):
            if self._endpoint_of(node_id) != endpoint:
                peer.close()
                del self._known[node_id]

    def close(self) -> None:
        """Stop all requests; waiting callers get PeerUnavailable."""
        for _, peer in self._known.values():
            peer.close()
        self._known.clear()
