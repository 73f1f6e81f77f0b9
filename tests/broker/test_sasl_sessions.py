"""Sessions that expire: their reported lifetime, re-authentication, and clients that do not re-authenticate."""

from __future__ import annotations

import logging

import pytest

from compat_tests.wire.client import CLOSED, WireClient
from kbroker import Broker
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.cluster import MetadataRequest
from kbroker.protocol.messages.connections import SaslAuthenticateRequest, SaslHandshakeRequest
from kbroker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kbroker.protocol.messages.topics import CreatableTopic, CreateTopicsRequest

USERS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="a" user_bob="b";'
ALICE, BOB = b"\0alice\0a", b"\0bob\0b"
SCRAM = "SCRAM-SHA-256"


class Time:
    """A clock that a test moves."""

    def __init__(self):
        self.ms = 1_000_000

    def now_ms(self):
        return self.ms

    def monotonic_ms(self):
        return float(self.ms)


@pytest.fixture
def clock():
    return Time()


@pytest.fixture
def connect(clock):
    settings = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": f"PLAIN,{SCRAM}",
        "sasl.jaas.config": USERS,
        "connections.max.reauth.ms": "10000",
    }
    clients = []
    with Broker(settings, clock=clock) as running:

        def open_one(token=ALICE):
            clients.append(WireClient(running.bootstrap_servers))
            assert log_in(clients[-1], token).session_lifetime_ms == 10_000
            return clients[-1]

        yield open_one
        for client in clients:
            client.close()


def log_in(client, token=ALICE, mechanism="PLAIN", version=2):
    answer = client.ask(SaslHandshakeRequest(mechanism), 1)
    assert answer == CLOSED or answer.error_code in (0, ErrorCode.ILLEGAL_SASL_STATE)
    return answer if answer == CLOSED or answer.error_code else client.ask(SaslAuthenticateRequest(token), version)


def is_served(client):
    answer = client.ask(MetadataRequest(topics=[]), 9)
    return answer != CLOSED and bool(answer.brokers)


def test_who_does_not_authenticate_again_is_closed_at_the_next_request(connect, clock, caplog):
    client = connect()
    clock.ms += 10_000
    assert is_served(client)
    clock.ms += 1
    with caplog.at_level(logging.INFO, "kbroker"):
        assert not is_served(client)
    assert "session is over" in caplog.text


def test_who_does_goes_on_also_after_the_end(connect, clock):
    client = connect()
    for ms in (5000, 10_000, 10_001, 60_000):
        clock.ms += ms
        assert log_in(client).session_lifetime_ms == 10_000
        assert is_served(client)


def test_version_0_does_not_tell_how_long(connect, clock):
    client = connect()
    clock.ms += 5000
    assert log_in(client, version=0).error_code == 0
    clock.ms += 10_001
    assert not is_served(client)


def test_twice_within_a_second_is_refused_and_the_session_goes_on(connect, clock):
    client = connect()
    assert log_in(client).error_code == 0
    clock.ms += 999
    assert log_in(client).error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert is_served(client)
    clock.ms += 1
    assert log_in(client).error_code == 0


def test_the_name_must_not_change(connect, clock):
    client = connect()
    clock.ms += 5000
    answer = log_in(client, BOB)
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert "Cannot change principals" in answer.error_message
    assert client.receive() == CLOSED


def test_the_mechanism_must_not_change(connect, clock):
    client = connect()
    clock.ms += 5000
    assert log_in(client, b"n,,n=alice,r=x", SCRAM) == CLOSED


def test_a_mechanism_that_is_not_offered_is_not_even_answered_then(connect, clock):
    client = connect()
    clock.ms += 5000
    assert client.ask(SaslHandshakeRequest("X"), 1) == CLOSED


def test_a_wrong_password_ends_a_session(connect, clock):
    client = connect()
    clock.ms += 5000
    answer = log_in(client, b"\0alice\0x")
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert client.receive() == CLOSED


def test_what_is_asked_between_handshake_and_token_ends_a_session(connect, clock):
    client = connect()
    clock.ms += 5000
    assert client.ask(SaslHandshakeRequest("PLAIN"), 1).error_code == 0
    answer = client.ask(MetadataRequest(topics=None), 9)
    assert not answer.brokers
    assert client.receive() == CLOSED


def test_what_was_asked_before_is_answered_before(connect, clock):
    client = connect()
    client.ask(CreateTopicsRequest(topics=[CreatableTopic("waited", 1, 1)], timeout_ms=5000), 7)
    partitions = [FetchPartition(partition=0, partition_max_bytes=100)]
    fetch = FetchRequest(max_wait_ms=200, min_bytes=1, topics=[FetchTopic(topic="waited", partitions=partitions)])
    client.start(fetch, 11)
    asked = client._pending
    client.start(SaslHandshakeRequest("PLAIN"), 1)
    shaken = client._pending
    client.start(SaslAuthenticateRequest(ALICE), 2)
    last = client._pending
    for pending in (asked, shaken, last):
        client._pending = pending
        assert client.finish().error_code == 0
    assert is_served(client)
