"""A connection to another broker over TLS: its identity is checked, and the caller gets the error."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from kbroker import Broker
from kbroker.config.server_config import BrokerConfig
from kbroker.network.loop_watch import new_event_loop
from kbroker.peers.connection import TcpPeers
from kbroker.peers.interface import PeerUnavailable
from kbroker.protocol.messages.connections import ApiVersionsRequest, ApiVersionsResponse
from kbroker.security.tls.of_broker import TlsListeners
from tests.security.tls.conftest import Files

PATIENCE_MS = 10_000
SETTINGS = {"security.inter.broker.protocol": "SSL", "ssl.client.auth": "required"}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("strangers"), "another")


@pytest.fixture(scope="module")
def broker(files: Files) -> Iterator[Broker]:
    with Broker({"listeners": "SSL://127.0.0.1:0", **SETTINGS, **files.listener()}) as running:
        yield running


def ask(broker: Broker, settings: dict[str, str], host: str = "127.0.0.1") -> str:
    """Send a request as a broker with these settings does; return the error, or nothing."""
    own = TlsListeners(BrokerConfig({"listeners": "SSL://:9093", **SETTINGS, **settings}))
    port = int(broker.bootstrap_servers.rpartition(":")[2])

    async def asked() -> str:
        peer = TcpPeers(own.client_context).peer(host, port, "test")
        try:
            for _ in range(3):
                await peer.ask(ApiVersionsRequest(), 0, ApiVersionsResponse, PATIENCE_MS)
        except PeerUnavailable as error:
            return str(error)
        finally:
            peer.close()
        return ""

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(asked())


def test_brokers_of_one_authority_understand_each_other(broker: Broker, files: Files) -> None:
    assert ask(broker, files.listener()) == ""


def test_a_broker_of_another_authority_joins_nothing(broker: Broker, files: Files, strangers: Files) -> None:
    assert "certificate verify failed" in ask(broker, strangers.listener()).lower().replace("_", " ")
    assert ask(broker, files.listener()) == ""


def test_another_name_than_the_certificate_has_is_refused(broker: Broker, files: Files) -> None:
    other = files.sign("server-elsewhere", ["another.host"])
    with Broker({"listeners": "SSL://127.0.0.1:0", **SETTINGS, **files.listener(keystore_location=other)}) as elsewhere:
        assert "cannot be reached" in ask(elsewhere, files.listener())
        assert ask(elsewhere, files.listener(endpoint_identification_algorithm="")) == ""


def test_a_broker_asks_by_the_protocol_of_the_listener_between_brokers(files: Files) -> None:
    both = {"listeners": "PLAINTEXT://:9092,SSL://:9093", **files.listener()}
    assert TlsListeners(BrokerConfig(both)).client_context() is None
    assert TlsListeners(BrokerConfig({**both, "inter.broker.listener.name": "SSL"})).client_context() is not None
