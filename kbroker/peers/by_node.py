"""Ways to the brokers of a cluster by their ids, wherever they are at the moment.

Owns one way to each broker that was asked, and gives it up when the broker has moved. Never asks again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from kbroker.peers.interface import Peer, PeerGone, Peers

Answer = TypeVar("Answer")
Endpoint = tuple[str, int]


class PeersByNode:
    """Asks brokers by id. `endpoint_of` returns where one is reached, None where it is not known to live."""

    def __init__(self, peers: Peers, endpoint_of: Callable[[int], Endpoint | None], client_id: str) -> None:
        self._peers = peers
        self._endpoint_of = endpoint_of
        self._client_id = client_id
        self._ways: dict[int, tuple[Endpoint, Peer]] = {}

    def knows(self, node_id: int) -> bool:
        """Whether a broker can be asked."""
        return self._endpoint_of(node_id) is not None

    async def ask(self, node_id: int, request: Any, version: int, answer: type[Answer], timeout_ms: float) -> Answer:
        """As Peer.ask; raises PeerGone as well where the broker is not known."""
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
        """Ask nothing more; whoever waits hears PeerGone."""
        for _, peer in self._ways.values():
            peer.close()
        self._ways.clear()
