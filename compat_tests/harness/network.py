"""The network between the brokers of a cluster, and between each and ZooKeeper: tests can cut and slow its links.

Owns TCP proxies, in their own thread: in front of each broker's listener for other brokers, and for each broker in
front of ZooKeeper. A link has one direction: with 1 to 2 cut, and 2 to 1 open, the requests of 1 do not reach 2, and
its responses do not reach 2 either. The client id of a connection's first request contains the id of the broker that
opened it. Clients do not use these links.

Bytes that cannot pass are kept and arrive later, like retransmitted packets, even after the sender has given up. A
reset loses them, and both ends notice it.
"""

from __future__ import annotations

import asyncio
import random
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self, cast

Link = tuple[int, int]
"""Source and target: ids of brokers, or ZOOKEEPER."""

ZOOKEEPER: Final = 0
_UNKNOWN: Final = -1
_HOST: Final = "127.0.0.1"
_TICK_S: Final = 0.05
_KEPT_BYTES: Final = 1 << 20
"""A connection that keeps more than this in one direction is not read."""
_PATIENCE_S: Final = 20.0
_HEADER: Final = struct.Struct(">ihhih")
"""Of a request: size, API key, version, correlation id, and the length of the client id that follows."""
_RESET: Final = struct.pack("ii", 1, 0)
"""The SO_LINGER value with which a close sends a reset."""


class Network:
    """All links of one cluster; a context manager, entered before the brokers start."""

    def __init__(self, zookeeper: str) -> None:
        """`zookeeper` is the address of the real ZooKeeper."""
        host, _, port = zookeeper.rpartition(":")
        self._zookeeper = host, int(port)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="network", daemon=True)
        self._servers: list[asyncio.Server] = []
        self.rates: dict[Link, float] = {}
        """Bytes per second of each connection, for slow links; 0 for cut links."""
        self.connections: set[Connection] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        self._on_loop(self._tick)
        return self

    def __exit__(self, *_: object) -> None:
        self._on_loop(self._close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_PATIENCE_S)
        self._loop.close()

    def settings(self, node_id: int, port: int) -> dict[str, str]:
        """Return the settings of a broker with this port for clients: its other traffic passes through here."""
        inner = _steady_port()
        reached = self._serve(None, node_id, (_HOST, inner))
        keeper = self._serve(node_id, ZOOKEEPER, self._zookeeper)
        return {
            "listeners": f"PLAINTEXT://{_HOST}:{port},INTERNAL://{_HOST}:{inner}",
            "advertised.listeners": f"PLAINTEXT://{_HOST}:{port},INTERNAL://{_HOST}:{reached}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INTERNAL:PLAINTEXT",
            "inter.broker.listener.name": "INTERNAL",
            "zookeeper.connect": f"{_HOST}:{keeper}",
        }

    # -- what tests do

    def cut(self, *links: Link) -> None:
        """Block all bytes on these links."""
        self.slow(0, *links)

    def slow(self, bytes_per_second: float, *links: Link) -> None:
        """Limit each connection on these links to this many bytes per second."""
        self._on_loop(lambda: self.rates.update(dict.fromkeys(links, bytes_per_second)))

    def heal(self, *links: Link, reset: bool = False) -> None:
        """Let everything pass again, without `links` on all links; `reset` loses the kept bytes."""
        self._on_loop(lambda: self._heal(links, reset=reset))

    def _heal(self, links: Iterable[Link], *, reset: bool) -> None:
        healed = set(links) or set(self.rates)
        for link in healed:
            self.rates.pop(link, None)
        for each in list(self.connections):
            if reset and each.links & healed:
                each.reset()
            else:
                each.pump()

    # -- on the loop

    def _on_loop(self, work: Callable[[], Any]) -> None:
        async def done() -> None:
            work()

        asyncio.run_coroutine_threadsafe(done(), self._loop).result(_PATIENCE_S)

    def _serve(self, source: int | None, target: int, address: tuple[str, int]) -> int:
        """Listen for connections to `target`, which has the given address; return the port."""

        def accepted() -> asyncio.Protocol:
            return Connection(self, source, target, address).caller

        async def serve() -> int:
            server = await self._loop.create_server(accepted, _HOST, 0)
            self._servers.append(server)
            port: int = server.sockets[0].getsockname()[1]
            return port

        return asyncio.run_coroutine_threadsafe(serve(), self._loop).result(_PATIENCE_S)

    def _tick(self) -> None:
        """Pass on the bytes that are due on slow links."""
        if any(self.rates.values()):
            for each in list(self.connections):
                each.pump(_TICK_S)
        self._loop.call_later(_TICK_S, self._tick)

    def _close(self) -> None:
        for server in self._servers:
            server.close()
        for each in list(self.connections):
            each.reset()


