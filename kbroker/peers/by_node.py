"""Connections to the brokers of a cluster by id, wherever they currently are.

Owns one connection per requested broker, and drops it when the broker has moved. Never retries.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from kbroker.peers.interface import Peer, PeerGone, Peers

Answer = TypeVar("Answer")
Endpoint = tuple[str, int]


class PeersByNode:
    """Sends requests to brokers by id. `endpoint_of` returns an address, None for a broker not known to live."""

    def __init__(self, peers: Peers, endpoint_of: Callable[[int], Endpoint | None], client_id: str) -> None:
        self._peers = peers
        self._endpoint_of = endpoint_of
        self._client_id = client_id
        self._ways: dict[int, tuple[Endpoint, Peer]] = {}

    def knows(self, node_id: int) -> bool:
        """Whether a broker's address is known."""
        return self._endpoint_of(node_id) is not None

    async def ask(self, node_id: int, request: Any, version: int, answer: type[Answer], timeout_ms: float) -> Answer:
        """Do the same as Peer.ask; raises PeerGone also for an unknown broker."""
        endpoint = self._endpoint_of(node_id)
        known = self._ways.get(node_id)
        if known is not None and known[0] != endpoint:
            known[1].close()
            del self._ways[node_id]
            known = None
        if endpoint is None:
            raise PeerGone(f"broker {node_id} is not known to live")
        if known is None:
            known = self._ways[node_id] = endpoint, self._peers.peer(*endpoint, self._client_id)
        return await known[1].ask(request, version, answer, timeout_ms)

    def close(self) -> None:
        """Stop all requests; waiting callers get PeerGone."""
        for _, peer in self._ways.values():
            peer.close()
        self._ways.clear()
