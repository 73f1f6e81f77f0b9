"""The course of an authentication: which step may follow, the session's lifetime, and re-authentication."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.security.principal import Principal
from kbroker.security.sasl.authentication import (
    Authentication,
    AuthenticationFailed,
    Identity,
    MechanismChanged,
    Offer,
    Stage,
    UnsupportedMechanism,
)
from kbroker.security.sasl.plain import PlainServer
from kbroker.security.sasl.scram import ScramServer


class Token:
    """A mechanism whose token is a name, or a name and when it expires."""

    identity = None

    def respond(self, token):
        if token == b"more":
            return b"go on"
        name, _, expires = token.decode().partition(" ")
        self.identity = Identity(name, int(expires) if expires else None)
        return b"welcome"


class Time:
    wall = 1_000_000
    monotonic = 50.0

    def now_ms(self):
        return self.wall

    def monotonic_ms(self):
        return self.monotonic

    def passes(self, ms):
        self.wall += ms
        self.monotonic += ms


@pytest.fixture
def time():
    return Time()


def authentication(time, **longest):
    offer = Offer({"TOKEN": Token, "PLAIN": lambda: PlainServer({"alice": "secret"})}, longest, 100, 100)
    return Authentication(offer, time.now_ms, time.monotonic_ms)


def log_in(one, token=b"alice", mechanism="TOKEN"):
    one.handshake(mechanism, 1)
    return one.token(token)


def test_a_client_that_is_in_stays_without_end(time):
    one = authentication(time)
    assert one.stage is Stage.FIRST
    one.versions_answered()
    assert one.stage is Stage.HANDSHAKE
    one.handshake("TOKEN", 1)
    assert (one.stage, one.wrapped) == (Stage.TOKENS, True)
    assert one.token(b"more") == (b"go on", 0)
    assert one.token(b"alice") == (b"welcome", 0)
    assert (one.stage, one.principal, one.session.ends_ms) == (Stage.DONE, Principal("User", "alice"), None)
    time.passes(10**12)
    assert not one.session.is_over
    assert not one.begin_again()


def test_after_a_handshake_of_version_0_tokens_come_bare(time):
    one = authentication(time)
    one.handshake("TOKEN", 0)
    assert not one.wrapped


@pytest.mark.parametrize("name", ["", "plain", "GSSAPI", "PLAIN "])
def test_a_mechanism_that_is_not_offered_ends_it(time, name):
    one = authentication(time)
    with pytest.raises(UnsupportedMechanism):
        one.handshake(name, 1)
    assert one.stage is Stage.FAILED
    with pytest.raises(AuthenticationFailed):
        one.handshake("TOKEN", 1)
    with pytest.raises(AuthenticationFailed):
        one.token(b"alice")
    assert one.principal is None


def test_a_failure_is_the_end(time):
    one = authentication(time)
    with pytest.raises(AuthenticationFailed) as failed:
        log_in(one, b"\0alice\0wrong", "PLAIN")
    assert one.client_message(failed.value) == "Authentication failed: Invalid username or password"
    for _ in range(2):
        with pytest.raises(AuthenticationFailed):
            one.token(b"\0alice\0secret")
    assert (one.stage, one.principal) == (Stage.FAILED, None)


def test_what_is_no_message_of_a_mechanism_is_told_in_general_words(time):
    one = authentication(time)
    one._offer.begin["SCRAM-SHA-256"] = lambda: ScramServer("SCRAM-SHA-256", {}.get)
    with pytest.raises(AuthenticationFailed) as failed:
        log_in(one, b"x", "SCRAM-SHA-256")
    text = "Authentication failed during authentication due to invalid credentials with SASL mechanism SCRAM-SHA-256"
    assert one.client_message(failed.value) == text


def test_a_session_lasts_as_long_as_the_shorter_of_token_and_setting(time):
    assert log_in(authentication(time, TOKEN=5000), b"alice") == (b"welcome", 5000)
    assert log_in(authentication(time, TOKEN=5000), b"alice 1003000") == (b"welcome", 3000)
    assert log_in(authentication(time, TOKEN=5000), b"alice 1009000") == (b"welcome", 5000)
    assert log_in(authentication(time), b"alice 1003000") == (b"welcome", 3000)
    assert log_in(authentication(time), b"alice 900000") == (b"welcome", 0)


def test_a_session_is_over_when_its_time_is(time):
    one = authentication(time, TOKEN=5000)
    log_in(one)
    time.passes(5000)
    assert not one.session.is_over
    time.passes(1)
    assert one.session.is_over
    assert one.begin_again()
    assert log_in(one) == (b"welcome", 5000)
    assert not one.session.is_over


def test_nobody_authenticates_again_within_a_second(time):
    one = authentication(time, TOKEN=5000)
    log_in(one)
    assert one.begin_again()
    log_in(one)
    time.passes(999)
    assert not one.begin_again()
    assert one.stage is Stage.DONE
    time.passes(1)
    assert one.begin_again()


def test_neither_name_nor_mechanism_may_change(time):
    one = authentication(time, TOKEN=5000, PLAIN=5000)
    log_in(one)
    one.begin_again()
    with pytest.raises(AuthenticationFailed) as failed:
        log_in(one, b"bob")
    assert one.client_message(failed.value) == "Cannot change principals during re-authentication"
    assert one.stage is Stage.FAILED

    other = authentication(time, TOKEN=5000, PLAIN=5000)
    log_in(other)
    other.begin_again()
    other.handshake("PLAIN", 1)
    with pytest.raises(MechanismChanged):
        other.token(b"\0alice\0secret")
    assert other.stage is Stage.FAILED


STEPS = st.one_of(
    st.tuples(st.just("versions")),
    st.tuples(st.just("handshake"), st.sampled_from(["PLAIN", "TOKEN", "", "X"]), st.sampled_from([0, 1])),
    st.tuples(st.just("token"), st.one_of(st.binary(max_size=30), st.just(b"\0alice\0secret"))),
    st.tuples(st.just("again")),
)


@given(st.lists(STEPS, max_size=12))
def test_no_sequence_lets_anybody_in_without_the_password(steps):
    time = Time()
    one = authentication(time)
    one._offer = Offer({"PLAIN": lambda: PlainServer({"alice": "secret"})}, {"PLAIN": 10}, 100, 100)
    right = False
    for step in steps:
        try:
            if step[0] == "versions" and one.stage is Stage.FIRST:
                one.versions_answered()
            elif step[0] == "handshake":
                one.handshake(step[1], step[2])
            elif step[0] == "token":
                one.token(step[1])
                right = right or step[1].split(b"\0")[1:] == [b"alice", b"secret"]
            elif step[0] == "again":
                one.begin_again()
        except AuthenticationFailed:
            assert one.stage is Stage.FAILED
    assert (one.stage is not Stage.DONE and one.principal is None) or right
