"""What connections can do to others with ordinary requests: pipelines, answers that nobody reads, frames half sent.

Owns these offenders, each a function of (address, seconds) that ends by itself, and is run in a process of its own.
The topic TOPIC and a topic WIDE of PARTITIONS partitions with some 30 kB in each must be there.
"""

from __future__ import annotations

import contextlib
import resource
import select
import socket
import struct
import time
from collections.abc import Callable

from kbroker.protocol.compiler import encode
from kbroker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kbroker.protocol.messages.headers import RequestHeader
from kbroker.protocol.messages.heartbeat import HeartbeatRequest
from kbroker.protocol.messages.metadata import MetadataRequest
from kbroker.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kbroker.protocol.records import build_batch

TOPIC, WIDE = "fair-topic", "fair-wide"
PARTITIONS = 500
VALUE = bytes(30_000)
PIPELINES, UNREAD, HALVES = 20, 100, 100
_OPEN_FILES = 4096


def framed(request: object, version: int) -> bytes:
    """Return a request's bytes, length first."""
    cls = type(request)
    flexible = version in cls.FLEXIBLE  # type: ignore[attr-defined]
    header = RequestHeader(
        request_api_key=cls.KEY,  # type: ignore[attr-defined]
        request_api_version=version,
        correlation_id=1,
        client_id="crowd",
    )
    body = encode(header, 2 if flexible else 1) + encode(request, version)
    return struct.pack(">i", len(body)) + body


def a_batch(value: bytes) -> bytes:
    return build_batch([(int(time.time() * 1000), None, value, ())])


def produce_to(topic: str, index: int, value: bytes, acks: int) -> bytes:
    """Return a Produce of one record."""
    data = [PartitionProduceData(index, a_batch(value))]
    request = ProduceRequest(acks=acks, timeout_ms=30_000, topic_data=[TopicProduceData(topic, partition_data=data)])
    return framed(request, 9)


def _connect(address: str) -> socket.socket:
    resource.setrlimit(resource.RLIMIT_NOFILE, (_OPEN_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)))


def _pipeline(address: str, seconds: float, request: bytes, *, read: bool, connections: int) -> None:
    """Send a request again and again on many connections, as fast as they are taken."""
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
    _pipeline(address, seconds, produce_to(TOPIC, 0, b"x" * 10, 0), read=True, connections=PIPELINES)


def produces(address: str, seconds: float) -> None:
    _pipeline(address, seconds, produce_to(TOPIC, 0, b"x" * 10, 1), read=True, connections=PIPELINES)


def _wide_fetch(partitions: int) -> bytes:
    wanted = [FetchPartition(partition=n, partition_max_bytes=1 << 20) for n in range(partitions)]
    request = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1 << 30, topics=[FetchTopic(WIDE, partitions=wanted)])
    return framed(request, 11)


def unread_fetches(address: str, seconds: float) -> None:
    """Ask for all of a wide topic and never take the answer."""
    _pipeline(address, seconds, _wide_fetch(PARTITIONS), read=False, connections=UNREAD)


def unread_fetches_behind_small_answers(address: str, seconds: float) -> None:
    request = framed(MetadataRequest(topics=[]), 9) * 200 + _wide_fetch(PARTITIONS)
    _pipeline(address, seconds, request, read=False, connections=UNREAD)


def unread_metadata(address: str, seconds: float) -> None:
    """Ask for all topics in a few bytes, again and again, and never take an answer."""
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
    """Come and go."""
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
