"""What lies between the brokers of a cluster, and between each and ZooKeeper: tests can cut it, and slow it down.

Owns TCP proxies, in a thread of their own: in front of each broker's listener for other brokers, and for each broker in
front of ZooKeeper. A way goes from one of them to another and has one direction: where 1 to 2 is cut, and 2 to 1 is
not, the requests of 1 do not reach 2, and its answers to 2 neither. Who has opened a connection to a broker is what the
client id of its first request says, in which brokers have their number. Clients do not come this way.

What cannot pass is kept and arrives later, as with packets that are sent again; who has long given up cannot take it
back. A reset loses it, and both ends hear of that.
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

Way = tuple[int, int]
"""From whom to whom: ids of brokers, or ZOOKEEPER."""

ZOOKEEPER: Final = 0
_NOBODY: Final = -1
_HOST: Final = "127.0.0.1"
_TICK_S: Final = 0.05
_KEPT_BYTES: Final = 1 << 20
"""Of a connection that keeps more in one direction no more is read."""
_PATIENCE_S: Final = 20.0
_HEADER: Final = struct.Struct(">ihhih")
"""Of a request: size, API, version, correlation id, and how long the client id is that follows."""
_RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER with which a close is a reset."""


class Network:
    """All ways of one cluster; a context manager, entered before the brokers start."""

    def __init__(self, zookeeper: str) -> None:
        """`zookeeper` is the address of the real one."""
        host, _, port = zookeeper.rpartition(":")
        self._zookeeper = host, int(port)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="network", daemon=True)
        self._servers: list[asyncio.Server] = []
        self.rates: dict[Way, float] = {}
        """Bytes per second of the ways that are slow, of each connection; 0 where nothing passes."""
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
        """Return what a broker is told whose clients are served at a port: others reach it, and it ZooKeeper, here."""
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

    def cut(self, *ways: Way) -> None:
        """Let nothing pass."""
        self.slow(0, *ways)

    def slow(self, bytes_per_second: float, *ways: Way) -> None:
        """Let no more than this pass on each connection."""
        self._on_loop(lambda: self.rates.update(dict.fromkeys(ways, bytes_per_second)))

    def heal(self, *ways: Way, reset: bool = False) -> None:
        """Let everything pass again, without `ways` on all of them; with `reset` what was kept is lost."""
        self._on_loop(lambda: self._heal(ways, reset=reset))

    def _heal(self, ways: Iterable[Way], *, reset: bool) -> None:
        healed = set(ways) or set(self.rates)
        for way in healed:
            self.rates.pop(way, None)
        for each in list(self.connections):
            if reset and each.ways & healed:
                each.reset()
            else:
                each.pump()

    # -- on the loop

    def _on_loop(self, work: Callable[[], Any]) -> None:
        async def done() -> None:
            work()

        asyncio.run_coroutine_threadsafe(done(), self._loop).result(_PATIENCE_S)

    def _serve(self, source: int | None, target: int, address: tuple[str, int]) -> int:
        """Listen for who wants to reach `target`, which is at an address; return the port."""

        def accepted() -> asyncio.Protocol:
            return Connection(self, source, target, address).caller

        async def serve() -> int:
            server = await self._loop.create_server(accepted, _HOST, 0)
            self._servers.append(server)
            port: int = server.sockets[0].getsockname()[1]
            return port

        return asyncio.run_coroutine_threadsafe(serve(), self._loop).result(_PATIENCE_S)

    def _tick(self) -> None:
        """Let pass what may on slow ways."""
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
    """Two ends, and what one of them was sent and the other has not got yet."""

    def __init__(self, network: Network, source: int | None, target: int, address: tuple[str, int]) -> None:
        """`source` is None where it is to be found out."""
        self.network = network
        self._address = address
        self._source = source
        self._target = target
        self._opening: asyncio.Task[None] | None = None
        self.caller, self.called = _End(self), _End(self)
        self.caller.other, self.called.other = self.called, self.caller

    @property
    def ways(self) -> set[Way]:
        source = _NOBODY if self._source is None else self._source
        return {(source, self._target), (self._target, source)}

    def rate(self, end: _End) -> float | None:
        """Return how fast what comes from an end may pass, None: as fast as it can."""
        if self._source is None and not self._ask_who():
            return 0
        source = cast("int", self._source)
        way = (source, self._target) if end is self.caller else (self._target, source)
        return self.network.rates.get(way)

    def _ask_who(self) -> bool:
        """Find out from the first request who calls; return False as long as it may still come."""
        kept = self.caller.kept
        length = max(_HEADER.unpack_from(kept)[4], 0) if len(kept) >= _HEADER.size else 0
        if _HEADER.size + length <= len(kept):
            number = re.search(rb"\d+", kept[_HEADER.size : _HEADER.size + length])
            self._source = _NOBODY if number is None else int(number.group())
        elif self.caller.ended or self.called.ended:
            self._source = _NOBODY
        return self._source is not None

    def begin(self) -> None:
        """Reach for the other end, now that one is there."""
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
        """Pass on what may pass, on a slow way what may in so many seconds."""
        for end in (self.caller, self.called):
            end.pump(seconds)

    def look(self) -> None:
        """End once both ends have said all, and been told all."""
        if self.caller.done and self.called.done:
            for end in (self.caller, self.called):
                if end.transport is not None:
                    end.transport.close()
            self.network.connections.discard(self)

    def reset(self) -> None:
        """Break both ends off."""
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
    """One end of a connection, and what has come from it and not reached the other one yet."""

    other: _End

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.transport: asyncio.Transport | None = None
        self.kept = bytearray()
        self.ended = False
        """Whether nothing more comes from here."""
        self.gone = False
        """Whether nothing can be sent here any more."""
        self.done = False
        """Whether the other end has got everything that came from here, and was told that it is all."""
        self.is_full = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        if self is self._connection.caller:
            self._connection.begin()
        elif self.other.gone and not self.other.kept:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        self.kept += data
        self.pump()

    def eof_received(self) -> bool:
        self.ended = True
        self.pump()
        return True  # the other direction may go on

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended = self.gone = True
        self.other.kept.clear()
        self.other.done = True
        self.pump()
        self._connection.look()

    def pause_writing(self) -> None:
        self.is_full = True

    def resume_writing(self) -> None:
        self.is_full = False
        self.other.pump()

    def pump(self, seconds: float = 0) -> None:
        """Pass on what may pass to the other end."""
        transport = self.other.transport
        if not self.done and transport is not None and not self.other.is_full:
            self._pass_to(transport, seconds)
        self._regulate()

    def _pass_to(self, transport: asyncio.Transport, seconds: float) -> None:
        rate = self._connection.rate(self)
        if rate == 0:
            return  # not even the end is told
        count = len(self.kept) if rate is None else min(len(self.kept), int(rate * seconds))
        if count:
            transport.write(bytes(self.kept[:count]))
            del self.kept[:count]
        if self.ended and not self.kept:
            self._tell_end(transport)

    def _tell_end(self, transport: asyncio.Transport) -> None:
        self.done = True
        if self.gone:
            transport.close()  # nobody takes an answer any more
        elif not transport.is_closing():
            with suppress(OSError):  # which has been reset, as will be heard in a moment
                transport.write_eof()
        self._connection.look()

    def _regulate(self) -> None:
        """Read no more than can be kept."""
        if self.transport is None or self.transport.is_closing() or self.ended:
            return
        if len(self.kept) > _KEPT_BYTES:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()


def _steady_port() -> int:
    """Return a free port that the system gives to nobody by itself: a broker that is away finds it free again.

    Whoever tries for long to reach a port of those that are given out meets himself on it one day.
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
