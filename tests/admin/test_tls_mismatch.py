"""The error for an address where client and broker do not agree about TLS."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker import Broker
from kbroker.admin.tls_mismatch import speaks_tls, tls_fault, unreadable_file
from tests.cli.conftest import CommandLine


@pytest.fixture(scope="module")
def secured() -> Iterator[Broker]:
    with Broker(tls=True, users={"alice": "alice-secret"}) as running:
        yield running


@pytest.fixture(scope="module")
def plain() -> Iterator[Broker]:
    with Broker() as running:
        yield running


def test_who_speaks_tls(secured: Broker, plain: Broker) -> None:
    assert speaks_tls(secured.bootstrap_servers) is True
    assert speaks_tls(plain.bootstrap_servers) is False


def test_nobody_answers() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        assert speaks_tls(f"127.0.0.1:{silent.getsockname()[1]}", patience_s=0.05) is None


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SASL_PLAINTEXT"])
def test_a_client_without_tls_is_told_of_it(secured: Broker, protocol: str) -> None:
    fault = tls_fault(secured.bootstrap_servers, {"security_protocol": protocol})
    assert fault is not None
    assert fault.startswith(f"{secured.bootstrap_servers} speaks TLS, and security.protocol is {protocol}")


def test_a_broker_without_tls_is_told_of(plain: Broker) -> None:
    fault = tls_fault(plain.bootstrap_servers, {"security_protocol": "SASL_SSL"})
    assert fault == f"{plain.bootstrap_servers} does not speak TLS, and security.protocol is SASL_SSL"
    assert tls_fault(plain.bootstrap_servers, {}) is None


def test_a_certificate_that_nobody_knows_is_told_of(secured: Broker) -> None:
    unknown = tls_fault(secured.bootstrap_servers, {"security_protocol": "SASL_SSL"})
    assert unknown is not None
    assert unknown.startswith(f"the certificate of {secured.bootstrap_servers} is not accepted: ")
    known = secured.client_settings("alice").kafka_python
    assert tls_fault(secured.bootstrap_servers, known) is None, "then it is name or password"


def test_the_verbs_say_it(secured: Broker) -> None:
    line = CommandLine(secured.bootstrap_servers).fails("topic", "list", "-X", "bootstrap_timeout_ms=300")
    assert "speaks TLS" in line


@pytest.mark.parametrize("key", ["ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_crlfile"])
def test_a_file_that_is_not_there(tmp_path: Path, key: str) -> None:
    lost = {"security_protocol": "SASL_SSL", key: str(tmp_path / "lost")}
    said = unreadable_file(lost)
    assert said is not None
    assert said.startswith(f"{tmp_path}/lost, which should contain ")
    assert said.endswith(", cannot be read: No such file or directory")
    assert unreadable_file(lost | {"security_protocol": "SASL_PLAINTEXT"}) is None


def test_a_file_without_certificates(secured: Broker, tmp_path: Path) -> None:
    (tmp_path / "none").write_text("nothing\n")
    settings = {"security_protocol": "SSL", "ssl_cafile": str(tmp_path / "none")}
    assert (
        unreadable_file(settings)
        == f"{tmp_path}/none should contain the certificates that are trusted in PEM, but contains none"
    )
    assert unreadable_file(secured.client_settings("alice").kafka_python) is None


def test_the_verbs_say_at_once_which_file_it_is(secured: Broker, tmp_path: Path) -> None:
    """Without seconds of retries as if name or password were wrong."""
    login = ("-X", "security.protocol=SASL_SSL", "-X", "sasl.mechanism=PLAIN", "-X", "sasl.username=alice")
    lost = ("-X", f"ssl.ca.location={tmp_path}/lost", "-X", "bootstrap_timeout_ms=600000")
    said = CommandLine(secured.bootstrap_servers).fails("topic", "list", *login, *lost)
    assert said.startswith(f"{tmp_path}/lost, which should contain the certificates that are trusted, cannot be read: ")


def test_tls_without_a_login_where_one_is_asked_for(secured: Broker) -> None:
    trusted = secured.client_settings("alice").kafka_python["ssl_cafile"]
    tls = ("-X", "security.protocol=SSL", "-X", f"ssl.ca.location={trusted}", "-X", "bootstrap_timeout_ms=300")
    said = CommandLine(secured.bootstrap_servers).fails("topic", "list", *tls)
    assert "; does it ask for a login (-X security.protocol=SASL_SSL)" in said
