"""A broker's TLS listener, through sockets: complete responses; slow, broken and missing handshakes; the principal."""

from __future__ import annotations

import contextlib
import gc
import logging
import socket
import ssl
import struct
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from compat_tests.wire.client import CLOSED, WireClient
from compat_tests.wire.exchanges.produce import batch
from compat_tests.wire.exchanges.produce import request as produce_request
from kbroker import Broker
from kbroker.network import server as server_module
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.connections import ApiVersionsRequest
from kbroker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kbroker.protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from kbroker.security.tls import development
from tests.network.test_connection import frame
from tests.security.tls.conftest import Files

DEADLINE = 20.0


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("strangers"), "another")


@pytest.fixture(scope="module")
def broker(files: Files) -> Iterator[Broker]:
    config = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0,MUTUAL://127.0.0.1:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SSL:SSL,MUTUAL:SSL",
        **files.listener(client_auth="requested"),
        "listener.name.mutual.ssl.client.auth": "required",
        "listener.name.mutual.ssl.principal.mapping.rules": "RULE:^CN=(.*)$/$1/U",
    }
    with Broker(config) as running:
        yield running


@pytest.fixture(scope="module")
def plain(broker: Broker) -> str:
    return broker.bootstrap_servers.split(",")[0]


@pytest.fixture(scope="module")
def secure(broker: Broker) -> str:
    return broker.bootstrap_servers.split(",")[1]


@pytest.fixture(scope="module")
def mutual(broker: Broker) -> str:
    return broker.bootstrap_servers.split(",")[2]


def context(files: Files, certificate: str | None = None) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=files.ca)
    if certificate is not None:
        made.load_cert_chain(certificate)
    return made


class TlsClient(WireClient):
    """A client that speaks TLS."""

    def __init__(self, address: str, made: ssl.SSLContext, name: str = "127.0.0.1") -> None:
        super().__init__(address)
        self._sock = made.wrap_socket(self._sock, server_hostname=name)


def raw(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), DEADLINE)


