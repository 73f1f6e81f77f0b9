"""What is told of an address where a client and a broker do not agree about TLS."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from kbroker import Broker
from kbroker.admin.tls_mismatch import speaks_tls, tls_fault
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
    assert unknown.startswith(f"the certificate of {secured.bootstrap_servers} is not taken: ")
    known = secured.client_settings("alice").kafka_python
    assert tls_fault(secured.bootstrap_servers, known) is None, "then it is name or password"


def test_the_verbs_say_it(secured: Broker) -> None:
    line = CommandLine(secured.bootstrap_servers).fails("topic", "list", "-X", "bootstrap_timeout_ms=300")
    assert "speaks TLS" in line
