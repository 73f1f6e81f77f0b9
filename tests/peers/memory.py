"""Fake peers: requests to brokers stay in memory, and are answered when the test says so."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from kbroker.peers.interface import PeerUnavailable
from kbroker.protocol.compiler import decode, encode

Endpoint = tuple[str, int]


@dataclass
class Asked:
    """A request in flight; it was encoded and decoded in its version, as its response will be."""

    endpoint: Endpoint
    client_id: str
    request: Any
    version: int
    answer_class: type[Any]
    timeout_ms: float
    future: asyncio.Future[Any]

    def answer(self, answer: Any) -> None:
        self.future.set_result(decode(self.answer_class, self.version, encode(answer, self.version)))

    def fail(self, error: Exception) -> None:
        self.future.set_exception(error)

    def lose(self) -> None:
        self.future.set_exception(PeerUnavailable("lost on purpose"))


class MemoryPeers:
    """A network: `pending` are the requests that were not answered yet."""

    def __init__(self) -> None:
        self.pending: list[Asked] = []
        self.closed: list[Endpoint] = []

    def peer(self, host: str, port: int, client_id: str) -> MemoryPeer:
        return MemoryPeer(self, (host, port), client_id)

    async def next(self) -> Asked:
        """Return the next request, for which a few turns of the loop are enough."""
        await turns()
        return self.pending.pop(0)


class MemoryPeer:
    def __init__(self, net: MemoryPeers, endpoint: Endpoint, client_id: str) -> None:
        self._net = net
        self._endpoint = endpoint
        self._client_id = client_id
        self._mine: list[asyncio.Future[Any]] = []

    async def ask(self, request: Any, version: int, answer: type[Any], timeout_ms: float) -> Any:
        future = asyncio.get_running_loop().create_future()
        sent = decode(type(request), version, encode(request, version))
        self._net.pending.append(Asked(self._endpoint, self._client_id, sent, version, answer, timeout_ms, future))
        self._mine.append(future)
        return await future

    def close(self) -> None:
        self._net.closed.append(self._endpoint)
        for future in self._mine:
            if not future.done():
                future.set_exception(PeerUnavailable("closed"))


async def turns(count: int = 10) -> None:
    """Let the loop run ready callbacks, and those that they make ready."""
    for _ in range(count):
        await asyncio.sleep(0)
