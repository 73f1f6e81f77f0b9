"""A broker with SASL: which requests its clients may send before they have authenticated, frame by frame."""

from __future__ import annotations

import logging
import struct
import time

import pytest

from compat_tests.wire.client import CLOSED, SILENCE, WireClient
from kbroker import Broker
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.cluster import MetadataRequest
from kbroker.protocol.messages.connections import ApiVersionsRequest, SaslAuthenticateRequest, SaslHandshakeRequest
from kbroker.protocol.messages.topics import CreatableTopic, CreateTopicsRequest

USERS = (
    'org.apache.kafka.common.security.plain.PlainLoginModule required username="a" password="b" user_alice="hunter2";'
)
SASL = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": USERS,
    "socket.request.max.bytes": "1000000",
}
DELAY_S = 0.1
RIGHT = b"\0alice\0hunter2"
VERSIONS = ApiVersionsRequest(client_software_name="t", client_software_version="1")


@pytest.fixture(scope="module")
def secured():
    with Broker(SASL, strict=True) as running:
        yield running


@pytest.fixture
def connect(secured):
    clients = []

    def open_one(listener=0):
        clients.append(WireClient(secured.bootstrap_servers.split(",")[listener]))
        return clients[-1]

    yield open_one
    for client in clients:
        client.close()


def log_in(client, token=RIGHT, version=2):
    assert client.ask(SaslHandshakeRequest("PLAIN"), 1).error_code == 0
    return client.ask(SaslAuthenticateRequest(token), version)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_who_knows_the_password_is_served(connect, version):
    client = connect()
    assert client.ask(VERSIONS, 4).error_code == 0
    answer = client.ask(SaslHandshakeRequest("PLAIN"), 1)
    assert (answer.error_code, answer.mechanisms) == (0, ["PLAIN"])
    answer = client.ask(SaslAuthenticateRequest(RIGHT), version)
    assert (answer.error_code, answer.error_message, answer.auth_bytes, answer.session_lifetime_ms) == (0, "", b"", 0)
    assert len(client.ask(MetadataRequest(topics=[]), 9).brokers) == 1


def test_the_name_is_that_of_the_connection(secured, connect):
    client = connect()
    log_in(client)
    names = {str(each._context.principal) for each in secured.node.server._connections}
    assert "User:alice" in names


@pytest.mark.long
def test_large_requests_are_taken_once_a_client_is_in(connect):
    client = connect()
    log_in(client)
    topics = [CreatableTopic("x" * 200 + str(i), 1, 1) for i in range(3000)]
    assert len(client.ask(CreateTopicsRequest(topics=topics, validate_only=True, timeout_ms=5000), 7).topics) == 3000


def test_tokens_are_bare_after_a_handshake_of_version_0(connect):
    client = connect()
    assert client.ask(SaslHandshakeRequest("PLAIN"), 0).error_code == 0
    client.send_bytes(struct.pack(">i", len(RIGHT)) + RIGHT)
    assert client.receive() == b""
    assert client.ask(MetadataRequest(topics=[]), 9).brokers


def test_a_wrong_bare_token_is_not_even_answered(connect):
    client = connect()
    client.ask(SaslHandshakeRequest("PLAIN"), 0)
    started = time.monotonic()
    client.send_bytes(struct.pack(">i", 5) + b"\0a\0bc")
    assert client.receive() == CLOSED
    assert time.monotonic() - started >= DELAY_S * 0.9


@pytest.mark.parametrize("token", [b"\0alice\0wrong", b"\0bob\0hunter2"])
def test_a_wrong_password_is_told_after_a_while_and_then_the_connection_closes(connect, caplog, token):
    client = connect()
    started = time.monotonic()
    with caplog.at_level(logging.INFO, "kbroker"):
        answer = log_in(client, token)
        assert time.monotonic() - started >= DELAY_S * 0.9
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert answer.error_message == "Authentication failed: Invalid username or password"
        assert client.receive() == CLOSED
    lines = [each.getMessage() for each in caplog.records if "closing the connection" in each.getMessage()]
    assert len(lines) == 1
    assert "hunter2" not in lines[0]
    assert "wrong" not in lines[0]


def test_what_comes_behind_a_failure_is_never_looked_at(connect):
    client = connect()
    client.ask(SaslHandshakeRequest("PLAIN"), 1)
    client.start(SaslAuthenticateRequest(b"\0alice\0wrong"), 2)
    pending = client._pending
    client.start(SaslAuthenticateRequest(RIGHT), 2)
    client.start(MetadataRequest(topics=None), 9)
    client._pending = pending
    assert client.finish().error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert client.receive() == CLOSED


