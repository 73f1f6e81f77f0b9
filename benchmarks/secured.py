"""A secured broker beside Apache Kafka 4.4.0, in one run: `python -m benchmarks.secured`.

Both have one SASL_SSL listener (TLSv1.3, keys on P-256, PLAIN), an authorizer and 1,000 ACLs, some of which concern the
working user. The output is medians of alternating rounds; the table is written under benchmarks/results/.

    produce        batches of 100 records of 1 kB, five in flight
    fetch          responses of 1 MB, five in flight, from the page cache
    handshakes     full TLS handshakes, one after the other; logins add a user's name and password
    start          of a broker that already has these ACLs

Client and broker share the machine, and the client encrypts too: the broker's CPU time is more significant than the
throughput. Asserts nothing about time.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import socket
import ssl
import statistics
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.subjects import TunedKafka, cpu_seconds
from benchmarks.work import create
from compat_tests.harness.brokers import BrokerProcess
from compat_tests.harness.certificates import Authority
from compat_tests.harness.parts import fetch as fetch_part
from compat_tests.security.tls_sides import TlsApacheKafka, TlsKBroker, port_of
from compat_tests.wire.client import WireClient
from compat_tests.wire.exchanges.produce import batch
from compat_tests.wire.exchanges.produce import request as produce_request
from kbroker.protocol.compiler import encode
from kbroker.protocol.messages.access import AclCreation, CreateAclsRequest
from kbroker.protocol.messages.connections import RequestHeader, SaslAuthenticateRequest, SaslHandshakeRequest
from kbroker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kbroker.security.authorizer.acls import Operation, PatternType, Permission, ResourceType

RESULTS = Path(__file__).parent / "results"
TOPIC, USER, SECRET, LISTENER = "secured", "alice", "alice-secret", "SECURED"
IN_FLIGHT = 5
ACLS = 1000
Figures = dict[str, float]
TARGETS = {
    "produce, MB/s": (1.0, True),
    "produce, CPU s/GB": (0.7, False),
    "fetch 1 MB, MB/s": (1.0, True),
    "fetch 1 MB, CPU s/GB": (0.7, False),
    "TLS handshakes/s": (1.0, True),
    "start with TLS and ACLs, s": (0.2, False),
}


class TunedTlsKafka(TlsApacheKafka, TunedKafka):
    """Apache Kafka with these listeners, and the JVM options of its start script."""


def frame(request: object, version: int) -> bytes:
    kind = type(request)
    header = RequestHeader(kind.KEY, version, 1, "bench")  # type: ignore[attr-defined]
    body = encode(header, 2 if version in kind.FLEXIBLE else 1) + encode(request, version)  # type: ignore[attr-defined]
    return struct.pack(">i", len(body)) + body


def exactly(sock: socket.socket, room: memoryview) -> memoryview:
    filled = 0
    while filled < len(room):
        count = sock.recv_into(room[filled:])
        if not count:
            raise ConnectionError("the broker closed the connection")
        filled += count
    return room


def answer(sock: socket.socket) -> bytes:
    size = struct.unpack(">i", exactly(sock, memoryview(bytearray(4))))[0]
    return bytes(exactly(sock, memoryview(bytearray(size))))


class Side:
    """A running broker, and its address."""

    def __init__(self, broker: BrokerProcess, ca: Path) -> None:
        self._address = "127.0.0.1", port_of(broker, LISTENER)
        self._context = ssl.create_default_context(cafile=str(ca))
        self._pid = broker.pid

    def connect(self) -> ssl.SSLSocket:
        """Return a connection after the TLS handshake."""
        sock = socket.create_connection(self._address, 60)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._context.wrap_socket(sock, server_hostname="127.0.0.1")

    def login(self) -> ssl.SSLSocket:
        """Return a connection of the working user."""
        sock = self.connect()
        sock.sendall(frame(SaslHandshakeRequest(mechanism="PLAIN"), 1))
        taken = answer(sock)[4:6]
        sock.sendall(frame(SaslAuthenticateRequest(auth_bytes=f"\0{USER}\0{SECRET}".encode()), 1))
        said = answer(sock)[4:6]
        if (taken, said) != (b"\0\0", b"\0\0"):
            raise ConnectionError("the broker lets the user not in")
        return sock

    def cpu(self) -> float:
        return cpu_seconds(self._pid)

    def flow(self, data: bytes, count: int) -> tuple[float, float, int]:
        """Send a request `count` times, five in flight; return seconds, the broker's CPU seconds, received bytes."""
        with self.login() as sock:
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


def handshakes(side: Side, count: int) -> Figures:
    return _one_by_one(side, side.connect, "TLS handshakes", count)


def logins(side: Side, count: int) -> Figures:
    return _one_by_one(side, side.login, "logins", count)


def _one_by_one(side: Side, enter: Callable[[], ssl.SSLSocket], what: str, count: int) -> Figures:
    began, cpu = time.perf_counter(), side.cpu()
    for _ in range(count):
        enter().close()
    seconds = time.perf_counter() - began
    return {f"{what}/s": count / seconds, f"{what}, CPU ms each": (side.cpu() - cpu) / count * 1000}


def produce(side: Side, count: int) -> Figures:
    data = frame(produce_request(TOPIC, batch(100, size=1000), acks=1), 9)
    seconds, cpu, _ = side.flow(data, count)
    size = count * len(data) / 1e6
    return {"produce, MB/s": size / seconds, "produce, CPU s/GB": cpu / size * 1000}


def fetch(side: Side, count: int) -> Figures:
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=500, min_bytes=1, max_bytes=1 << 20, topics=[FetchTopic(topic=TOPIC, partitions=[partition])]
    )
    seconds, cpu, received = side.flow(frame(request, 11), count)
    if received < count * 500_000:
        raise ConnectionError("the answers hold no records")
    return {"fetch 1 MB, MB/s": received / 1e6 / seconds, "fetch 1 MB, CPU s/GB": cpu / received * 1e9}


