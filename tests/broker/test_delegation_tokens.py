"""Delegation tokens by request: created, renewed, expired, described; and clients that log in with them."""

from __future__ import annotations

import base64
import time
from types import SimpleNamespace

import pytest

from compat_tests.wire.client import CLOSED, WireClient
from kbroker import Broker
from kbroker.handlers.delegation_tokens import is_allowed
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.access import (
    CreatableRenewers,
    CreateDelegationTokenRequest,
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
)
from kbroker.protocol.messages.cluster import MetadataRequest
from kbroker.protocol.messages.configs import DescribeConfigsRequest, DescribeConfigsResource
from kbroker.protocol.messages.connections import SaslAuthenticateRequest, SaslHandshakeRequest
from kbroker.security.principal import ANONYMOUS, Principal
from kbroker.security.sasl.scram import ScramClient
from tests.broker.test_scram_credentials import alter, upsertion

SECRET = "a secret of all brokers"
USERS = ("alice", "bob", "carol")
DAY_MS = 86_400_000
SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
    "delegation.token.secret.key": SECRET,
    "connection.failed.authentication.delay.ms": "0",
}
PATIENCE_S = 20


class Time:
    """A clock that a test moves."""

    def __init__(self):
        self.ms = 1_700_000_000_000

    def now_ms(self):
        return self.ms

    def monotonic_ms(self):
        return float(self.ms)


class TokenClient(ScramClient):
    """A client that sends what Java's client sends with tokenauth="true"."""

    def __init__(self, mechanism, token_id, password):
        super().__init__(mechanism, token_id, password)
        self._bare += ",tokenauth=true"


def converse(client, one, mechanism):
    """Authenticate; return the session's lifetime in ms, or None if authentication failed."""
    assert client.ask(SaslHandshakeRequest(mechanism), 1).error_code == 0
    token = one.first()
    while token is not None:
        answer = client.ask(SaslAuthenticateRequest(token), 2)
        if answer.error_code:
            text = "Authentication failed during authentication due to invalid credentials with SASL mechanism"
            assert answer.error_message == f"{text} {mechanism}"
            return None
        token = one.respond(bytes(answer.auth_bytes))
    return answer.session_lifetime_ms


class Side:
    """A broker with users, and connections to it, which are closed with it."""

    def __init__(self, running):
        self.running = running
        self.clients = []
        changed = alter(self.connect(0), *(upsertion(name, f"{name}-password") for name in USERS))
        assert changed == dict.fromkeys(USERS, (0, None))

    def connect(self, listener=1):
        self.clients.append(WireClient(self.running.bootstrap_servers.split(",")[listener]))
        return self.clients[-1]

    def log_in(self, name="alice"):
        client = self.connect()
        mechanism = "SCRAM-SHA-256"
        assert converse(client, ScramClient(mechanism, name, f"{name}-password"), mechanism) == 0
        return client

    def by_token(self, token, mechanism="SCRAM-SHA-256", password=None):
        """Return a connection, and its session's lifetime; None if authentication failed."""
        client = self.connect()
        password = password or base64.b64encode(bytes(token.hmac)).decode()
        return client, converse(client, TokenClient(mechanism, token.token_id, password), mechanism)

    def close(self):
        for client in self.clients:
            client.close()


@pytest.fixture
def clock():
    return Time()


@pytest.fixture
def side(clock, tmp_path):
    with Broker(SETTINGS, clock=clock, data_dir=tmp_path, strict=True) as running:
        one = Side(running)
        yield one
        one.close()


def create(client, version=3, renewers=(), lifetime=-1, owner=(None, None)):
    some = [CreatableRenewers("User", name) for name in renewers]
    kind, name = owner
    return client.ask(CreateDelegationTokenRequest(kind, name, some, lifetime), version)


