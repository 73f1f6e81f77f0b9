"""The raw driver: one connection, pre-encoded requests, a fixed number in flight.

Owns the load and its measurement, in its own process, so that a client library's cost does not hide the broker's.
Prints one line of JSON. Correlation ids repeat: responses arrive in the order of requests.

    python -m benchmarks.raw produce HOST:PORT TOPIC --records 1000 --size 100 --in-flight 5 --requests 20000
    python -m benchmarks.raw fetch HOST:PORT TOPIC --bytes 1048576 --in-flight 5 --requests 2000
"""

from __future__ import annotations

import argparse
import json
import random
import socket
import struct
import time
from collections import deque

from kbroker.protocol.compiler import decode, encode
from kbroker.protocol.messages.connections import RequestHeader
from kbroker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from kbroker.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from kbroker.protocol.records import build_batch

PRODUCE_VERSION = 9
FETCH_VERSION = 11
_SIZE = struct.Struct(">i")


def frame(key: int, version: int, flexible: bool, body: bytes) -> bytes:
    """Return a complete request frame."""
    header_version = 2 if flexible else 1
    header = encode(
        RequestHeader(request_api_key=key, request_api_version=version, correlation_id=7, client_id="raw"),
        header_version,
    )
    return _SIZE.pack(len(header) + len(body)) + header + body


def produce_frame(topic: str, partition: int, records: int, size: int, largest: int = 0, codec: int = 0) -> bytes:
    """Return a Produce frame with one batch of `records` values of `size` bytes, or of random sizes up to `largest`."""
    now, chance = int(time.time() * 1000), random.Random(1)
    sizes = [chance.randint(size, largest) if largest else size for _ in range(records)]
    value = bytes(i * 31 % 251 for i in range(max(sizes)))
    batch = build_batch([(now, None, value[:each], ()) for each in sizes], codec=codec)
    request = ProduceRequest(
        acks=-1,
        timeout_ms=30000,
        topic_data=[
            TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=partition, records=batch)])
        ],
    )
    return frame(0, PRODUCE_VERSION, True, encode(request, PRODUCE_VERSION))


def fetch_frame(topic: str, partition: int, offset: int, max_bytes: int) -> bytes:
    """Return a Fetch frame for one partition."""
    request = FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=max_bytes,
        topics=[
            FetchTopic(
                topic=topic,
                partitions=[FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes)],
            )
        ],
    )
    return frame(1, FETCH_VERSION, False, encode(request, FETCH_VERSION))


class Answers:
    """Reads response frames from a socket; only the first of them is kept completely."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._buffer = memoryview(bytearray(4 * 1024 * 1024))
        self._filled = 0
        self._skip = 0
        self.bytes = 0

    def one(self) -> bytes:
        """Return the next complete response, header included."""
        size = _SIZE.unpack(self._exactly(4))[0]
        return self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        parts = []
        while size:
            got = self._sock.recv(size)
            if not got:
                raise ConnectionError("the broker closed the connection")
            parts.append(got)
            size -= len(got)
        return b"".join(parts)

    def some(self) -> int:
        """Block for data; return how many responses it completed."""
        view = self._buffer
        got = self._sock.recv_into(view[self._filled :])
        if not got:
            raise ConnectionError("the broker closed the connection")
        self.bytes += got
        end = self._filled + got
        position, answers = 0, 0
        while position < end:
            if self._skip:
                step = min(self._skip, end - position)
                self._skip -= step
                position += step
                if not self._skip:
                    answers += 1
                continue
            if end - position < 4:
                break
            self._skip = _SIZE.unpack_from(view, position)[0]
            position += 4
        rest = end - position
        view[:rest] = bytes(view[position:end])
        self._filled = rest
        return answers


def connect(address: str) -> socket.socket:
    """Connect as Kafka's clients do."""
    host, _, port = address.rpartition(":")
    sock = socket.create_connection((host, int(port)))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def pump(sock: socket.socket, requests: list[bytes], total: int, in_flight: int) -> tuple[float, list[float], int]:
    """Send `total` requests, `in_flight` at a time; return (seconds, latencies in s, response bytes)."""
    answers = Answers(sock)
    sent_at: deque[float] = deque()
    latencies: list[float] = []
    sent = done = 0
    clock = time.perf_counter
    started = clock()
    while done < total:
        room = min(in_flight - (sent - done), total - sent)
        if room:
            now = clock()
            sock.sendall(b"".join(requests[(sent + i) % len(requests)] for i in range(room)))
            sent_at.extend([now] * room)
            sent += room
        ended = answers.some()
        now = clock()
        latencies.extend(now - sent_at.popleft() for _ in range(ended))
        done += ended
    return clock() - started, latencies, answers.bytes


