"""SASL over TLS: the password determines a client's identity, whatever its certificate; brokers also use both."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from compat_tests.wire.client import CLOSED, WireClient
from kbroker import Broker, Cluster
from kbroker.protocol.messages.cluster import MetadataRequest
from kbroker.protocol.messages.connections import SaslAuthenticateRequest, SaslHandshakeRequest
from tests.security.tls.conftest import Files

LOGIN = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="broker" password="b" user_broker="b" user_bob="b";'
)
PATIENCE_S = 30


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def secured(files: Files) -> Iterator[Broker]:
    config = {
        "listeners": "SASL_SSL://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.jaas.config": LOGIN,
        "listener.name.sasl_ssl.ssl.client.auth": "requested",
        **files.listener(),
    }
    with Broker(config, strict=True) as running:
        yield running


class TlsWire(WireClient):
    """A wire client that speaks TLS, with or without a certificate."""

    def __init__(self, address: str, files: Files, certificate: str | None) -> None:
        super().__init__(address)
        context = ssl.create_default_context(cafile=files.ca)
        if certificate is not None:
            context.load_cert_chain(certificate)
        self._sock: socket.socket = context.wrap_socket(self._sock, server_hostname="localhost")


@pytest.mark.parametrize("shows", [True, False])
def test_the_password_says_who_a_client_is(secured: Broker, files: Files, shows: bool) -> None:
    with TlsWire(secured.bootstrap_servers, files, files.client if shows else None) as client:
        assert client.ask(SaslHandshakeRequest("PLAIN"), 1).error_code == 0
        assert client.ask(SaslAuthenticateRequest(b"\0bob\0b"), 2).error_code == 0
        assert client.ask(MetadataRequest(topics=[]), 9).brokers
        names = [str(each._context.principal) for each in secured.node.server._connections]
        assert names == ["User:bob"]


def test_a_certificate_is_no_password(secured: Broker, files: Files) -> None:
    with TlsWire(secured.bootstrap_servers, files, files.client) as client:
        assert client.ask(MetadataRequest(topics=[]), 9) == CLOSED


def client(address: str, files: Files, password: str = "b") -> dict[str, object]:
    return {
        "bootstrap.servers": address,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": files.ca,
        "sasl.mechanism": "PLAIN",
        "sasl.username": "bob",
        "sasl.password": password,
        "log_level": 0,
    }


def test_a_client_is_served_or_not(secured: Broker, files: Files) -> None:
    assert AdminClient(client(secured.bootstrap_servers, files)).list_topics(timeout=PATIENCE_S).brokers
    with pytest.raises(KafkaException):
        AdminClient(client(secured.bootstrap_servers, files, "x")).list_topics(timeout=2)


def test_brokers_log_in_to_each_other_over_tls(files: Files) -> None:
    config = {
        "listeners": "SASL_SSL://localhost:0",
        "security.inter.broker.protocol": "SASL_SSL",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "sasl.jaas.config": LOGIN,
        **files.listener(),
    }
    with Cluster(2, config) as cluster:
        admin = AdminClient(client(cluster.bootstrap_servers, files))
        new = NewTopic("orders", 2, 2, config={"min.insync.replicas": "2"})
        admin.create_topics([new])["orders"].result(PATIENCE_S)
        outcomes: list[object] = []
        producer = Producer({**client(cluster.bootstrap_servers, files), "acks": "all"})
        deadline = time.monotonic() + PATIENCE_S
        for _ in range(50):
            producer.produce("orders", b"x", on_delivery=lambda error, _message: outcomes.append(error))
        assert producer.flush(max(deadline - time.monotonic(), 1)) == 0
        assert outcomes == [None] * 50