def describe(client, *owners, version=3):
    asked = [DescribeDelegationTokenOwner("User", name) for name in owners]
    answer = client.ask(DescribeDelegationTokenRequest(owners=asked or None), version)
    assert answer.error_code == 0
    return {each.token_id: each for each in answer.tokens}


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_token_from_its_first_day_to_the_last(side, clock, version):
    alice, bob = side.log_in(), side.log_in("bob")
    made = create(alice, version, ["bob"])
    assert (made.error_code, made.principal_type, made.principal_name) == (0, "User", "alice")
    assert made.issue_timestamp_ms == clock.ms
    assert made.expiry_timestamp_ms == clock.ms + DAY_MS
    assert made.max_timestamp_ms == clock.ms + 7 * DAY_MS
    assert len(made.hmac) == 64
    (described,) = describe(bob, version=version).values()
    assert (described.token_id, described.hmac) == (made.token_id, made.hmac)
    assert [(each.principal_type, each.principal_name) for each in described.renewers] == [("User", "bob")]
    assert described.token_requester_principal_name == ("alice" if version == 3 else "")
    clock.ms += DAY_MS
    renewed = bob.ask(RenewDelegationTokenRequest(made.hmac, -1), min(version, 2))
    assert (renewed.error_code, renewed.expiry_timestamp_ms) == (0, clock.ms + DAY_MS)
    assert describe(alice)[made.token_id].expiry_timestamp == clock.ms + DAY_MS
    ended = alice.ask(ExpireDelegationTokenRequest(made.hmac, 1000), min(version, 2))
    assert (ended.error_code, ended.expiry_timestamp_ms) == (0, clock.ms + 1000)
    clock.ms += 1001
    assert alice.ask(RenewDelegationTokenRequest(made.hmac, -1), 2).error_code == ErrorCode.DELEGATION_TOKEN_EXPIRED
    gone = alice.ask(ExpireDelegationTokenRequest(made.hmac, -1), 2)
    assert (gone.error_code, gone.expiry_timestamp_ms) == (0, clock.ms)
    again = alice.ask(ExpireDelegationTokenRequest(made.hmac, -1), 2)
    assert (again.error_code, again.expiry_timestamp_ms) == (ErrorCode.DELEGATION_TOKEN_NOT_FOUND, 0)
    assert describe(alice) == {}


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_who_shows_a_token_is_its_owner_as_long_as_it_lasts(side, clock, mechanism):
    alice = side.log_in()
    made = create(alice, lifetime=5000)
    client, lifetime = side.by_token(made, mechanism)
    assert lifetime == 5000
    assert client.ask(MetadataRequest(topics=[]), 9).brokers
    for refused in (
        create(client),
        client.ask(RenewDelegationTokenRequest(made.hmac, -1), 2),
        client.ask(ExpireDelegationTokenRequest(made.hmac, -1), 2),
        client.ask(DescribeDelegationTokenRequest(owners=None), 3),
    ):
        assert refused.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    assert side.by_token(made, mechanism, password="wrong")[1] is None
    alice.ask(ExpireDelegationTokenRequest(made.hmac, 1000), 2)
    assert side.by_token(made, mechanism)[1] == 1000
    alice.ask(ExpireDelegationTokenRequest(made.hmac, -1), 2)
    assert side.by_token(made, mechanism)[1] is None
    clock.ms += 4000
    assert client.ask(MetadataRequest(topics=[]), 9).brokers  # its session continues
    clock.ms += 1001
    assert client.ask(MetadataRequest(topics=[]), 9) == CLOSED
    assert alice.ask(MetadataRequest(topics=[]), 9).brokers


def test_a_token_that_has_expired_lets_nobody_in_and_is_removed_some_time(clock, tmp_path):
    settings = {**SETTINGS, "delegation.token.expiry.check.interval.ms": "60000"}
    with Broker(settings, clock=clock, data_dir=tmp_path) as running:
        side = Side(running)
        alice = side.log_in()
        made, other = create(alice, lifetime=5000), create(alice)
        clock.ms += 5001
        assert side.by_token(made)[1] is None
        assert set(describe(alice)) == {made.token_id, other.token_id}
        clock.ms += 60_000
        deadline = time.monotonic() + PATIENCE_S
        while made.token_id in describe(alice):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert set(describe(alice)) == {other.token_id}
        side.close()


def test_only_somebody_may_ask(side):
    client = side.connect(0)
    made = create(side.log_in())
    refused = create(client, owner=("User", "bob"))
    assert refused.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    assert (refused.principal_name, refused.token_requester_principal_name) == ("bob", "ANONYMOUS")
    assert (refused.issue_timestamp_ms, refused.expiry_timestamp_ms, refused.max_timestamp_ms) == (-1, -1, -1)
    for request in (RenewDelegationTokenRequest(made.hmac, 1), ExpireDelegationTokenRequest(made.hmac, -1)):
        answer = client.ask(request, 2)
        expected = (ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, -1)
        assert (answer.error_code, answer.expiry_timestamp_ms) == expected
    answer = client.ask(DescribeDelegationTokenRequest(owners=None), 3)
    assert (answer.error_code, answer.tokens) == (ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, [])


@pytest.mark.parametrize(
    ("protocol", "principal", "allowed"),
    [
        ("PLAINTEXT", Principal("User", "alice"), False),
        ("SSL", ANONYMOUS, False),
        ("SSL", Principal("User", "CN=alice"), True),
        ("SASL_SSL", Principal("User", "alice"), True),
        ("SASL_SSL", ANONYMOUS, True),  # a user with that name
        ("SASL_SSL", Principal("User", "alice", by_token=True), False),
        ("SASL_PLAINTEXT", Principal("User", "alice"), True),
    ],
)
def test_who_may_ask(protocol, principal, allowed):
    listeners = SimpleNamespace(protocols={"INSIDE": protocol})
    services = SimpleNamespace(config=SimpleNamespace(listeners=listeners))
    ctx = SimpleNamespace(listener="INSIDE", principal=principal, services=services)
    assert is_allowed(ctx) is allowed


