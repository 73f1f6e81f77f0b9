"""`kbroker cert dev`: the certificates work, and nothing is overwritten."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from compat_tests.wire.client import WireClient
from kbroker import Broker
from kbroker.protocol.messages.connections import ApiVersionsRequest
from tests.cli.conftest import CommandLine
from tests.network.test_tls import TlsClient


@pytest.fixture
def offline() -> CommandLine:
    return CommandLine("127.0.0.1:1")


def test_a_broker_with_what_it_makes(offline: CommandLine, tmp_path: Path) -> None:
    made = tmp_path / "certs"
    said = offline.ok("cert", "dev", str(made), "--client", "alice").text
    names = {"ca.pem", "ca.crt", "truststore.p12", "server.pem", "server.p12", "alice.pem", "alice.p12"}
    assert {path.name for path in made.iterdir()} == names
    assert all(path.stat().st_mode & 0o077 == 0 for path in made.iterdir())
    settings = dict(
        line.strip().split("=", 1)
        for line in said.partition("For clients")[0].splitlines()
        if line.startswith("  ssl.")
    )
    config = {"listeners": "SSL://127.0.0.1:0", "ssl.client.auth": "required", **settings}
    context = ssl.create_default_context(cafile=str(made / "ca.crt"))
    context.load_cert_chain(made / "alice.pem")
    with Broker(config) as broker, TlsClient(broker.bootstrap_servers, context) as client:
        assert client.ask(ApiVersionsRequest(), 0).error_code == 0
        (connection,) = broker.node.server._connections
        assert str(connection._context.principal) == "User:CN=alice"
    p12 = {
        "listeners": "SSL://127.0.0.1:0",
        "ssl.keystore.location": str(made / "server.p12"),
        "ssl.keystore.password": "changeit",
        "ssl.truststore.location": str(made / "truststore.p12"),
        "ssl.truststore.password": "changeit",
    }
    with Broker(p12) as broker, TlsClient(broker.bootstrap_servers, context) as client:
        assert client.ask(ApiVersionsRequest(), 0).error_code == 0


def test_one_more_client_by_the_same_authority(offline: CommandLine, tmp_path: Path) -> None:
    offline.ok("cert", "dev", str(tmp_path))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    offline.ok("cert", "dev", str(tmp_path), "--client", "bob", "--client", "carol")
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert after.keys() - before.keys() == {f"{name}.{end}" for name in ("bob", "carol") for end in ("pem", "p12")}
    assert {name: after[name] for name in before} == before
    assert "already has all these files" in offline.ok("cert", "dev", str(tmp_path)).text


def test_an_authority_of_another_kind_is_refused(offline: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("nothing")
    assert "is no authority made by this command" in offline.fails("cert", "dev", str(tmp_path))
    assert WireClient is not None
