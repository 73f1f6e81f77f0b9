"""TLS on both brokers: which client is accepted by which listener, and how unsuitable clients are refused."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from compat_tests.clients.common import wait_for
from compat_tests.harness.brokers import BrokerProcess
from compat_tests.harness.certificates import Authority
from compat_tests.harness.jvm import run_java
from compat_tests.security.tls_clients import CLIENTS, REFUSED, TOPIC, WORKS, Shown
from compat_tests.security.tls_sides import TlsApacheKafka, TlsKBroker, port_of, tls_settings
from compat_tests.wire.client import WireClient
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalConfig,
    IncrementalResource,
)

pytestmark = [pytest.mark.java, pytest.mark.long]

Sides = dict[str, BrokerProcess]


class Certificates:
    """The certificates of the brokers and of their clients."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = Authority(directory, "authority")
        server = self.authority.sign("server", "IP:127.0.0.1,DNS:localhost")
        self.stores = {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(server),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority.file),
        }
        self.own: dict[str, Path | None] = {
            "trusted": self.authority.sign("alice"),
            "untrusted": Authority(directory, "another").sign("mallory"),
            "absent": None,
        }

    def shown(self, which: str) -> Shown:
        return Shown(self.authority.file, self.own[which])


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def sides(kafka_libs: Path, certificates: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sides]:
    settings = tls_settings(certificates.stores)
    with (
        TlsApacheKafka(kafka_libs, tmp_path_factory.mktemp("apache"), settings) as apache,
        TlsKBroker(tmp_path_factory.mktemp("kbroker"), settings) as kbroker,
    ):
        found: Sides = {"apache": apache, "kbroker": kbroker}
        for broker in found.values():
            admin = AdminClient({"bootstrap.servers": broker.bootstrap})
            admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(30)
        yield found


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("which", ["trusted", "untrusted", "absent"])
@pytest.mark.parametrize("listener", ["NONE", "REQUESTED", "REQUIRED"])
def test_who_is_let_in(sides: Sides, certificates: Certificates, client: str, which: str, listener: str) -> None:
    found = {}
    for side, broker in sides.items():
        address = f"127.0.0.1:{port_of(broker, listener)}"
        found[side] = CLIENTS[client](address, certificates.shown(which))
    allowed = which == "trusted" or listener == "NONE" or (which == "absent" and listener == "REQUESTED")
    assert found["kbroker"] == (WORKS if allowed else REFUSED)
    if (listener, which, client) == ("REQUESTED", "untrusted", "confluent-kafka"):
        # Java's server names the authorities that it trusts, and librdkafka then sends it no certificate of another
        # authority. The ssl module cannot name them, so librdkafka sends kbroker the certificate that it has, and is
        # refused like every other client.
        found["kbroker"] = WORKS
    assert found["kbroker"] == found["apache"]


def negotiated(port: int, ca: Path, lowest: ssl.TLSVersion, highest: ssl.TLSVersion, ciphers: str | None) -> str:
    """Return the version and cipher that a client negotiates, or that the handshake fails."""
    context = ssl.create_default_context(cafile=str(ca))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version, context.maximum_version = lowest, highest
    if ciphers is not None:
        context.set_ciphers(ciphers)
    with socket.create_connection(("127.0.0.1", port), 20) as sock:
        try:
            with context.wrap_socket(sock, server_hostname="127.0.0.1") as tls:
                cipher = tls.cipher()
                return f"{tls.version()} {cipher[0] if cipher and lowest < ssl.TLSVersion.TLSv1_3 else ''}"
        except (ssl.SSLError, ConnectionError):
            return REFUSED


@pytest.mark.parametrize("listener", ["NONE", "OLDER", "NEWER", "CIPHER"])
@pytest.mark.parametrize(
    ("lowest", "highest", "ciphers"),
    [
        (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1, "ALL:@SECLEVEL=0"),
        (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2, "ECDHE-ECDSA-AES256-GCM-SHA384"),
        (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2, "ECDHE-ECDSA-AES128-GCM-SHA256"),
        (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2, "AES128-SHA"),
        (ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_3, None),
    ],
)
def test_versions_and_ciphers(
    sides: Sides,
    certificates: Certificates,
    listener: str,
    lowest: ssl.TLSVersion,
    highest: ssl.TLSVersion,
    ciphers: str | None,
) -> None:
    ca = certificates.authority.file
    found = {
        side: negotiated(port_of(broker, listener), ca, lowest, highest, ciphers) for side, broker in sides.items()
    }
    assert found["kbroker"] == found["apache"]