def percentile(values: list[float], share: float) -> float:
    """Return the value below which `share` of `values` lie."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def run_produce(args: argparse.Namespace) -> dict[str, float]:
    sock = connect(args.address)
    request = produce_frame(args.topic, args.partition, args.records, args.size, args.largest, args.codec)
    sock.sendall(request)
    raw = Answers(sock).one()
    answer = decode(ProduceResponse, PRODUCE_VERSION, memoryview(raw)[5:])
    assert answer.responses[0].partition_responses[0].error_code == 0, answer
    pump(sock, [request], max(args.requests // 20, args.in_flight), args.in_flight)
    seconds, latencies, _ = pump(sock, [request], args.requests, args.in_flight)
    payload = args.requests * args.records * args.size
    return {
        "requests_per_s": args.requests / seconds,
        "messages_per_s": args.requests * args.records / seconds,
        "mb_per_s": payload / seconds / 1e6,
        "gb": payload / 1e9,
        "seconds": seconds,
        "p50_us": percentile(latencies, 0.5) * 1e6,
        "p99_us": percentile(latencies, 0.99) * 1e6,
        "p999_us": percentile(latencies, 0.999) * 1e6,
    }


def run_fetch(args: argparse.Namespace) -> dict[str, float]:
    sock = connect(args.address)
    requests = []
    offset = 0
    for _ in range(64):
        sock.sendall(fetch_frame(args.topic, args.partition, offset, args.bytes))
        answer = decode(FetchResponse, FETCH_VERSION, memoryview(Answers(sock).one())[4:])
        data = answer.responses[0].partitions[0]
        assert data.error_code == 0, data.error_code
        if len(data.records) < args.bytes * 0.9:
            break
        requests.append(fetch_frame(args.topic, args.partition, offset, args.bytes))
        offset += last_offset(data.records) - offset
    pump(sock, requests, max(args.requests // 20, args.in_flight), args.in_flight)
    seconds, latencies, received = pump(sock, requests, args.requests, args.in_flight)
    return {
        "requests_per_s": args.requests / seconds,
        "mb_per_s": received / seconds / 1e6,
        "gb": received / 1e9,
        "seconds": seconds,
        "p50_us": percentile(latencies, 0.5) * 1e6,
        "p99_us": percentile(latencies, 0.99) * 1e6,
    }


def last_offset(records: memoryview) -> int:
    """Return the offset after the last complete batch in `records`."""
    from kbroker.protocol.records import iter_batches

    return max(header.last_offset + 1 for _, header in iter_batches(records))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", choices=["produce", "fetch"])
    parser.add_argument("address")
    parser.add_argument("topic")
    parser.add_argument("--partition", type=int, default=0)
    parser.add_argument("--records", type=int, default=1000)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--largest", type=int, default=0, help="sizes are drawn from --size up to this")
    parser.add_argument("--codec", type=int, default=0)
    parser.add_argument("--bytes", type=int, default=1 << 20)
    parser.add_argument("--in-flight", type=int, default=5)
    parser.add_argument("--requests", type=int, default=5000)
    args = parser.parse_args()
    result = run_produce(args) if args.work == "produce" else run_fetch(args)
    print(json.dumps({name: round(value, 9) for name, value in result.items()}))


if __name__ == "__main__":
    main()