def test_owners_requesters_and_renewers(side):
    alice, bob, carol = (side.log_in(name) for name in ("alice", "bob", "carol"))
    made = create(alice, renewers=["carol"], owner=("User", "bob"))
    assert (made.principal_name, made.token_requester_principal_name) == ("bob", "alice")
    for client in (alice, bob, carol):
        assert set(describe(client)) == {made.token_id}
        for name, seen in (("alice", True), ("bob", True), ("carol", True), ("dave", False)):
            assert (made.token_id in describe(client, name)) is seen
    empty = alice.ask(DescribeDelegationTokenRequest(owners=[]), 3)
    assert (empty.error_code, empty.tokens) == (0, [])
    assert alice.ask(RenewDelegationTokenRequest(made.hmac, 1), 2).error_code == (
        ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    )
    for client in (bob, carol):
        assert client.ask(RenewDelegationTokenRequest(made.hmac, 1), 2).error_code == 0
    strange = alice.ask(
        CreateDelegationTokenRequest(None, None, [CreatableRenewers("User", "x"), CreatableRenewers("Group", "y")], 1),
        3,
    )
    assert strange.error_code == ErrorCode.INVALID_PRINCIPAL_TYPE
    assert create(alice, owner=(None, "bob")).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert create(alice, owner=("User", "")).principal_name == "alice"
    for wrong in (b"", b"x", bytes(64), bytes(100_000)):
        answer = alice.ask(RenewDelegationTokenRequest(wrong, 1), 2)
        assert answer.error_code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND


def test_without_a_secret_there_are_none(tmp_path):
    settings = {**SETTINGS, "delegation.token.secret.key": ""}
    with Broker(settings, data_dir=tmp_path) as running:
        side = Side(running)
        alice = side.log_in()
        made = create(alice, renewers=["bob"])
        assert made.error_code == ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
        assert (made.principal_name, made.issue_timestamp_ms, made.token_id) == ("alice", 0, "")
        for request, version in (
            (RenewDelegationTokenRequest(b"x", 1), 2),
            (ExpireDelegationTokenRequest(b"x", 1), 2),
            (DescribeDelegationTokenRequest(owners=None), 3),
        ):
            assert alice.ask(request, version).error_code == ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
        side.close()


def test_tokens_are_there_after_a_restart_and_secrets_nowhere(tmp_path, caplog):
    caplog.set_level("DEBUG")
    with Broker(SETTINGS, data_dir=tmp_path) as running:
        side = Side(running)
        alice = side.log_in()
        made, gone = create(alice), create(alice)
        assert alice.ask(ExpireDelegationTokenRequest(gone.hmac, -1), 2).error_code == 0
        asked = DescribeConfigsResource(4, "1", ["delegation.token.secret.key"])
        (result,) = alice.ask(DescribeConfigsRequest(resources=[asked]), 4).results
        assert [(each.value, each.is_sensitive) for each in result.configs] == [(None, True)]
        state = running.node.metadata.state
        assert len(state.tokens) == 1
        side.close()
    with Broker(SETTINGS, data_dir=tmp_path) as running:
        side = Side(running)
        assert side.by_token(made)[1] > 0
        assert side.by_token(gone)[1] is None
        assert set(describe(side.log_in())) == {made.token_id}
        side.close()
    password = base64.b64encode(bytes(made.hmac)).decode()
    told = caplog.text + repr(state) + "".join(each.read_text() for each in tmp_path.glob("__metadata.*"))
    assert made.token_id in told
    for secret in (SECRET, password, bytes(made.hmac).hex(), repr(bytes(made.hmac))):
        assert secret not in told
    with Broker({**SETTINGS, "delegation.token.secret.key": "another"}, data_dir=tmp_path) as running:
        side = Side(running)
        assert side.by_token(made)[1] is None
        side.close()


@pytest.mark.long
def test_thousands_of_renewers_and_owners_hold_nobody_up(side):
    alice = side.log_in()
    assert create(alice, renewers=[f"u{number}" for number in range(20_000)]).error_code == ErrorCode.POLICY_VIOLATION
    answer = create(alice, owner=("User", "x" * 30_000))
    assert (answer.error_code, answer.principal_name) == (ErrorCode.POLICY_VIOLATION, "ANONYMOUS")
    made = create(alice)
    owners = [f"u{number}" for number in range(50_000)]
    assert describe(alice, *owners) == {}
    assert set(describe(alice, *owners, "alice")) == {made.token_id}
