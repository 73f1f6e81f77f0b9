"""TCP between the hosts of a simulated world: ordered and complete within a connection, unordered between them.

Owns what is in transit, and which hosts are cut off from each other. A message of a connection is never lost alone:
while a way is cut it waits, because TCP retransmits, and a connection that breaks loses everything in transit. The
server's side is a socket (`Socket`, `Listener`), the client's side a transport; both end at brokers' and clients' real
code.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from collections import Counter, deque
from collections.abc import Callable
from itertools import count
from random import Random
from typing import Any, Self

from tests.simulation.loop import Life, SimLoop
from tests.simulation.machine import LIFE, Fd

WINDOW = 64 * 1024
"""Bytes in transit, or waiting to be read, at which a socket accepts no more."""
_FIN, _RESET = "fin", "reset"


class Pipe:
    """One direction of a connection. Bytes arrive in the order of sending; only the time is random."""

    def __init__(self, network: Network, source: str, target: str) -> None:
        self._network = network
        self.source, self.target = source, target
        self.queue: deque[Any] = deque()
        self.unread = 0
        self.sender: Any = None
        self.receiver: Any = None

    def send(self, what: Any) -> None:
        self.queue.append(what)
        if what.__class__ is bytes:
            self.unread += len(what)
        self._network.carry(self.source, self.target, self._arrive)

    def _arrive(self) -> None:
        if not self.queue:
            return
        what = self.queue.popleft()
        if what is _RESET:
            self.receiver.was_reset()
        elif what is _FIN:
            self.receiver.ended()
        else:
            self._network.delivered(self, what)
            self.receiver.received(what)

    def took(self, size: int) -> None:
        """Note that the receiver has read this many bytes."""
        self.unread -= size
        self.sender.has_room()

    def reset(self) -> None:
        """Notify the other side that the connection is gone; everything in transit is lost."""
        self.queue.clear()
        self.send(_RESET)


class _End:
    """One end of a connection."""

    def __init__(self, network: Network, out: Pipe, way_in: Pipe, host: str) -> None:
        self.network = network
        self.out, self.way_in = out, way_in
        self.host = host
        self.is_reset = False
        self.is_closed = False
        out.sender = self
        way_in.receiver = self
        network.ends[self] = None

    def has_room(self) -> None:
        pass

    def vanish(self) -> None:
        """The process is gone: its kernel notifies the other side."""
        if not self.is_closed:
            self.is_closed = True
            self.network.ends.pop(self, None)
            self.out.reset()


class Socket(_End):
    """The side that accepted the connection."""

    def __init__(self, network: Network, out: Pipe, way_in: Pipe, host: str, peer: tuple[str, int]) -> None:
        super().__init__(network, out, way_in, host)
        self.peer = peer
        self.fd = network.new_fd(self)
        self.inbox = bytearray()
        self.has_ended = False
        self.reader: asyncio.Handle | None = None
        self.writer: asyncio.Handle | None = None

    # --- as the network

    def received(self, data: bytes) -> None:
        if self.is_closed:
            self.out.reset()
            return
        self.inbox += data
        self.network.look(self)

    def ended(self) -> None:
        self.has_ended = True
        self.network.look(self)

    def was_reset(self) -> None:
        self.is_reset = True
        self.inbox.clear()
        self.network.look(self)

    def has_room(self) -> None:
        self.network.look(self)

    @property
    def readable(self) -> bool:
        return bool(self.inbox) or self.has_ended or self.is_reset

    @property
    def writable(self) -> bool:
        return self.is_reset or self.out.unread < WINDOW

    def vanish(self) -> None:
        if not self.is_closed:
            super().vanish()
            self.reader = self.writer = None  # nobody is notified any more, nor could remove them
            self.network.free_fd(self.fd)

    # --- as a socket

    def fileno(self) -> int:
        return -1 if self.is_closed else self.fd

    def setblocking(self, _flag: bool) -> None:
        pass

    def setsockopt(self, *_: Any) -> None:
        pass

    def recv_into(self, room: memoryview) -> int:
        if self.is_reset:
            raise ConnectionResetError("Connection reset by peer")
        if not self.inbox:
            if self.has_ended:
                return 0
            raise BlockingIOError
        size = min(len(room), len(self.inbox))
        room[:size] = self.inbox[:size]
        del self.inbox[:size]
        self.way_in.took(size)
        return size

    def send(self, data: Any) -> int:
        if self.is_closed or self.is_reset:
            raise BrokenPipeError("Broken pipe")
        size = min(len(data), WINDOW - self.out.unread)
        if size <= 0:
            raise BlockingIOError
        self.out.send(bytes(memoryview(data)[:size]))
        return size

    def close(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        self.network.ends.pop(self, None)
        self.network.free_fd(self.fd)
        if not self.is_reset:
            if self.inbox:
                self.out.reset()
            else:
                self.out.send(_FIN)


class Listener:
    """A socket that others connect to."""

    is_closed = False
    writer: asyncio.Handle | None = None
    writable = False

    def __init__(self, network: Network, host: str, port: int) -> None:
        self.network = network
        self.address = host, port
        self.fd = network.new_fd(self)
        self.backlog: deque[Socket] = deque()
        self.reader: asyncio.Handle | None = None
        network.listeners[self.address] = self

    @property
    def readable(self) -> bool:
        return bool(self.backlog)

    def fileno(self) -> int:
        return -1 if self.is_closed else self.fd

    def getsockname(self) -> tuple[str, int]:
        return self.address

    def setsockopt(self, *_: Any) -> None:
        pass

    def listen(self, _backlog: int) -> None:
        pass

    def accept(self) -> tuple[Socket, tuple[str, int]]:
        if not self.backlog:
            raise BlockingIOError
        sock = self.backlog.popleft()
        return sock, sock.peer

    def close(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        self.network.free_fd(self.fd)
        if self.network.listeners.get(self.address) is self:
            del self.network.listeners[self.address]
        while self.backlog:
            self.backlog.popleft().vanish()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Transport(_End):
    """The side that connects: it calls its protocol in the context of the process that connected."""

    def __init__(self, network: Network, out: Pipe, way_in: Pipe, host: str, context: contextvars.Context) -> None:
        super().__init__(network, out, way_in, host)
        self._context = context
        self.protocol: Any = None

    def received(self, data: bytes) -> None:
        if self.is_closed:
            self.out.reset()
            return
        self.way_in.took(len(data))
        self.network.loop.call_soon(self._feed, data, context=self._context)

    def ended(self) -> None:
        self._lose("the connection was closed")

    def was_reset(self) -> None:
        self.is_reset = True
        self._lose("Connection reset by peer")

    def _lose(self, why: str) -> None:
        if not self.is_closed:
            self.is_closed = True
            self.network.ends.pop(self, None)
            self.network.loop.call_soon(self._lost, ConnectionResetError(why), context=self._context)

    def _lost(self, error: Exception | None) -> None:
        if self.protocol is not None:
            self.protocol.connection_lost(error)

    def _feed(self, data: bytes) -> None:
        if self.protocol is None or self.is_closed:
            return
        view = memoryview(data)
        while view and not self.is_closed:
            room = self.protocol.get_buffer(-1)
            size = min(len(room), len(view))
            room[:size] = view[:size]
            view = view[size:]
            self.protocol.buffer_updated(size)

    def write(self, data: Any) -> None:
        if not self.is_closed:
            self.out.send(bytes(data))

    def writelines(self, pieces: Any) -> None:
        self.write(b"".join(pieces))

    def abort(self) -> None:
        if not self.is_closed:
            self.vanish()
            self.network.loop.call_soon(self._lost, None, context=self._context)

    close = abort


class Network:
    """All connections of a world."""

    def __init__(self, loop: SimLoop, random: Random) -> None:
        self.loop = loop
        self.random = random
        self.ends: dict[_End, None] = {}
        self.listeners: dict[tuple[str, int], Listener] = {}
        self.sockets: dict[int, Any] = {}
        self._free = list(range(1, 900))
        self._held: dict[str, list[int]] = {}
        self._vanishing: list[int] | None = None
        self._to_look: dict[Any, None] = {}
        self._ports = count(40_000)
        self.cuts: Counter[tuple[str, str]] = Counter()
        """The cut directions, with the number of faults that cut each."""
        self._waiting: dict[tuple[str, str], list[Callable[[], None]]] = {}
        self.slow: dict[str, float] = {}
        """Hosts whose packets take longer, with the average delay in seconds."""
        self.messages = 0
        self.on_delivered: Callable[[Pipe, bytes], None] = lambda _pipe, _data: None

    # --- ways

    def carry(self, source: str, target: str, deliver: Callable[[], None]) -> None:
        """Schedule `deliver` for when a packet arrives from one host at another."""
        delay = self.random.expovariate(1 / 0.0015) + 0.0002
        if self.random.random() < 0.01:
            delay += self.random.uniform(0, 0.1)
        if source in self.slow:
            delay += self.random.expovariate(1 / self.slow[source])
        self.loop.in_world(delay, self._come, source, target, deliver)

    def _come(self, source: str, target: str, deliver: Callable[[], None]) -> None:
        if self.cuts[source, target]:
            self._waiting.setdefault((source, target), []).append(deliver)
        else:
            deliver()

    def cut(self, source: str, target: str) -> None:
        self.cuts[source, target] += 1

    def heal(self, source: str, target: str) -> None:
        self.cuts[source, target] -= 1
        if not self.cuts[source, target]:
            for deliver in self._waiting.pop((source, target), []):
                self.carry(source, target, deliver)

    def delivered(self, pipe: Pipe, data: bytes) -> None:
        self.messages += 1
        self.on_delivered(pipe, data)

    def vanish(self, host: str) -> None:
        """Remove a host's dead process with its sockets. Their numbers stay in use until `reuse_fds`.

        The rest of the process still runs for a while, and may use the numbers that it knows.
        """
        self._vanishing = self._held.setdefault(host, [])
        for listener in [each for each in self.listeners.values() if each.address[0] == host]:
            listener.close()
        for end in [each for each in self.ends if each.host == host]:
            end.vanish()
        self._vanishing = None

    def break_one(self) -> bool:
        """Break a connection in both directions; return whether there was one."""
        if not self.ends:
            return False
        end = self.random.choice(list(self.ends))
        end.out.reset()
        end.way_in.reset()
        return True

    # --- connections

    def bind(self, host: str, port: int, _limits: Any) -> Listener:
        if (host, port) in self.listeners:
            raise OSError(98, f"cannot listen on {host}:{port}")
        return Listener(self, host, port)

    async def connect(self, factory: Any, host: str, port: int) -> Any:
        life: Life = LIFE.get()
        future = self.loop.create_future()
        context = contextvars.copy_context()
        self.carry(life.host, host, lambda: self._asked(life.host, (host, port), future, context))
        transport = await future
        transport.protocol = protocol = factory()
        protocol.connection_made(transport)
        if transport.is_closed:  # it broke before its end knew of it
            self.loop.call_soon(protocol.connection_lost, ConnectionResetError("Connection reset by peer"))
        return transport, protocol

    def _asked(
        self, source: str, address: tuple[str, int], future: asyncio.Future[Any], context: contextvars.Context
    ) -> None:
        listener = self.listeners.get(address)
        if listener is None:
            self.carry(address[0], source, lambda: _fail(future, ConnectionRefusedError("Connection refused")))
            return
        there, back = Pipe(self, source, address[0]), Pipe(self, address[0], source)
        transport = Transport(self, there, back, source, context)
        listener.backlog.append(Socket(self, back, there, address[0], (source, next(self._ports))))
        self.look(listener)

        def connected() -> None:
            if future.done():
                transport.vanish()
            else:
                future.set_result(transport)

        self.carry(address[0], source, connected)

    # --- what the loop asks

    def new_fd(self, sock: Any) -> Fd:
        fd = Fd(heapq.heappop(self._free))
        self.sockets[fd] = sock
        return fd

    def free_fd(self, fd: Fd) -> None:
        if self.sockets.pop(fd, None) is None:
            return
        if self._vanishing is None:
            heapq.heappush(self._free, int(fd))
        else:
            self._vanishing.append(int(fd))

    def reuse_fds(self, host: str) -> None:
        """Release the numbers of a dead process: nothing of it can use them any more."""
        for fd in self._held.pop(host, []):
            heapq.heappush(self._free, fd)

    def add_reader(self, fd: int, handle: asyncio.Handle) -> None:
        sock = self.sockets[fd]
        self._drop(sock, "reader")
        sock.reader = handle
        self.look(sock)

    def remove_reader(self, fd: int) -> bool:
        return self._drop(self.sockets.get(fd), "reader")

    def add_writer(self, fd: int, handle: asyncio.Handle) -> None:
        sock = self.sockets[fd]
        self._drop(sock, "writer")
        sock.writer = handle
        self.look(sock)

    def remove_writer(self, fd: int) -> bool:
        return self._drop(self.sockets.get(fd), "writer")

    def _drop(self, sock: Any, which: str) -> bool:
        handle = None if sock is None else getattr(sock, which)
        if handle is None:
            return False
        handle.cancel()
        setattr(sock, which, None)
        return True

    def look(self, sock: Any) -> None:
        """Let the next turn of the loop check whether a socket can be read or written."""
        self._to_look[sock] = None

    def look_again(self, life: Life) -> None:
        for sock in self.sockets.values():
            handles = sock.reader, sock.writer
            if any(each is not None and each._context.get(LIFE) is life for each in handles):
                self.look(sock)

    def poll(self, ready: deque[asyncio.Handle]) -> None:
        """Add the sockets that a poller would report: again in each turn, as long as they are ready."""
        for sock in list(self._to_look):
            told = False
            for handle, can in ((sock.reader, sock.readable), (sock.writer, sock.writable)):
                if handle is None or not can:
                    continue
                life = handle._context.get(LIFE)
                if life is None or not (life.frozen or life.dead):
                    ready.append(handle)
                    told = True
            if not told:
                del self._to_look[sock]


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