@pytest.mark.parametrize(
    "data",
    [
        b"\0\0\0\x0c\0\x12\0\0\0\0\0\x01\xff\xff\0\0",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00" + b"\xff" * 600,
        b"\x80\x2e\x01\x03\x01" + bytes(60),
    ],
    ids=["kafka", "http", "garbage", "old"],
)
def test_what_is_no_tls_is_closed(sides: Sides, certificates: Certificates, data: bytes) -> None:
    for broker in sides.values():
        with socket.create_connection(("127.0.0.1", port_of(broker, "NONE")), 20) as sock:
            sock.settimeout(20)
            sock.sendall(data)
            with contextlib.suppress(ConnectionError):
                while got := sock.recv(1000):
                    assert got[:1] == b"\x15"  # an alert at most
    test_who_is_let_in(sides, certificates, "aiokafka", "absent", "NONE")


def test_a_tls_client_at_a_plaintext_port_is_refused(sides: Sides, certificates: Certificates) -> None:
    for broker in sides.values():
        port = port_of(broker, "PLAINTEXT")
        versions = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3
        assert negotiated(port, certificates.authority.file, *versions, None) == REFUSED


def test_a_java_tool(sides: Sides, certificates: Certificates, kafka_libs: Path) -> None:
    config = certificates.directory / "client.properties"
    config.write_text(
        "security.protocol=SSL\nssl.truststore.type=PEM\nssl.keystore.type=PEM\n"
        f"ssl.truststore.location={certificates.authority.file}\n"
        f"ssl.keystore.location={certificates.own['trusted']}\n"
    )
    found = {}
    for side, broker in sides.items():
        address = f"localhost:{port_of(broker, 'REQUIRED')}"
        status, out, err = run_java(
            kafka_libs,
            "org.apache.kafka.tools.TopicCommand",
            *("--bootstrap-server", address, "--command-config", str(config), "--list"),
        )
        assert status == 0, err
        found[side] = sorted(line for line in out.split() if not line.startswith("__"))
    assert found["kbroker"] == found["apache"] == [TOPIC]


def test_stores_are_read_again(sides: Sides, certificates: Certificates) -> None:
    """A renewed certificate is used once its path is set again; a certificate that has lost names is refused."""
    path = certificates.directory / "renewed.pem"
    key = "listener.name.none.ssl.keystore.location"
    ca = certificates.authority.file

    def serial(broker: BrokerProcess) -> str:
        context = ssl.create_default_context(cafile=str(ca))
        with (
            socket.create_connection(("127.0.0.1", port_of(broker, "NONE")), 20) as sock,
            context.wrap_socket(sock, server_hostname="127.0.0.1") as tls,
        ):
            found = tls.getpeercert()
            assert found is not None
            return str(found["serialNumber"])

    def shown(broker: BrokerProcess) -> set[str]:
        """Tell what eight connections see: each network thread of a Java broker takes the new store in its turn."""
        return {serial(broker) for _ in range(8)}

    def all_show_another(broker: BrokerProcess, known: set[str]) -> bool:
        found = shown(broker)
        return len(found) == 1 and found.isdisjoint(known)

    def put(name: str, addresses: str, path: Path) -> None:
        """Put another certificate at the path, and keep the modification time of the brokers' own to the ms."""
        server = certificates.directory / "server.pem"
        before, stamp = server.read_bytes(), server.stat()
        path.write_bytes(certificates.authority.sign(name, addresses).read_bytes())
        server.write_bytes(before)
        os.utime(server, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))

    def alter(broker: BrokerProcess, path: Path) -> int:
        config = IncrementalConfig(name=key, config_operation=0, value=str(path))
        resource = IncrementalResource(resource_type=4, resource_name="1", configs=[config])
        with WireClient(broker.bootstrap) as client:
            answer = client.ask(IncrementalAlterConfigsRequest(resources=[resource], validate_only=False), 1)
        code: int = answer.responses[0].error_code
        return code

    for broker in sides.values():
        known = shown(broker)
        for _ in range(2):
            put("server", "IP:127.0.0.1,DNS:localhost", path)
            assert alter(broker, path) == 0
            wait_for("another certificate", lambda: all_show_another(broker, known), 20)  # noqa: B023 - at once
            newest = shown(broker)
            known |= newest
        outcomes = []
        for name, addresses in (("server", "IP:127.0.0.1"), ("other", "IP:127.0.0.1,DNS:localhost")):
            other = certificates.directory / f"renewed-{name}.pem"
            put(name, addresses, other)
            outcomes.append(alter(broker, other))
        assert outcomes == [ErrorCode.INVALID_REQUEST] * 2
        assert shown(broker) == newest
