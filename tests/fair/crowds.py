"""What connections can do to others with ordinary requests: pipelines, unread responses, incomplete frames.

Owns these offenders, each a function of (address, seconds) that ends by itself, and runs in its own process. The topic
TOPIC, and a topic WIDE of PARTITIONS partitions with about 30 kB in each, must exist.

    python -m tests.fair.crowds [--kafka] [--seconds 8] [--only TEXT]
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import resource
import select
import socket
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from compat_tests.harness.brokers import ApacheKafka, BrokerProcess, KBroker
from compat_tests.harness.parts import fetch
from compat_tests.wire.client import WireClient
from kbroker.protocol.messages.cluster import MetadataRequest
from kbroker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kbroker.protocol.messages.groups import FindCoordinatorRequest, HeartbeatRequest
from kbroker.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kbroker.protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from kbroker.protocol.records import build_batch
from tests.fair.__main__ import Memory, Quiet
from tests.fair.rows import framed

TOPIC, WIDE = "fair-topic", "fair-wide"
PARTITIONS = 500
VALUE = bytes(30_000)
PIPELINES, UNREAD, HALVES = 20, 100, 100
_OPEN_FILES = 4096


def a_batch(value: bytes) -> bytes:
    return build_batch([(int(time.time() * 1000), None, value, ())])


def produce_to(topic: str, index: int, value: bytes, acks: int) -> ProduceRequest:
    """Return a Produce request with one record."""
    data = [PartitionProduceData(index, a_batch(value))]
    return ProduceRequest(acks=acks, timeout_ms=30_000, topic_data=[TopicProduceData(topic, partition_data=data)])


def _connect(address: str) -> socket.socket:
    resource.setrlimit(resource.RLIMIT_NOFILE, (_OPEN_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)))


def _pipeline(address: str, seconds: float, request: bytes, *, read: bool, connections: int) -> None:
    """Send a request repeatedly on many connections, as fast as the broker reads."""
    poller = select.poll()
    data = request * max(1, 200_000 // len(request))
    left: dict[int, tuple[socket.socket, int]] = {}
    for _ in range(connections):
        sock = _connect(address)
        sock.setblocking(False)
        poller.register(sock, select.POLLOUT | (select.POLLIN if read else 0))
        left[sock.fileno()] = (sock, 0)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for fd, event in poller.poll(100):
            sock, position = left[fd]
            with contextlib.suppress(BlockingIOError):
                if event & select.POLLIN:
                    sock.recv(1 << 18)
                if event & select.POLLOUT:
                    left[fd] = (sock, (position + sock.send(data[position:])) % len(data))
            if event & (select.POLLHUP | select.POLLERR):
                poller.unregister(fd)


def heartbeats(address: str, seconds: float) -> None:
    request = framed(HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), 0)
    _pipeline(address, seconds, request, read=True, connections=PIPELINES)


def produces_without_answers(address: str, seconds: float) -> None:
    _pipeline(address, seconds, framed(produce_to(TOPIC, 0, b"x" * 10, 0), 9), read=True, connections=PIPELINES)


def produces(address: str, seconds: float) -> None:
    _pipeline(address, seconds, framed(produce_to(TOPIC, 0, b"x" * 10, 1), 9), read=True, connections=PIPELINES)


def _wide_fetch(partitions: int) -> bytes:
    wanted = [FetchPartition(partition=n, partition_max_bytes=1 << 20) for n in range(partitions)]
    request = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1 << 30, topics=[FetchTopic(WIDE, partitions=wanted)])
    return framed(request, 11)


def unread_fetches(address: str, seconds: float) -> None:
    """Fetch all of a wide topic and never read the response."""
    _pipeline(address, seconds, _wide_fetch(PARTITIONS), read=False, connections=UNREAD)


def unread_fetches_behind_small_answers(address: str, seconds: float) -> None:
    request = framed(MetadataRequest(topics=[]), 9) * 200 + _wide_fetch(PARTITIONS)
    _pipeline(address, seconds, request, read=False, connections=UNREAD)


def unread_metadata(address: str, seconds: float) -> None:
    """Request the metadata of all topics with a few bytes, repeatedly, and never read a response."""
    _pipeline(address, seconds, framed(MetadataRequest(topics=None), 9), read=False, connections=UNREAD)


def half_sent_frames(address: str, seconds: float) -> None:
    """Claim 90 MB each, send a third, and wait."""
    socks = [_connect(address) for _ in range(HALVES)]
    for sock in socks:
        sock.setblocking(False)
        sock.send(struct.pack(">i", 90_000_000))
    left = dict.fromkeys(socks, 30_000_000)
    chunk = bytes(65536)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        _, writable, _ = select.select([], [s for s in socks if left[s] > 0], [], 0.1)
        for sock in writable:
            try:
                left[sock] -= sock.send(chunk)
            except BlockingIOError:
                continue
            except OSError:  # it was closed
                left[sock] = 0


def byte_by_byte(address: str, seconds: float) -> None:
    """Send a large frame a byte at a time, on many connections."""
    frame = framed(MetadataRequest(topics=[]), 9)[:4] + bytes(100)
    socks = [_connect(address) for _ in range(HALVES)]
    until, position = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        for sock in socks:
            with contextlib.suppress(OSError):
                sock.send(frame[position : position + 1])
        position = min(position + 1, len(frame) - 1)


def connects(address: str, seconds: float) -> None:
    """Connect and disconnect repeatedly."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with contextlib.suppress(OSError):
            _connect(address).close()