def allow(principal: str, name: str, operation: Operation, pattern: PatternType = PatternType.LITERAL) -> AclCreation:
    """Return the ACL that allows an operation on a topic."""
    return AclCreation(ResourceType.TOPIC, name, pattern, f"User:{principal}", "*", operation, Permission.ALLOW)


def acls(count: int) -> list[AclCreation]:
    """Return `count` ACLs, among them those that the working user needs."""
    own = [allow(USER, TOPIC, operation) for operation in (Operation.READ, Operation.WRITE)]
    return own + others(count - len(own))


def others(count: int) -> list[AclCreation]:
    """Return ACLs of idle users, for their own topics, literal and prefixed."""
    operations, patterns = (Operation.READ, Operation.WRITE), (PatternType.LITERAL, PatternType.PREFIXED)
    return [allow(f"user-{n}", f"topic-{n // 2}", operations[n % 2], patterns[n // 2 % 2]) for n in range(count)]


def add_acls(address: str, wanted: list[AclCreation]) -> None:
    with WireClient(address) as client:
        for start in range(0, len(wanted), 100):
            done = client.ask(CreateAclsRequest(wanted[start : start + 100]), 3)
            failed = [each.error_message for each in done.results if each.error_code]
            if failed:
                raise RuntimeError(f"an ACL was refused: {failed[0]}")


WORK: list[tuple[Callable[[Side, int], Figures], int]] = [
    (produce, 4000),
    (fetch, 1000),
    (handshakes, 500),
    (logins, 300),
]


def measure(broker: BrokerProcess, ca: Path, scale: float) -> Figures:
    """Return one broker's figures; each piece of work runs once before, to warm up a JVM."""
    with broker:
        create(broker.bootstrap, TOPIC)
        add_acls(broker.bootstrap, acls(ACLS))
        found: Figures = {}
        side = Side(broker, ca)
        for each, count in WORK:
            each(side, int(count * scale))
            found |= each(side, int(count * scale))
    broker._command()  # preparations are not part of a start
    began = time.perf_counter()
    with broker:
        found["start with TLS and ACLs, s"] = time.perf_counter() - began
    return found


def settings(directory: Path) -> tuple[dict[str, str], Path]:
    """Return the settings of both brokers, and the file of the authority that signed their certificate."""
    authority = Authority(directory, "authority")
    plain = "org.apache.kafka.common.security.plain.PlainLoginModule"
    return {
        "log.retention.check.interval.ms": "300000",
        "log.segment.delete.delay.ms": "60000",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(authority.sign("server")),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.file),
        "ssl.enabled.protocols": "TLSv1.3",
        "sasl.enabled.mechanisms": "PLAIN",
        f"listener.name.{LISTENER.lower()}.plain.sasl.jaas.config": f'{plain} required user_{USER}="{SECRET}";',
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }, authority.file


@contextlib.contextmanager
def sides() -> Iterator[tuple[dict[str, BrokerProcess], Path]]:
    with tempfile.TemporaryDirectory(prefix="kbroker-secured-") as name:
        directory = Path(name)
        told, ca = settings(directory)
        spoken = {LISTENER: "SASL_SSL"}
        yield (
            {
                "Apache Kafka": TunedTlsKafka(fetch_part("kafka"), directory / "apache", told, spoken),
                "kbroker": TlsKBroker(directory / "kbroker", told, spoken),
            },
            ca,
        )


def table(samples: dict[str, list[Figures]]) -> list[str]:
    lines = ["| | kbroker | Apache Kafka 4.4.0 | ratio | target |", "|---|---|---|---|---|"]
    for figure in samples["kbroker"][0]:
        ours, theirs = (statistics.median(each[figure] for each in samples[s]) for s in ("kbroker", "Apache Kafka"))
        target = ""
        if figure in TARGETS:
            bound, at_least = TARGETS[figure]
            met = ours / theirs >= bound if at_least else ours / theirs <= bound
            target = f"{'>=' if at_least else '<='} {bound}x {'met' if met else 'MISSED'}"
        lines.append(f"| {figure} | {ours:.2f} | {theirs:.2f} | {ours / theirs:.2f}x | {target} |")
    return lines


def save(lines: list[str], rounds: int) -> Path:
    stamp = time.strftime("%Y-%m-%d-%H%M", time.gmtime())
    path = RESULTS / f"{stamp}-secured.md"
    head = [
        f"# A secured broker, {stamp} UTC",
        "",
        f"- command: `python -m benchmarks.secured --rounds {rounds}` (medians, in turns; SASL_SSL, {ACLS} ACLs)",
        f"- machine: {os.cpu_count()} cores, {platform.machine()}, Linux {platform.release()}, clients on it too",
        f"- versions: Python {platform.python_version()}, {ssl.OPENSSL_VERSION}, Apache Kafka 4.4.0 (-Xmx1G, G1)",
        "",
    ]
    path.write_text("\n".join([*head, *lines, ""]))
    return path


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.secured", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--no-save", action="store_true")
    args = parser.parse_args()
    samples: dict[str, list[Figures]] = {"kbroker": [], "Apache Kafka": []}
    for number in range(args.rounds):
        with sides() as (brokers, ca):
            for name in sorted(brokers, reverse=bool(number % 2)):
                samples[name].append(measure(brokers[name], ca, args.scale))
                print(f"round {number + 1} of {args.rounds}: {name}", samples[name][-1], flush=True)
    lines = table(samples)
    print("\n".join(lines))
    if not args.no_save:
        print(f"saved {save(lines, args.rounds).name}")


if __name__ == "__main__":
    main()
