"""The gate of a SASL listener, without sockets: whatever arrives in whatever order, nobody passes unauthenticated."""

from __future__ import annotations

import gc
import random
import struct
import tracemalloc
from types import SimpleNamespace

import pytest

from compat_tests.wire.client import response_class
from kbroker import handlers
from kbroker.handlers.registry import CloseConnection, RequestContext, served
from kbroker.long_work import whole
from kbroker.network import sasl_gate
from kbroker.network.dispatch import Dispatcher, Work
from kbroker.network.sasl_gate import SaslGate
from kbroker.protocol.compiler import encode
from kbroker.protocol.messages.cluster import MetadataRequest
from kbroker.protocol.messages.connections import (
    ApiVersionsRequest,
    RequestHeader,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from kbroker.protocol.messages.fetch import FetchRequest
from kbroker.protocol.messages.produce import ProduceRequest
from kbroker.security.principal import ANONYMOUS
from kbroker.security.sasl.authentication import Offer
from kbroker.security.sasl.plain import PlainServer
from kbroker.security.sasl.scram import ScramServer
from tests.tries import tries

SEQUENCES = tries(20_000)
SEED = 20261123
RIGHT, WRONG = b"\0alice\0secret", b"\0alice\0wrong"
OFFER = Offer(
    {
        "PLAIN": lambda: PlainServer({"alice": "secret"}),
        "SCRAM-SHA-256": lambda: ScramServer("SCRAM-SHA-256", {}.get),
    },
    {"PLAIN": 5000},
    4096,
    100,
)


def framed(request, version):
    header = RequestHeader(request.KEY, version, 7, "t")
    return encode(header, 2 if version in request.FLEXIBLE else 1) + encode(request, version)


VERSIONS = ApiVersionsRequest(client_software_name="t", client_software_version="1")
HANDSHAKE, SCRAM = SaslHandshakeRequest("PLAIN"), SaslHandshakeRequest("SCRAM-SHA-256")
FRAMES = [
    *(framed(VERSIONS, version) for version in range(5)),
    *(framed(each, version) for each in (HANDSHAKE, SCRAM, SaslHandshakeRequest("X")) for version in (0, 1)),
    *(framed(HANDSHAKE, 1) for _ in range(4)),
    *(framed(SaslAuthenticateRequest(token), version) for token in (RIGHT, WRONG, b"") for version in range(3)),
    framed(SaslAuthenticateRequest(b"n,,n=alice,r=abc"), 2),
    framed(MetadataRequest(topics=None), 9),
    framed(FetchRequest(), 12),
    framed(ProduceRequest(acks=1, topic_data=[]), 9),
    RIGHT,
    WRONG,
    b"",
]


class Recording(Dispatcher):
    """Records what passes, and runs none of it."""

    def __init__(self):
        super().__init__()
        self.let_through = []

    def run(self, context, frame, out, spill):
        self.let_through.append(context.principal)


class Gated:
    run = None

    def limit_frames(self, size):
        pass


class Clock:
    ms = 0

    def now_ms(self):
        return self.ms

    def monotonic_ms(self):
        return float(self.ms)


@pytest.fixture(autouse=True)
def _no_delays(monkeypatch):
    async def at_once(_seconds, reason, farewell):
        raise CloseConnection(reason, farewell)

    monkeypatch.setattr(sasl_gate, "_later", at_once)


class Client:
    def __init__(self, dispatcher):
        state = SimpleNamespace(features_epoch=0, features={})
        services = SimpleNamespace(controller=SimpleNamespace(state=state), cluster=None, telemetry=None, share=None)
        self.context = RequestContext(services, "/10.0.0.1", "SASL_PLAINTEXT", ("", 0))
        self.clock = Clock()
        self.connection = Gated()
        self.connection.run = SaslGate(self.connection, dispatcher, OFFER, self.clock, 1_000_000).run

    def send(self, frame):
        """Send a frame; return whether the connection is still open, and the response."""
        out = bytearray()
        try:
            work = self.connection.run(self.context, memoryview(bytearray(frame)), out, [])
            if isinstance(work, Work):
                whole(work.steps)
                raise AssertionError("a failure that does not end it")
        except CloseConnection as closed:
            return False, bytes(out) + closed.farewell
        return True, bytes(out)


def sequence(rng):
    frames = []
    for _ in range(rng.randint(1, 7)):
        frame = rng.choice(FRAMES)
        kind = rng.random()
        if kind < 0.1 and frame:
            changed = bytearray(frame)
            changed[rng.randrange(len(frame))] ^= rng.randint(1, 255)
            frame = bytes(changed)
        elif kind < 0.15:
            frame = frame[: rng.randint(0, len(frame))]
        elif kind < 0.2:
            frame = rng.randbytes(rng.choice((1, 8, 30, 5000)))
        frames.append(frame)
    return frames


def knows_the_password(frames):
    """Whether a sequence contains the right token after a handshake for PLAIN."""
    handshakes = [at for at, frame in enumerate(frames) if b"PLAIN" in frame]
    return any(RIGHT in frame for frame in frames[handshakes[0] + 1 :]) if handshakes else False


def test_no_sequence_of_frames_gets_by_without_the_password():
    handlers.load_all()
    rng = random.Random(SEED)
    dispatcher = Recording()
    for api in served(in_cluster=False).values():
        for version in range(api.versions.low, api.versions.high + 1):
            dispatcher.entry(api.key, version)  # codecs are created on first use, and kept
    inside = size = 0
    for number in range(SEQUENCES):
        client, frames = Client(dispatcher), sequence(rng)
        for frame in frames:
            client.clock.ms += rng.choice((0, 10, 1000, 6000))
            alive, answer = client.send(frame)
            assert len(answer) < 4000, (SEED, number)
            if not alive:
                break
        assert ANONYMOUS not in dispatcher.let_through, (SEED, number)
        if client.context.principal != ANONYMOUS:
            assert knows_the_password(frames), (SEED, number)
            inside += 1
        dispatcher.let_through.clear()
        if number == SEQUENCES // 4:
            gc.collect()
            tracemalloc.start()
            size = tracemalloc.get_traced_memory()[0]
        if number == SEQUENCES // 2:
            gc.collect()  # a gate and its connection reference each other
            grown = tracemalloc.get_traced_memory()[0] - size
            tracemalloc.stop()
            assert grown < 200_000, (SEED, grown)
    assert inside > SEQUENCES / 200


def test_an_answer_to_what_comes_instead_of_a_token_has_nothing_but_the_error():
    handlers.load_all()
    for request, version in ((MetadataRequest(topics=None), 9), (FetchRequest(), 12)):
        client = Client(Recording())
        assert client.send(framed(HANDSHAKE, 1))[0]
        alive, answer = client.send(framed(request, version))
        assert not alive
        assert struct.unpack_from(">ii", answer) == (len(answer) - 4, 7)
        assert len(answer) < 60
        assert response_class(request)