class Connection:
    """The two ends of a connection, and the bytes between them."""

    def __init__(self, network: Network, source: int | None, target: int, address: tuple[str, int]) -> None:
        """`source` is None until it is known from the first request."""
        self.network = network
        self._address = address
        self._source = source
        self._target = target
        self._opening: asyncio.Task[None] | None = None
        self.caller, self.called = _End(self), _End(self)
        self.caller.other, self.called.other = self.called, self.caller

    @property
    def links(self) -> set[Link]:
        source = _UNKNOWN if self._source is None else self._source
        return {(source, self._target), (self._target, source)}

    def rate(self, end: _End) -> float | None:
        """Return the rate in bytes per second from an end; None without a limit."""
        if self._source is None and not self._find_source():
            return 0
        source = cast("int", self._source)
        link = (source, self._target) if end is self.caller else (self._target, source)
        return self.network.rates.get(link)

    def _find_source(self) -> bool:
        """Find the calling broker in the first request; return False while that request is incomplete."""
        kept = self.caller.kept
        length = max(_HEADER.unpack_from(kept)[4], 0) if len(kept) >= _HEADER.size else 0
        if _HEADER.size + length <= len(kept):
            number = re.search(rb"\d+", kept[_HEADER.size : _HEADER.size + length])
            self._source = _UNKNOWN if number is None else int(number.group())
        elif self.caller.ended or self.called.ended:
            self._source = _UNKNOWN
        return self._source is not None

    def begin(self) -> None:
        """Connect to the other end, after the first has connected."""
        self.network.connections.add(self)
        self._opening = asyncio.get_running_loop().create_task(self._open())

    async def _open(self) -> None:
        try:
            await asyncio.get_running_loop().create_connection(lambda: self.called, *self._address)
        except OSError:
            self.reset()
        else:
            self.pump()

    def pump(self, seconds: float = 0) -> None:
        """Pass on the bytes that are due; on a slow link, the bytes of this many seconds."""
        for end in (self.caller, self.called):
            end.pump(seconds)

    def close_if_done(self) -> None:
        """Close once both ends have sent and received everything."""
        if self.caller.done and self.called.done:
            for end in (self.caller, self.called):
                if end.transport is not None:
                    end.transport.close()
            self.network.connections.discard(self)

    def reset(self) -> None:
        """Reset both ends."""
        self.network.connections.discard(self)
        if self._opening is not None:
            self._opening.cancel()
        for end in (self.caller, self.called):
            end.kept.clear()
            if end.transport is not None and not end.transport.is_closing():
                sock = end.transport.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                end.transport.abort()


class _End(asyncio.Protocol):
    """One end of a connection, and its bytes that have not yet reached the other end."""

    other: _End

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.transport: asyncio.Transport | None = None
        self.kept = bytearray()
        self.ended = False
        """Whether this end sends no more bytes."""
        self.is_closed = False
        """Whether this end cannot receive any more."""
        self.done = False
        """Whether the other end has received all bytes from this end, and its end-of-file."""
        self.is_full = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        if self is self._connection.caller:
            self._connection.begin()
        elif self.other.is_closed and not self.other.kept:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        self.kept += data
        self.pump()

    def eof_received(self) -> bool:
        self.ended = True
        self.pump()
        return True  # the other direction may continue

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended = self.is_closed = True
        self.other.kept.clear()
        self.other.done = True
        self.pump()
        self._connection.close_if_done()

    def pause_writing(self) -> None:
        self.is_full = True

    def resume_writing(self) -> None:
        self.is_full = False
        self.other.pump()

    def pump(self, seconds: float = 0) -> None:
        """Pass on the bytes that are due to the other end."""
        transport = self.other.transport
        if not self.done and transport is not None and not self.other.is_full:
            self._pass_to(transport, seconds)
        self._regulate()

    def _pass_to(self, transport: asyncio.Transport, seconds: float) -> None:
        rate = self._connection.rate(self)
        if rate == 0:
            return  # the end-of-file does not pass either
        count = len(self.kept) if rate is None else min(len(self.kept), int(rate * seconds))
        if count:
            transport.write(bytes(self.kept[:count]))
            del self.kept[:count]
        if self.ended and not self.kept:
            self._pass_end(transport)

    def _pass_end(self, transport: asyncio.Transport) -> None:
        self.done = True
        if self.is_closed:
            transport.close()  # no end receives a response any more
        elif not transport.is_closing():
            with suppress(OSError):  # after a reset, which is reported soon
                transport.write_eof()
        self._connection.close_if_done()

    def _regulate(self) -> None:
        """Stop reading while too many bytes are kept."""
        if self.transport is None or self.transport.is_closing() or self.ended:
            return
        if len(self.kept) > _KEPT_BYTES:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()


def _steady_port() -> int:
    """Return a free port that the system never assigns by itself: a broker that was stopped finds it free again.

    A process that keeps trying to reach an assignable port will one day connect to itself.
    """
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(10_000, first)
        with socket.socket() as probe:
            try:
                probe.bind((_HOST, port))
            except OSError:
                continue
            return port