CROWDS: dict[str, Callable[[str, float], None]] = {
    "20 connections pipeline Heartbeats": heartbeats,
    "20 connections pipeline Produce, acks=0": produces_without_answers,
    "20 connections pipeline Produce, acks=1": produces,
    "100 connections fetch 15 MB of 500 partitions, unread": unread_fetches,
    "the same behind 200 small answers": unread_fetches_behind_small_answers,
    "100 connections ask for all topics, unread": unread_metadata,
    "100 connections send a third of 90 MB": half_sent_frames,
    "100 connections send byte by byte": byte_by_byte,
    "connections come and go": connects,
}


def prepare(address: str) -> None:
    """Create the topics and fill the wide one."""
    with WireClient(address) as client:
        topics = [CreatableTopic(TOPIC, 1, 1), CreatableTopic(WIDE, PARTITIONS, 1)]
        client.ask(CreateTopicsRequest(topics=topics, timeout_ms=30_000), 7)
        client.ask(FindCoordinatorRequest(key="g"), 2)
        for index in range(PARTITIONS):
            while True:
                answer = client.ask(produce_to(WIDE, index, VALUE, 1), 9).responses[0].partition_responses[0]
                if not answer.error_code:
                    break


def measure(broker: BrokerProcess, seconds: float, only: str = "") -> Iterator[tuple[str, float, float, float]]:
    """Let each crowd do what it does for so long; yields its name, the quiet client's longest and middle wait in ms,
    and the growth of the broker's memory in MB.
    """
    spawn = multiprocessing.get_context("spawn")
    memory = Memory(broker.pid)
    for name, crowd in CROWDS.items():
        if only not in name:
            continue
        quiet = Quiet(broker.bootstrap)
        before = memory.forget_peak()
        process = spawn.Process(target=crowd, args=(broker.bootstrap, seconds))
        process.start()
        quiet.begin()
        process.join(seconds + 60)
        told = quiet.end()
        quiet.close()
        assert process.exitcode == 0, name
        yield name, told["longest"] * 1000, told["middle"] * 1000, memory.peak() - before


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fair.crowds", description=__doc__)
    parser.add_argument("--kafka", action="store_true", help="beside Apache Kafka instead")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fair-") as directory:
        place = Path(directory)
        with ApacheKafka(fetch("kafka"), place, {}) if args.kafka else KBroker(place, {}) as broker:
            prepare(broker.bootstrap)
            print(f"{'crowd':58} {'longest wait':>12} {'middle':>8} {'memory':>8}")
            for name, longest, middle, grown in measure(broker, args.seconds, args.only):
                print(f"{name:58} {longest:9.1f} ms {middle:5.2f} ms {grown:5.0f} MB", flush=True)


if __name__ == "__main__":
    main()
