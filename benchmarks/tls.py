"""TLS beside Apache Kafka 4.3.0, in one run: `python -m benchmarks.tls`.

    handshakes     full ones a second, one after the other (P-256 keys, TLSv1.3), and the broker's CPU for each
    produce        batches of 100 records of 1 kB, five in flight
    fetch          answers of 1 MB, five in flight, from the page cache

Client and broker share the machine, and the client encrypts too: the broker's CPU says more than the throughput.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import ssl
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from benchmarks.subjects import TunedKafka
from compat_tests.harness.brokers import BrokerProcess
from compat_tests.harness.certificates import Authority
from compat_tests.harness.parts import fetch as fetch_part
from compat_tests.security.tls_sides import TlsApacheKafka, TlsKBroker, port_of, tls_settings
from compat_tests.wire.client import WireClient
from compat_tests.wire.exchanges.produce import batch
from compat_tests.wire.exchanges.produce import request as produce_request
from kbroker.protocol.compiler import encode
from kbroker.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kbroker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kbroker.protocol.messages.headers import RequestHeader

TOPIC = "tls"


class TunedTlsKafka(TlsApacheKafka, TunedKafka):
    """Apache Kafka with these listeners, and the JVM options that it has by itself."""


IN_FLIGHT = 5
Figures = dict[str, float]


def frame(request: object, version: int) -> bytes:
    kind = type(request)
    header = RequestHeader(kind.KEY, version, 1, "bench")  # type: ignore[attr-defined]
    body = encode(header, 2 if version in kind.FLEXIBLE else 1) + encode(request, version)  # type: ignore[attr-defined]
    return struct.pack(">i", len(body)) + body


class Side:
    """A broker that runs, and how to reach it."""

    def __init__(self, broker: BrokerProcess, ca: Path, listener: str) -> None:
        self._address = "127.0.0.1", port_of(broker, listener)
        self._context = None if listener == "PLAINTEXT" else ssl.create_default_context(cafile=str(ca))
        self._process = psutil.Process(broker.pid)

    def connect(self) -> socket.socket:
        sock = socket.create_connection(self._address, 60)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock if self._context is None else self._context.wrap_socket(sock, server_hostname="127.0.0.1")

    def cpu(self) -> float:
        times = self._process.cpu_times()
        return times.user + times.system

    def flow(self, data: bytes, count: int) -> tuple[float, float, int]:
        """Send a request so often, five in flight; return seconds, seconds of the broker's CPU, bytes that came."""
        with self.connect() as sock:
            room = memoryview(bytearray(2 << 20))
            began, cpu, received = time.perf_counter(), self.cpu(), 0
            for _ in range(IN_FLIGHT):
                sock.sendall(data)
            for number in range(count):
                size = struct.unpack(">i", exactly(sock, room[:4]))[0]
                received += size
                exactly(sock, room[:size])
                if number < count - IN_FLIGHT:
                    sock.sendall(data)
            return time.perf_counter() - began, self.cpu() - cpu, received


def exactly(sock: socket.socket, room: memoryview) -> memoryview:
    filled = 0
    while filled < len(room):
        count = sock.recv_into(room[filled:])
        if not count:
            raise ConnectionError("the broker closed the connection")
        filled += count
    return room


def handshakes(side: Side, count: int) -> Figures:
    began, cpu = time.perf_counter(), side.cpu()
    for _ in range(count):
        side.connect().close()
    seconds = time.perf_counter() - began
    return {"handshakes/s": count / seconds, "handshakes CPU ms": (side.cpu() - cpu) / count * 1000}


def produce(side: Side, count: int) -> Figures:
    data = frame(produce_request(TOPIC, batch(100, size=1000), acks=1), 9)
    seconds, cpu, _ = side.flow(data, count)
    size = count * len(data) / 1e6
    return {"produce MB/s": size / seconds, "produce CPU s/GB": cpu / size * 1000}


def fetch(side: Side, count: int) -> Figures:
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=500, min_bytes=1, max_bytes=1 << 20, topics=[FetchTopic(topic=TOPIC, partitions=[partition])]
    )
    seconds, cpu, received = side.flow(frame(request, 11), count)
    return {"fetch MB/s": received / 1e6 / seconds, "fetch CPU s/GB": cpu / received * 1e9}


def measure(broker: BrokerProcess, ca: Path, scale: float) -> Figures:
    """Return one broker's figures; what is measured is done before, for a JVM to be warm."""
    with WireClient(broker.bootstrap) as client:
        client.ask(CreateTopicsRequest(topics=[CreatableTopic(TOPIC, 1, 1)], timeout_ms=30_000), 7)
    found: Figures = {}
    work: list[tuple[Callable[[Side, int], Figures], int]] = [(produce, 4000), (fetch, 1000), (handshakes, 500)]
    for listener in ("PLAINTEXT", "NEWER"):
        side = Side(broker, ca, listener)
        for each, count in work if listener != "PLAINTEXT" else work[:2]:
            each(side, int(count * scale))
            best = each(side, int(count * scale))
            found |= {f"{'' if listener == 'NEWER' else 'plain '}{name}": value for name, value in best.items()}
    return found


@contextlib.contextmanager
def brokers(directory: Path) -> Iterator[tuple[dict[str, BrokerProcess], Path]]:
    authority = Authority(directory, "authority")
    stores = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(authority.sign("server")),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.file),
    }
    settings = tls_settings(stores)
    yield (
        {
            "Apache Kafka": TunedTlsKafka(fetch_part("kafka"), directory / "apache", settings),
            "kbroker": TlsKBroker(directory / "kbroker", settings),
        },
        authority.file,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0)
    scale = parser.parse_args().scale
    with tempfile.TemporaryDirectory(prefix="kbroker-tls-") as directory, brokers(Path(directory)) as (sides, ca):
        found = {}
        for name, broker in sides.items():
            with broker:
                found[name] = measure(broker, ca, scale)
    print("| | Apache Kafka | kbroker | ratio |\n|---|---|---|---|")
    for figure, theirs in found["Apache Kafka"].items():
        ours = found["kbroker"][figure]
        print(f"| {figure} | {theirs:.2f} | {ours:.2f} | {ours / theirs:.2f} |")


if __name__ == "__main__":
    main()
