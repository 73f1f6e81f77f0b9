"""The registry over TLS, and requests that are forwarded to another registry: verified, or not sent."""

from __future__ import annotations

import json
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

from kbroker import web_server
from kbroker.admin.schemas import SchemaRegistry
from kbroker.embed_security import Certificates
from kbroker.local_http import REGISTRY
from kbroker.registry_api import forwarding
from kbroker.registry_api.server import RegistryServer
from kbroker.schema_registry.service import Place
from tests.registry_api.test_forwarding import OTHER, OWN, Leader, NoStore, Upstream


@pytest.fixture
def certificates() -> Iterator[Certificates]:
    made = Certificates("127.0.0.1")
    yield made
    made.remove()


@contextmanager
def served(certificates: Certificates, leader: Leader | None = None, ca: str | None = None) -> Iterator[RegistryServer]:
    both = certificates.settings["ssl.keystore.location"]
    listening = REGISTRY.listening("127.0.0.1", 0, "--listen", public=False)
    with RegistryServer(NoStore(), listening, cluster_id="a", leader=leader, tls=(both, both), ca=ca) as server:
        yield server


def asked(certificates: Certificates, url: str, path: str) -> tuple[int, dict[str, object]]:
    context = ssl.create_default_context(cafile=certificates.ca)
    try:
        with urllib.request.urlopen(url + path, timeout=20, context=context) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_it_is_served_over_tls(certificates: Certificates) -> None:
    with served(certificates) as server:
        assert server.url.startswith("https://127.0.0.1:")
        registry = SchemaRegistry(server.url, certificates.ca)
        assert registry.ask("GET", "schemas", "types") == ["JSON", "PROTOBUF", "AVRO"]


def test_a_client_that_never_shakes_hands_is_let_go(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_server, "HEAD_S", 0.2)
    with served(certificates) as server:
        address = urlsplit(server.url)
        with socket.create_connection((str(address.hostname), address.port or 0), timeout=20) as silent:
            assert silent.recv(1) == b""


def test_the_leader_is_asked_over_tls(certificates: Certificates) -> None:
    with (
        served(certificates) as leads,
        served(certificates, Leader([Place(OTHER, leads.url)]), certificates.ca) as server,
    ):
        assert asked(certificates, server.url, "/schemas/types") == (200, ["JSON", "PROTOBUF", "AVRO"])


def test_a_leader_of_another_authority_is_not_asked(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarding, "PATIENCE_S", 0.1)
    other = Certificates("127.0.0.1")
    try:
        with served(other) as leads, served(certificates, Leader([Place(OTHER, leads.url)]), certificates.ca) as server:
            status, told = asked(certificates, server.url, "/subjects")
    finally:
        other.remove()
    assert (status, told["error_code"]) == (500, 50003)
    assert "certificate verify failed" in str(told["message"]).lower()


def test_a_leader_without_the_name_of_its_certificate_is_not_asked(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarding, "PATIENCE_S", 0.1)
    with served(certificates) as leads:
        named = leads.url.replace("127.0.0.1", "127.0.0.2")
        with served(certificates, Leader([Place(OTHER, named)]), certificates.ca) as server:
            status, told = asked(certificates, server.url, "/subjects")
    assert (status, told["error_code"]) == (500, 50003)


def test_what_came_over_tls_goes_nowhere_without(certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding, "PATIENCE_S", 0.1)
    upstream = Upstream()
    try:
        with served(certificates, Leader([Place(OTHER, upstream.url)]), certificates.ca) as server:
            status, told = asked(certificates, server.url, "/subjects")
        assert (status, told["error_code"]) == (500, 50004)
        assert "has no TLS" in str(told["message"])
        assert upstream.seen == []
    finally:
        upstream.close()


def test_an_authority_that_cannot_be_read_is_told_at_once() -> None:
    listening = REGISTRY.listening("127.0.0.1", 0, "--listen", public=False)
    with listening, pytest.raises(OSError, match="No such file"):
        RegistryServer(NoStore(), listening, cluster_id="a", leader=Leader([Place(OWN)]), ca="/nowhere.crt")
