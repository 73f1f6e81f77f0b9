"""Many small requests: each response triggers one new request, over one connection or many.

Owns the load and its measurement, in its own process. A driver that sends a group of requests for each group of
responses makes the broker look better than it is, because it reads and writes less often. Here every request is a
separate `send`, as from independent clients. Prints one line of JSON.

    python -m benchmarks.small HOST:PORT TOPIC --connections 100 --in-flight 1 --requests 100000
"""

from __future__ import annotations

import argparse
import json
import select
import socket
import struct
import time
from collections import deque

from benchmarks.raw import connect, percentile, produce_frame

_SIZE = struct.Struct(">i")


class Client:
    """One connection and its requests in flight."""

    __slots__ = ("rest", "sent_at", "sock")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.rest = b""
        self.sent_at: deque[float] = deque()

    def answers(self) -> int:
        """Receive once; return how many responses are now complete."""
        data = self.sock.recv(1 << 16)
        if not data:
            raise ConnectionError("the broker closed the connection")
        data = self.rest + data
        position, count = 0, 0
        while len(data) - position >= 4:
            stop = position + 4 + _SIZE.unpack_from(data, position)[0]
            if stop > len(data):
                break
            position = stop
            count += 1
        self.rest = data[position:]
        return count


def drive(address: str, request: bytes, connections: int, in_flight: int, total: int) -> tuple[float, list[float]]:
    """Send `total` requests and read their responses; return (seconds, latencies in s)."""
    poller = select.epoll()
    clients = {}
    for _ in range(connections):
        client = Client(connect(address))
        clients[client.sock.fileno()] = client
        poller.register(client.sock.fileno(), select.EPOLLIN)
    latencies: list[float] = []
    clock = time.perf_counter
    started = clock()
    sent = 0
    for client in clients.values():
        for _ in range(in_flight):
            client.sent_at.append(clock())
            client.sock.send(request)
            sent += 1
    while len(latencies) < total:
        for fd, _ in poller.poll():
            client = clients[fd]
            count = client.answers()
            now = clock()
            for _ in range(count):
                latencies.append(now - client.sent_at.popleft())
                if sent < total:
                    client.sent_at.append(now)
                    client.sock.send(request)
                    sent += 1
    seconds = clock() - started
    for client in clients.values():
        client.sock.close()
    return seconds, latencies


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address")
    parser.add_argument("topic")
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--in-flight", type=int, default=1)
    parser.add_argument("--requests", type=int, default=100_000)
    args = parser.parse_args()
    request = produce_frame(args.topic, 0, 1, 100)
    drive(args.address, request, args.connections, args.in_flight, max(args.requests // 20, 100))
    seconds, latencies = drive(args.address, request, args.connections, args.in_flight, args.requests)
    figures = {
        "requests_per_s": args.requests / seconds,
        "gb": args.requests * 100 / 1e9,
        "p50_us": percentile(latencies, 0.5) * 1e6,
        "p99_us": percentile(latencies, 0.99) * 1e6,
        "p999_us": percentile(latencies, 0.999) * 1e6,
    }
    print(json.dumps({name: round(value, 9) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
