"""Random and mutated frames, sent to a broker process: it answers or closes, and continues to serve other clients.

The seed is printed; each run has FRAMES frames. A canary produces and fetches all the time; memory is measured from
outside.
"""

from __future__ import annotations

import random
import struct

import psutil
import pytest

from compat_tests.harness.brokers import KBroker
from compat_tests.wire.client import CLOSED, WireClient
from compat_tests.wire.exchanges.produce import batch
from compat_tests.wire.exchanges.produce import request as produce_request
from kbroker import handlers
from kbroker.handlers.registry import APIS
from kbroker.protocol.compiler import encode
from kbroker.protocol.messages.connections import RequestHeader
from kbroker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kbroker.protocol.messages.topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from tests.figures import figure

SEED = 20261121
FRAMES = 20_000
GROWTH_BYTES = 80 * 1024 * 1024
handlers.load_all()


@pytest.fixture
def victim(tmp_path):
    limits = {"socket.request.max.bytes": "1000000", "auto.create.topics.enable": "false"}
    with KBroker(tmp_path, limits) as broker:
        yield broker
        assert broker.running
    log = broker.log_file.read_text()
    assert "Traceback" not in log, log[log.index("Traceback") - 500 :][:4000]


def valid_frame(rng):
    """Return a frame of a random API and version, its body the message's defaults."""
    api = rng.choice(list(APIS.values()))
    version = rng.randrange(api.versions.low, api.versions.high + 1)
    flexible = version in api.request.FLEXIBLE
    header = RequestHeader(request_api_key=api.key, request_api_version=version, correlation_id=1, client_id="fuzz")
    return encode(header, 2 if flexible else 1) + encode(api.request(), version)


def mutate(rng, body):
    """Return `body` with some of its bytes changed, removed, doubled or added."""
    body = bytearray(body)
    for _ in range(rng.randrange(1, 5)):
        kind, at = rng.randrange(5), rng.randrange(len(body) + 1)
        if kind == 0 and at < len(body):
            body[at] = rng.randrange(256)
        elif kind == 1:
            del body[at:]
        elif kind == 2:
            body[at:at] = rng.randbytes(rng.randrange(1, 40))
        elif kind == 3:
            body[at : at + 4] = rng.choice(
                [b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\0\0\0", b"\xff\xff\xff\x7f"]
            )
        else:
            body += rng.randbytes(rng.randrange(1, 200))
    return bytes(body)


def hostile(rng):
    kind = rng.randrange(10)
    if kind == 0:
        body = rng.randbytes(rng.randrange(0, 300))
        return struct.pack(">i", len(body)) + body
    if kind == 1:
        return struct.pack(">i", rng.choice([-1, 2**31 - 1, 1_000_001, -(2**31), 0])) + rng.randbytes(20)
    if kind == 2:
        broken = bytearray(batch(rng.randrange(1, 5), codec=rng.randrange(5)))
        broken[rng.randrange(len(broken))] ^= 1 << rng.randrange(8)
        header = RequestHeader(request_api_key=0, request_api_version=9, correlation_id=1, client_id="fuzz")
        body = encode(header, 2) + encode(produce_request("canary", bytes(broken)), 9)
        return struct.pack(">i", len(body)) + body
    body = mutate(rng, valid_frame(rng))
    return struct.pack(">i", len(body)) + body


class Canary:
    """A client whose records must arrive, whatever others send; broker `leads` has the only replica."""

    def __init__(self, address, leads=1):
        self.client = WireClient(address)
        topic = CreatableTopic("bird", -1, -1, [CreatableReplicaAssignment(0, [leads])])
        answer = self.client.ask(CreateTopicsRequest(topics=[topic], timeout_ms=5000), 7)
        assert answer.topics[0].error_code == 0
        self.count = 0

    def sing(self):
        answer = self.client.ask(produce_request("bird", batch(3)), 9)
        assert answer.responses[0].partition_responses[0].base_offset == self.count
        part = FetchPartition(partition=0, fetch_offset=self.count, partition_max_bytes=10_000)
        read = self.client.ask(
            FetchRequest(max_wait_ms=0, min_bytes=1, topics=[FetchTopic(topic="bird", partitions=[part])]), 11
        )
        assert len(read.responses[0].partitions[0].records) == len(batch(3))
        self.count += 3


@pytest.mark.long
def test_hostile_frames_harm_nobody(victim):
    rng = random.Random(SEED)
    print(f"seed {SEED}, {FRAMES} frames")
    canary = Canary(victim.bootstrap)
    canary.client.ask(CreateTopicsRequest(topics=[CreatableTopic("canary", 1, 1)], timeout_ms=5000), 7)
    process = psutil.Process(victim.pid)
    attacker = WireClient(victim.bootstrap)
    settled = 0
    for number in range(FRAMES):
        try:
            attacker.send_bytes(hostile(rng))
        except OSError:
            attacker.close()
            attacker = WireClient(victim.bootstrap)
        if number % 4 == 3:
            # After half of the frames the broker waits for more bytes; a new connection starts afresh.
            attacker.close()
            attacker = WireClient(victim.bootstrap)
        if number % 250 == 0:
            canary.sing()
        if number == FRAMES // 10:
            settled = process.memory_info().rss
    attacker.close()
    canary.sing()
    canary.client.close()
    grown = process.memory_info().rss - settled
    assert grown < GROWTH_BYTES, f"memory grew by {grown >> 20} MB"
    figure(
        f"hostile frames, seed {SEED}", f"{FRAMES}, memory grew by {grown >> 10} kB, {canary.count} records in between"
    )


@pytest.mark.long
def test_a_claimed_length_costs_nothing(victim):
    """Connections that announce a large frame and send little of it use little memory."""
    process = psutil.Process(victim.pid)
    canary = Canary(victim.bootstrap)
    canary.sing()
    before = process.memory_info().rss
    clients = [WireClient(victim.bootstrap) for _ in range(300)]
    for client in clients:
        client.send_bytes(struct.pack(">i", 999_999) + b"\0" * 100)
    other = WireClient(victim.bootstrap)
    assert other.ask(FetchRequest(max_wait_ms=0, min_bytes=0), 11) != CLOSED
    assert process.memory_info().rss - before < 300 * 100_000
    for client in [*clients, other, canary.client]:
        client.close()
