"""Delegation tokens in a cluster: any broker creates them, all brokers accept them, also a broker that returns."""

from __future__ import annotations

import base64
import time

from compat_tests.wire.client import DEADLINE_SECONDS, WireClient
from kbroker import Cluster
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.access import ExpireDelegationTokenRequest, RenewDelegationTokenRequest
from kbroker.security.sasl.scram import ScramClient
from tests.broker.test_delegation_tokens import TokenClient, converse, create, describe
from tests.broker.test_scram_credentials import alter, upsertion

MECHANISM = "SCRAM-SHA-256"
SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": MECHANISM,
    "delegation.token.master.key": "what all brokers know",
    "delegation.token.expiry.check.interval.ms": "100",
    "connection.failed.authentication.delay.ms": "0",
}


def until(holds):
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def connect(broker, listener=1):
    return WireClient(broker.bootstrap_servers.split(",")[listener])


def lets_in(broker, token):
    with connect(broker) as client:
        password = base64.b64encode(bytes(token.hmac)).decode()
        return converse(client, TokenClient(MECHANISM, token.token_id, password), MECHANISM) is not None


def log_in(broker):
    client = connect(broker)
    assert converse(client, ScramClient(MECHANISM, "alice", "secret"), MECHANISM) == 0
    return client


def added(broker):
    with connect(broker, 0) as client:
        return alter(client, upsertion("alice")) == {"alice": (0, None)}


def test_every_broker_takes_a_token_that_any_has_made():
    with Cluster(brokers=2, config=SETTINGS) as cluster:
        one, two = cluster.brokers[1], cluster.brokers[2]
        until(lambda: added(one) or added(two))  # the controller receives the request
        until(lambda: all(len(each.node.metadata.state.user_configs) == 1 for each in (one, two)))
        with log_in(one) as here, log_in(two) as there:
            made = create(here)
            assert made.error_code == 0
            assert lets_in(one, made)
            until(lambda: made.token_id in describe(there))
            assert lets_in(two, made)
            renewed = there.ask(RenewDelegationTokenRequest(made.hmac, 60_000), 2)
            assert renewed.error_code == 0
            until(lambda: describe(here)[made.token_id].expiry_timestamp == renewed.expiry_timestamp_ms)
        two.kill()
        with log_in(one) as here:
            assert here.ask(ExpireDelegationTokenRequest(made.hmac, -1), 2).error_code == 0
            kept, short = create(here), create(here, lifetime=200)
        two.start()
        assert lets_in(two, kept)
        assert not lets_in(two, made)
        with log_in(two) as there:
            gone = there.ask(ExpireDelegationTokenRequest(made.hmac, -1), 2)
            assert gone.error_code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND
            until(lambda: set(describe(there)) == {kept.token_id})  # the controller removes expired tokens
        assert not lets_in(two, short)
