"""SASL PLAIN, message by message."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.security.sasl.authentication import AuthenticationFailed
from kbroker.security.sasl.plain import PlainClient, PlainServer, passwords

KNOWN = {"alice": "secret", "bob": "", "zoë": "пароль"}


@pytest.mark.parametrize(
    "message",
    [b"\0alice\0secret", b"alice\0alice\0secret", "\0zoë\0пароль".encode()],
    ids=["plain", "authzid", "utf-8"],
)
def test_who_knows_the_password_is_let_in(message):
    server = PlainServer(KNOWN)
    assert server.respond(message) == b""
    assert server.identity.name == message.split(b"\0")[1].decode()
    assert server.identity.expires_ms is None


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (b"\0alice\0wrong", "Authentication failed: Invalid username or password"),
        (b"\0alice\0secret ", "Authentication failed: Invalid username or password"),
        (b"\0nobody\0secret", "Authentication failed: Invalid username or password"),
        (b"\0Alice\0secret", "Authentication failed: Invalid username or password"),
        (b"\0\0secret", "Authentication failed: username not specified"),
        (b"\0alice\0", "Authentication failed: password not specified"),
        (b"\0bob\0", "Authentication failed: password not specified"),
        (
            b"bob\0alice\0secret",
            "Authentication failed: Client requested an authorization id that is different from username",
        ),
        (b"bob\0alice\0wrong", "Authentication failed: Invalid username or password"),
        (b"", "Invalid SASL/PLAIN response: expected 3 tokens, got 1"),
        (b"alice\0secret", "Invalid SASL/PLAIN response: expected 3 tokens, got 2"),
        (b"\0alice\0secret\0\0\0", "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
        (b"\xff\xfe\0\xff\0\xff", "Authentication failed: Invalid username or password"),
    ],
)
def test_who_does_not_is_told_no_more_than_that(message, told):
    server = PlainServer(KNOWN)
    with pytest.raises(AuthenticationFailed) as failed:
        server.respond(message)
    assert failed.value.client_message == told
    assert server.identity is None
    assert "secret" not in str(failed.value)


def test_there_is_one_message():
    server = PlainServer(KNOWN)
    server.respond(b"\0alice\0secret")
    with pytest.raises(AuthenticationFailed):
        server.respond(b"\0alice\0secret")


@given(st.binary(max_size=200))
def test_whatever_comes_fails_or_names_a_known_user(message):
    server = PlainServer(KNOWN)
    try:
        server.respond(message)
    except AuthenticationFailed:
        assert server.identity is None
    else:
        assert KNOWN[server.identity.name]


def test_users_are_read_from_the_options_of_the_login_module():
    options = {"username": "broker", "password": "x", "user_alice": "secret", "user_": "y", "serviceName": "kafka"}
    assert passwords(options) == {"alice": "secret", "": "y"}


def test_a_client_says_what_the_server_takes():
    server, client = PlainServer(KNOWN), PlainClient("zoë", "пароль")
    assert client.respond(server.respond(client.first())) is None
    assert server.identity.name == "zoë"
