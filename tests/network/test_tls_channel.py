"""TLS on a loop, with a socket and a client in memory: whatever arrives in whatever pieces, nothing is forgotten.

No poller knows what OpenSSL or the channel already holds. A connection that is not notified of it, or a response that
waits for nobody, would stall until the client's timeout.
"""

from __future__ import annotations

import contextlib
import random
import ssl
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kbroker.network.tls_channel import TlsPort
from kbroker.network.turns import Turns
from kbroker.security.principal import ANONYMOUS
from kbroker.security.tls.session import Session
from tests.security.tls.conftest import Files
from tests.security.tls.test_session import Other, server
from tests.tries import tries

FD = 7


class Loop:
    """A loop that turns when the test says so."""

    def __init__(self) -> None:
        self.soon: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self.reader: Callable[[], None] | None = None
        self.writer: Callable[[], None] | None = None

    def call_soon(self, callback: Callable[..., None], *args: Any) -> None:
        self.soon.append((callback, args))

    def call_later(self, _seconds: float, _callback: Callable[[], None]) -> Any:
        class Timer:
            def cancel(self) -> None: ...

        return Timer()

    def add_reader(self, _fd: int, callback: Callable[[], None]) -> None:
        self.reader = callback

    def remove_reader(self, _fd: int) -> None:
        self.reader = None

    def add_writer(self, _fd: int, callback: Callable[[], None]) -> None:
        self.writer = callback

    def remove_writer(self, _fd: int) -> None:
        self.writer = None

    def turn(self, wire: Wire) -> bool:
        """Do the work of one turn of the loop; return whether there was any."""
        before, busy = len(self.soon), False
        if wire.incoming and self.reader is not None:
            busy = True
            self.reader()
        if wire.room and self.writer is not None:
            busy = True
            self.writer()
        for _ in range(before):
            callback, args = self.soon.popleft()
            callback(*args)
        return busy or before > 0 or bool(self.soon)


class Wire:
    """A socket: what has arrived, and how much it accepts."""

    def __init__(self) -> None:
        self.incoming = bytearray()
        self.outgoing = bytearray()
        self.room = 0

    def fileno(self) -> int:
        return FD

    def recv_into(self, room: memoryview) -> int:
        if not self.incoming:
            raise BlockingIOError
        count = min(len(room), len(self.incoming))
        room[:count] = self.incoming[:count]
        del self.incoming[:count]
        return count

    def send(self, data: Any) -> int:
        count = min(self.room, len(data))
        if not count:
            raise BlockingIOError
        self.outgoing += bytes(memoryview(data)[:count])
        self.room -= count
        return count


class Echo:
    """Stands for a connection: sends back what it reads, and reads on only once all of that has left."""

    peer = "a client"

    def __init__(self, port: TlsPort, wire: Wire, chance: random.Random) -> None:
        self.chance = chance
        self.channel = port.channel(wire, self, self._sent)  # type: ignore[arg-type]
        self.read = 0
        self.reads = False
        self.ended = False
        self.read_on()

    def authenticated(self, _principal: object) -> None: ...

    def abort(self) -> None:
        self.ended = True

    def read_on(self) -> None:
        if not self.reads:
            self.reads = True
            self.channel.add_reader(FD, self._readable)

    def pause(self) -> None:
        if self.reads:
            self.reads = False
            self.channel.remove_reader(FD)

    def _readable(self) -> None:
        if self.chance.random() < 0.2:
            return  # its turn is used up: it relies on being notified again
        room = memoryview(bytearray(self.chance.choice([1, 100, 5000, 70_000])))
        try:
            count = self.channel.recv_into(room)
        except BlockingIOError:
            return
        assert count, "nobody has ended this"
        self.read += count
        self.channel.send_pieces([bytes(room[:count])])
        if self.channel.waiting:
            self.pause()

    def _sent(self, error: OSError | None) -> None:
        assert error is None
        self.read_on()


class World:
    def __init__(self, files: Files, seed: int, version: ssl.TLSVersion) -> None:
        context = server(files)
        self.loop, self.wire = Loop(), Wire()
        self.client = Other(files, maximum_version=version)

        class Tls:
            def session(self) -> Session:
                return Session(context)

            def principal_of(self, _certificate: bytes | None) -> object:
                return ANONYMOUS

        told: list[str] = []
        port = TlsPort(self.loop, Turns(self.loop), Tls(), lambda _peer, why: told.append(why))  # type: ignore[arg-type]
        self.told = told
        self.echo = Echo(port, self.wire, random.Random(seed))
        self.open = False
        self.sent, self.came, self.unsent = b"", b"", bytearray()

    def write(self, data: bytes) -> None:
        """Let the client send, at the latest with the last message of its handshake."""
        self.sent += data
        if self.open:
            self.client.tls.write(data)

    def pass_on(self, most: int) -> None:
        """Carry bytes in both directions, and let the client read what arrived."""
        client = self.client
        taken = bytes(self.wire.outgoing[:most])
        del self.wire.outgoing[:most]
        if taken:
            client.incoming.write(taken)
        with contextlib.suppress(ssl.SSLWantReadError):
            if not self.open:
                client.tls.do_handshake()
                self.open = True
                if self.sent:
                    client.tls.write(self.sent)
        if self.open:
            with contextlib.suppress(ssl.SSLWantReadError):
                while True:
                    self.came += client.tls.read(1 << 16)
        self.unsent += client.outgoing.read()
        self.wire.incoming += self.unsent[:most]
        del self.unsent[:most]

    def settle(self) -> None:
        """Continue until nothing moves any more."""
        still = 0
        while still < 50:  # a connection that skips a turn at random is not notified immediately
            self.wire.room = 1 << 20
            before = len(self.came), len(self.unsent), len(self.wire.incoming), len(self.wire.outgoing)
            self.pass_on(1 << 20)
            busy = self.loop.turn(self.wire)
            after = len(self.came), len(self.unsent), len(self.wire.incoming), len(self.wire.outgoing)
            still = 0 if busy or before != after else still + 1


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Files]:
    return Files(tmp_path_factory.mktemp("tls"))


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.sampled_from([1, 50, 4000, 20_000, 100_000])),
        st.tuples(st.just("pass"), st.sampled_from([1, 30, 1500, 16_384, 1 << 20])),
        st.tuples(st.just("room"), st.sampled_from([0, 10, 3000, 1 << 20])),
        st.tuples(st.just("turn"), st.integers(1, 4)),
        st.tuples(st.just("pause"), st.just(0)),
        st.tuples(st.just("read"), st.just(0)),
    ),
    max_size=60,
)


@settings(max_examples=tries(300), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(actions=ACTIONS, seed=st.integers(0, 1 << 30), new=st.booleans())
def test_whatever_comes_in_which_pieces_nothing_is_forgotten(
    files: Files, actions: list[tuple[str, int]], seed: int, new: bool
) -> None:
    world = World(files, seed, ssl.TLSVersion.TLSv1_3 if new else ssl.TLSVersion.TLSv1_2)
    chance = random.Random(seed)
    for what, number in actions:
        if what == "write":
            world.write(chance.randbytes(number))
        elif what == "pass":
            world.pass_on(number)
        elif what == "room":
            world.wire.room = number
        elif what == "turn":
            for _ in range(number):
                world.loop.turn(world.wire)
        elif what == "pause":
            world.echo.pause()
        elif not world.echo.channel.waiting:
            world.echo.read_on()
    if not world.echo.channel.waiting:
        world.echo.read_on()
    world.settle()
    assert world.told == []
    assert world.open
    assert world.came == world.sent