def until(what: str, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def principals(broker: Broker) -> list[str]:
    return sorted(str(each._context.principal) for each in list(broker.node.server._connections))


@pytest.fixture(scope="module")
def topic(plain: str) -> str:
    with WireClient(plain) as client:
        answer = client.ask(CreateTopicsRequest(topics=[CreatableTopic("over-tls", 1, 1)], timeout_ms=5000), 7)
        assert answer.topics[0].error_code == 0
        for _ in range(30):
            assert client.ask(produce_request("over-tls", batch(size=100_000)), 9)
    return "over-tls"


def fetch(topic: str, size: int) -> FetchRequest:
    partition = FetchPartition(partition=0, partition_max_bytes=size)
    return FetchRequest(
        max_wait_ms=100, min_bytes=1, max_bytes=size, topics=[FetchTopic(topic=topic, partitions=[partition])]
    )


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_answers_are_the_same_as_without(secure: str, plain: str, files: Files, topic: str, version) -> None:
    made = context(files)
    made.minimum_version = made.maximum_version = version
    with TlsClient(secure, made) as client, WireClient(plain) as other:
        for size in (1000, 50_000, 3_000_000):
            request = fetch(topic, size)
            found, expected = client.ask(request, 11), other.ask(request, 11)
            records = [each.responses[0].partitions[0].records for each in (found, expected)]
            assert bytes(records[0]) == bytes(records[1])
        assert len(bytes(records[0])) > 2_500_000


def test_many_requests_at_once_are_answered_in_order(secure: str, files: Files) -> None:
    with TlsClient(secure, context(files)) as client:
        client.send_bytes(b"".join(frame(ApiVersionsRequest(), 0, i) for i in range(3000)))
        assert [struct.unpack_from(">i", client.receive())[0] for _ in range(3000)] == list(range(3000))


def test_requests_larger_than_what_is_received_at_once(secure: str, plain: str, files: Files, topic: str) -> None:
    with TlsClient(secure, context(files)) as client:
        for size in (10, 16_000, 17_000, 64 * 1024, 256 * 1024, 900_000):
            answer = client.ask(produce_request(topic, batch(size=size)), 9)
            assert answer.responses[0].partition_responses[0].error_code == 0


def test_a_client_that_does_not_read_holds_little(secure: str, broker: Broker, files: Files, topic: str) -> None:
    with TlsClient(secure, context(files)) as client:
        client.send_bytes(b"".join(frame(fetch(topic, 3_000_000), 11, i) for i in range(5)))
        until("an answer waits", lambda: broker.node.server.memory.used > 0)
        assert broker.node.server.memory.used < 1_000_000  # 15 MB are requested
        for i in range(5):
            assert struct.unpack_from(">i", client.receive())[0] == i


@pytest.mark.parametrize(
    ("listener", "certificate", "name"),
    [
        ("SSL", None, "User:ANONYMOUS"),
        ("SSL", "trusted", "User:CN=alice"),
        ("MUTUAL", "trusted", "User:ALICE"),
    ],
)
def test_who_a_client_is(
    broker: Broker, secure: str, mutual: str, files: Files, listener: str, certificate: str | None, name: str
) -> None:
    made = context(files, files.client if certificate else None)
    with TlsClient(secure if listener == "SSL" else mutual, made) as client:
        assert client.ask(ApiVersionsRequest(), 0).error_code == 0
        assert principals(broker) == [name]
    until("it is gone", lambda: not principals(broker))


@pytest.mark.parametrize(
    ("listener", "certificate", "words"),
    [
        ("MUTUAL", None, "peer did not return a certificate"),
        ("MUTUAL", "untrusted", "unable to get local issuer certificate"),
        ("SSL", "untrusted", "unable to get local issuer certificate"),
        ("MUTUAL", "expired", "certificate has expired"),
    ],
)
def test_who_is_not_let_in(
    secure: str,
    mutual: str,
    files: Files,
    strangers: Files,
    caplog: pytest.LogCaptureFixture,
    listener: str,
    certificate: str | None,
    words: str,
) -> None:
    own = {None: None, "untrusted": strangers.client, "expired": None}.get(certificate)
    if certificate == "expired":
        own = files.sign("expired", days=-0.01)
    caplog.set_level(logging.INFO, "kbroker.network.refused_connections")
    address = secure if listener == "SSL" else mutual
    with contextlib.suppress(OSError), TlsClient(address, context(files, own)) as client:
        client.send_bytes(frame(ApiVersionsRequest(), 0, 1))
        assert client._sock.recv(100) == b""  # TLSv1.3's handshake is done before the server has looked
    until("a line", lambda: words in caplog.text)


def test_a_name_in_a_certificate_cannot_write_lines_of_the_log(
    mutual: str, files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kbroker.network.refused_connections")
    own = files.write("lines.pem", development.sign(files.authority, "mallory\n[now] INFO all is well").pem())
    with contextlib.suppress(OSError), TlsClient(mutual, context(files, own)) as client:
        client.send_bytes(frame(ApiVersionsRequest(), 0, 1))
        assert client._sock.recv(100) == b""
    until("a line", lambda: "no rule of ssl.principal.mapping.rules fits CN=mallory?" in caplog.text)


def test_a_plaintext_client_on_a_tls_port_and_the_other_way_round(secure: str, plain: str, files: Files) -> None:
    with WireClient(secure) as client:
        client.send_bytes(frame(ApiVersionsRequest(), 0, 1))
        assert client.receive() == CLOSED
    with pytest.raises((ssl.SSLError, ConnectionError)):
        TlsClient(plain, context(files))


def test_versions_and_names_that_do_not_fit(broker: Broker, secure: str, files: Files) -> None:
    old = context(files)
    old.minimum_version = ssl.TLSVersion.TLSv1
    old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.raises(ssl.SSLError):
        TlsClient(secure, old)
    weak = context(files)
    weak.maximum_version = ssl.TLSVersion.TLSv1_2
    weak.set_ciphers("AES128-SHA")  # of RSA keys, which the server does not have
    with pytest.raises(ssl.SSLError):
        TlsClient(secure, weak)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        TlsClient(secure, context(files), "another.host")
    TlsClient(secure, context(files), "localhost").close()
    until("all are gone", lambda: broker.node.server.connection_count == 0)


@pytest.mark.long
def test_handshakes_byte_by_byte_and_hundreds_of_halves_are_not_felt(broker: Broker, secure: str, files: Files) -> None:
    made = context(files)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    slow = made.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        slow.do_handshake()
    hello = outgoing.read()
    halves = [raw(secure) for _ in range(200)]
    try:
        for each in halves:
            each.sendall(hello[: len(hello) // 2])
        until("all have come", lambda: broker.node.server.connection_count >= 200)
        waits = []
        with TlsClient(secure, context(files)) as client:
            for byte in hello[:100]:
                halves[0].sendall(bytes([byte]))
                began = time.monotonic()
                assert client.ask(ApiVersionsRequest(), 0).error_code == 0
                waits.append(time.monotonic() - began)
        assert sorted(waits)[90] < 1.0
    finally:
        for each in halves:
            each.close()
    until("all are gone", lambda: broker.node.server.connection_count == 0)


def test_a_handshake_with_a_client_that_writes_one_byte_at_a_time_comes_to_an_end(secure: str, files: Files) -> None:
    made = context(files)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = made.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with raw(secure) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while True:
            try:
                tls.do_handshake()
                done = True
            except ssl.SSLWantReadError:
                done = False
            for byte in outgoing.read():
                sock.sendall(bytes([byte]))
            if done:
                break
            incoming.write(sock.recv(1 << 16))
        tls.write(frame(ApiVersionsRequest(), 0, 7))
        sock.sendall(outgoing.read())
        answer = b""
        while len(answer) < 8:
            incoming.write(sock.recv(1 << 16))
            try:
                answer += tls.read(1 << 16)
            except ssl.SSLWantReadError:
                continue
    assert struct.unpack_from(">i", answer, 4)[0] == 7


def test_an_endless_handshake_has_its_time(files: Files, monkeypatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(server_module, "HANDSHAKE_SECONDS", 0.3)
    caplog.set_level(logging.INFO, "kbroker.network.refused_connections")
    with Broker({"listeners": "SSL://127.0.0.1:0", **files.listener()}) as own, raw(own.bootstrap_servers) as sock:
        sock.sendall(b"\x16\x03\x01")
        assert sock.recv(100) == b""
        until("a line", lambda: "it took more than 0.3 s" in caplog.text)
        with TlsClient(own.bootstrap_servers, context(files)) as client:
            time.sleep(0.5)  # the time of a completed handshake does not count
            assert client.ask(ApiVersionsRequest(), 0).error_code == 0


def test_who_only_looks_whether_the_port_is_open_is_no_news(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    others = {each.ident for each in threading.enumerate()}  # another broker logs refusals a second later
    with Broker({"listeners": "SSL://127.0.0.1:0", **files.listener()}) as own:
        for _ in range(5):
            raw(own.bootstrap_servers).close()
        with TlsClient(own.bootstrap_servers, context(files)) as client:  # accepted after those five
            assert client.ask(ApiVersionsRequest(), 0).error_code == 0
        until("all are gone", lambda: own.node.server.connection_count == 0)
    told = [each.getMessage() for each in caplog.records if each.thread not in others]
    assert [each for each in told if "handshake" in each] == []
    assert told, "the broker says that it has started"


def test_garbage_does_no_harm(secure: str, broker: Broker, files: Files) -> None:
    with TlsClient(secure, context(files)) as quiet:
        for data in (b"\x16" + bytes(50_000), b"\x16\x03\x01\x02\x00" + b"\xff" * 600, b"\x80\x2e\x01", bytes(100_000)):
            with raw(secure) as sock:
                try:
                    sock.sendall(data)
                    while sock.recv(1 << 16):
                        pass
                except ConnectionError:
                    pass
        assert quiet.ask(ApiVersionsRequest(), 0).error_code == 0


def test_a_stop_with_handshakes_that_go_on(files: Files) -> None:
    with Broker({"listeners": "SSL://127.0.0.1:0", **files.listener()}) as own:
        socks = [raw(own.bootstrap_servers) for _ in range(5)]
        for sock in socks:
            sock.sendall(b"\x16\x03\x01")
        until("all have come", lambda: own.node.server.connection_count == 5)
        began = time.monotonic()
    assert time.monotonic() - began < 10
    for sock in socks:
        sock.close()


def test_a_client_that_says_goodbye_is_gone_and_hears_one(broker: Broker, secure: str, files: Files) -> None:
    client = TlsClient(secure, context(files))
    assert client.ask(ApiVersionsRequest(), 0).error_code == 0
    left = threading.Thread(target=client._sock.unwrap, daemon=True)
    left.start()
    left.join(DEADLINE)
    assert not left.is_alive()
    client.close()
    until("it is gone", lambda: broker.node.server.connection_count == 0)


@pytest.mark.parametrize("how", ["answered", "half", "refused", "goodbye"])
def test_a_connection_that_is_gone_leaves_nothing_to_collect(
    broker: Broker, secure: str, files: Files, how: str
) -> None:
    gc.collect()
    gc.disable()
    try:
        if how in ("half", "refused"):
            sock = raw(secure)
            sock.sendall(b"\x16\x03\x01")
        else:
            client = TlsClient(secure, context(files))
            assert client.ask(ApiVersionsRequest(), 0).error_code == 0
            sock = client._sock
        until("it has come", lambda: broker.node.server.connection_count == 1)
        (held,) = [weakref.ref(each._outbox) for each in list(broker.node.server._connections)]
        if how == "refused":
            sock.sendall(bytes(2000))
            sock.recv(100)
        if how == "goodbye":
            sock.unwrap()  # type: ignore[attr-defined]
        sock.close()
        until("nothing is left", lambda: held() is None)
    finally:
        gc.enable()


def alter(client: WireClient, own: dict[str, str]) -> tuple[int, str]:
    from kbroker.protocol.messages.configs import (
        IncrementalAlterConfigsRequest,
        IncrementalConfig,
        IncrementalResource,
    )

    configs = [IncrementalConfig(name=name, config_operation=0, value=value) for name, value in own.items()]
    resource = IncrementalResource(resource_type=4, resource_name="1", configs=configs)
    answer = client.ask(IncrementalAlterConfigsRequest(resources=[resource], validate_only=False), 1)
    return answer.responses[0].error_code, answer.responses[0].error_message or ""


def serial(address: str, files: Files) -> int:
    with TlsClient(address, context(files)) as client:
        found = client._sock.getpeercert()
        assert found is not None
        return int(str(found["serialNumber"]), 16)


def test_keys_are_replaced_while_clients_go_on(broker: Broker, secure: str, plain: str, files: Files) -> None:
    key = "listener.name.ssl.ssl.keystore.location"
    first = serial(secure, files)
    held = TlsClient(secure, context(files))
    path = files.write("renewed.pem", development.sign(files.authority, "server", ["localhost", "127.0.0.1"]).pem())
    with WireClient(plain) as client:
        assert alter(client, {key: path}) == (0, "")
        second = serial(secure, files)
        assert second != first
        # The same path is set again: its file is read anew.
        Path(path).write_bytes(development.sign(files.authority, "server", ["localhost", "127.0.0.1"]).pem())
        assert serial(secure, files) == second
        assert alter(client, {key: path}) == (0, "")
        third = serial(secure, files)
        assert third != second
        for signed, words in (
            (development.sign(files.authority, "server", ["localhost"]), "SubjectAltNames do not match"),
            (development.sign(files.authority, "x", ["localhost", "127.0.0.1"]), "DistinguishedName does not match"),
        ):
            code, message = alter(client, {key: files.write("less.pem", signed.pem())})
            assert code == 42
            assert words in message
        code, message = alter(client, {key: "/nowhere.pem"})
        assert code == 42
        assert "cannot read /nowhere.pem" in message
        assert serial(secure, files) == third
    assert held.ask(ApiVersionsRequest(), 0).error_code == 0
    held.close()


def test_an_embedded_broker_makes_its_own_certificates() -> None:
    with Broker(tls=True) as own:
        made = ssl.create_default_context(cafile=own.certificates.ca)
        made.load_cert_chain(own.certificates.client("alice"))
        with TlsClient(own.bootstrap_servers, made) as client:
            assert client.ask(ApiVersionsRequest(), 0).error_code == 0
            assert principals(own) == ["User:CN=alice"]
        directory = Path(own.certificates.ca).parent
    assert not directory.exists()
    with pytest.raises(RuntimeError, match="tls=True"):
        assert Broker().certificates


def test_rights_are_those_of_the_name_in_the_certificate(files: Files) -> None:
    settings = {
        "listeners": "SSL://127.0.0.1:0",
        **files.listener(client_auth="required"),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:CN=admin,O=Example;User:CN=server",
    }
    name = x509.Name(
        [x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Example"), x509.NameAttribute(NameOID.COMMON_NAME, "admin")]
    )
    admin = files.write("admin.pem", development.sign(files.authority, name).pem())
    codes = {}
    with Broker(settings) as own:
        for who, certificate in (("alice", files.client), ("admin", admin)):
            with TlsClient(own.bootstrap_servers, context(files, certificate)) as client:
                request = CreateTopicsRequest(topics=[CreatableTopic("of-rights", 1, 1)], timeout_ms=5000)
                codes[who] = client.ask(request, 7).topics[0].error_code
    assert codes == {"alice": ErrorCode.TOPIC_AUTHORIZATION_FAILED, "admin": 0}