def test_a_mechanism_that_is_not_offered_is_refused_with_those_that_are(connect):
    client = connect()
    started = time.monotonic()
    answer = client.ask(SaslHandshakeRequest("SCRAM-SHA-1"), 1)
    assert time.monotonic() - started >= DELAY_S * 0.9
    assert (answer.error_code, answer.mechanisms) == (ErrorCode.UNSUPPORTED_SASL_MECHANISM, ["PLAIN"])
    assert client.receive() == CLOSED


@pytest.mark.parametrize("version", [0, 9, 12])
def test_before_the_handshake_nothing_else_is_answered(connect, version):
    client = connect()
    assert client.ask(MetadataRequest(topics=[]), version) == CLOSED


def test_a_token_needs_a_handshake(connect):
    assert connect().ask(SaslAuthenticateRequest(RIGHT), 2) == CLOSED


def test_versions_are_told_once_and_only_before_the_handshake(connect):
    client = connect()
    assert client.ask(VERSIONS, 3).error_code == 0
    assert client.ask(VERSIONS, 3) == CLOSED


def test_a_version_of_apiversions_that_is_not_known_may_be_asked_for_again(connect):
    client = connect()
    client.send_bytes(struct.pack(">ihhih", 10, 18, 99, 7, -1))
    assert struct.unpack_from(">ih", client.receive()) == (7, ErrorCode.UNSUPPORTED_VERSION)
    assert client.ask(ApiVersionsRequest(client_software_name="-"), 3).error_code == ErrorCode.INVALID_REQUEST
    assert client.ask(VERSIONS, 3).error_code == 0
    assert log_in(client).error_code == 0


def test_what_comes_instead_of_a_token_is_told_so_and_the_connection_closes(connect):
    client = connect()
    client.ask(SaslHandshakeRequest("PLAIN"), 1)
    answer = client.ask(MetadataRequest(topics=None), 9)
    assert not answer.brokers
    assert not answer.topics
    assert client.receive() == CLOSED


@pytest.mark.parametrize("size", [524_289, 999_999, 2**31 - 1])
def test_a_frame_larger_than_an_authentication_closes_at_once(connect, size):
    client = connect()
    client.send_bytes(struct.pack(">i", size))
    assert client.receive() == CLOSED


def test_a_claimed_size_takes_no_memory(secured, connect):
    client = connect()
    client.send_bytes(struct.pack(">ihh", 524_288, 36, 2))
    assert client.receive(0.2) == SILENCE
    held = [each._frames.granted for each in secured.node.server._connections if each._frames.kept is not None]
    assert held
    assert max(held) <= 64 * 1024


def test_a_long_token_is_a_wrong_one(connect):
    client = connect()
    answer = log_in(client, b"\0alice\0" + b"x" * 500_000)
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert client.receive() == CLOSED


def test_nobody_authenticates_twice_where_sessions_have_no_end(connect):
    client = connect()
    log_in(client)
    assert client.ask(SaslHandshakeRequest("PLAIN"), 1).error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert client.ask(SaslAuthenticateRequest(RIGHT), 2).error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert client.ask(MetadataRequest(topics=[]), 9).brokers


def test_a_listener_without_sasl_asks_nobody(connect):
    client = connect(listener=1)
    assert client.ask(MetadataRequest(topics=[]), 9).brokers
    assert client.ask(SaslHandshakeRequest("PLAIN"), 1).error_code == ErrorCode.ILLEGAL_SASL_STATE


def test_a_client_that_is_in_costs_what_one_without_sasl_costs(secured, connect):
    """An authenticated client costs what one without SASL costs: the check is done per connection, not per request."""
    client = connect()
    dispatcher = secured.node.server.dispatcher
    log_in(client)
    client.ask(MetadataRequest(topics=[]), 9)
    inside = [each for each in secured.node.server._connections if each._context.principal.name == "alice"]
    assert inside
    assert all(each.run == dispatcher.entrance for each in inside)


def test_the_users_are_not_shown(connect):
    from kbroker.protocol.messages.configs import DescribeConfigsRequest, DescribeConfigsResource

    client = connect()
    log_in(client)
    answer = client.ask(DescribeConfigsRequest(resources=[DescribeConfigsResource(4, "1", None)]), 4)
    shown = [each for each in answer.results[0].configs if each.name.endswith("jaas.config")]
    assert shown
    assert all(each.value is None and each.is_sensitive for each in shown)
    assert "hunter2" not in repr(answer)
