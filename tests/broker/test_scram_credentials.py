"""SCRAM credentials by request: how they are stored and described, and who may log in with them."""

from __future__ import annotations

import json
import os
import stat

import pytest

from compat_tests.wire.client import WireClient
from kbroker import Broker
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.access import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
    UserName,
)
from kbroker.protocol.messages.cluster import MetadataRequest
from kbroker.protocol.messages.connections import SaslAuthenticateRequest, SaslHandshakeRequest
from kbroker.security.sasl.scram import ScramClient
from kbroker.security.sasl.scram_credential import salted_password

SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
}
TYPES = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}


@pytest.fixture(scope="module")
def secured():
    with Broker(SETTINGS, strict=True) as running:
        yield running


@pytest.fixture
def admin(secured):
    with WireClient(secured.bootstrap_servers.split(",")[0]) as client:
        yield client


def upsertion(name, password="secret", mechanism="SCRAM-SHA-256", iterations=4096, salt=b"some salt"):
    salted = salted_password(mechanism, password, salt, max(iterations, 1))
    return ScramCredentialUpsertion(name, TYPES.get(mechanism, 1), iterations, salt, salted)


def alter(client, *changes):
    request = AlterUserScramCredentialsRequest(
        deletions=[each for each in changes if isinstance(each, ScramCredentialDeletion)],
        upsertions=[each for each in changes if isinstance(each, ScramCredentialUpsertion)],
    )
    answer = client.ask(request, 0)
    return {each.user: (each.error_code, each.error_message) for each in answer.results}


def describe(client, *names):
    users = [UserName(name) for name in names] or None
    answer = client.ask(DescribeUserScramCredentialsRequest(users=users), 0)
    assert answer.error_code == 0
    return {
        each.user: each.error_code or [(info.mechanism, info.iterations) for info in each.credential_infos]
        for each in answer.results
    }


def logs_in(running, name, password="secret", mechanism="SCRAM-SHA-256"):
    with WireClient(running.bootstrap_servers.split(",")[1]) as client:
        assert client.ask(SaslHandshakeRequest(mechanism), 1).error_code == 0
        one = ScramClient(mechanism, name, password)
        token = one.first()
        while token is not None:
            answer = client.ask(SaslAuthenticateRequest(token), 2)
            if answer.error_code:
                assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
                text = "Authentication failed during authentication due to invalid credentials with SASL mechanism"
                assert answer.error_message == f"{text} {mechanism}"
                return False
            token = one.respond(bytes(answer.auth_bytes))
        return bool(client.ask(MetadataRequest(topics=[]), 9).brokers)


@pytest.mark.long
@pytest.mark.parametrize("mechanism", list(TYPES))
@pytest.mark.parametrize("name", ["alice", "a,b=c d", "zoë/x", "<default>", "..", "ANONYMOUS"])
def test_a_user_logs_in_from_then_on_until_removed(secured, admin, mechanism, name):
    other = next(each for each in TYPES if each != mechanism)
    assert not logs_in(secured, name, mechanism=mechanism)
    assert alter(admin, upsertion(name, mechanism=mechanism, iterations=5000)) == {name: (0, None)}
    assert describe(admin, name) == {name: [(TYPES[mechanism], 5000)]}
    assert logs_in(secured, name, mechanism=mechanism)
    assert not logs_in(secured, name, "other", mechanism=mechanism)
    assert not logs_in(secured, name, mechanism=other)
    assert alter(admin, upsertion(name, "other", mechanism=mechanism)) == {name: (0, None)}
    assert logs_in(secured, name, "other", mechanism=mechanism)
    assert not logs_in(secured, name, mechanism=mechanism)
    assert alter(admin, ScramCredentialDeletion(name, TYPES[mechanism])) == {name: (0, None)}
    assert not logs_in(secured, name, "other", mechanism=mechanism)
    assert describe(admin, name) == {name: ErrorCode.RESOURCE_NOT_FOUND}


def test_all_users_are_described_without_a_name(admin):
    alter(admin, upsertion("a1"), upsertion("a2", mechanism="SCRAM-SHA-512"))
    alter(admin, upsertion("a1", mechanism="SCRAM-SHA-512", iterations=8000))
    found = describe(admin)
    assert found["a1"] == [(1, 4096), (2, 8000)]
    assert found["a2"] == [(2, 4096)]
    assert describe(admin, "a1", "a1") == {"a1": ErrorCode.DUPLICATE_RESOURCE}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ([upsertion("")], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([upsertion("x", iterations=4095)], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([upsertion("x", iterations=16385)], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([ScramCredentialUpsertion("x", 0, 4096, b"", b"")], ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ([ScramCredentialUpsertion("x", 3, 4096, b"", b"")], ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ([ScramCredentialDeletion("x", 1)], ErrorCode.RESOURCE_NOT_FOUND),
        ([ScramCredentialDeletion("x", 7)], ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ([upsertion("x"), upsertion("x", mechanism="SCRAM-SHA-512")], ErrorCode.DUPLICATE_RESOURCE),
        ([upsertion("x"), ScramCredentialDeletion("x", 1)], ErrorCode.RESOURCE_NOT_FOUND),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_changed(admin, changes, code):
    outcome = alter(admin, *changes, upsertion("beside"))
    assert outcome.pop("beside") == (0, None)
    ((_, (got, _)),) = outcome.items()
    assert got == code
    assert describe(admin, "x") == {"x": ErrorCode.RESOURCE_NOT_FOUND}


def test_users_are_there_after_a_restart_and_their_keys_are_for_nobody_elses_eyes(tmp_path, caplog):
    with Broker(SETTINGS, data_dir=tmp_path) as running:
        with WireClient(running.bootstrap_servers.split(",")[0]) as client:
            alter(client, upsertion("alice", "hunter2"))
        journal = tmp_path / "__metadata.journal"
        assert stat.S_IMODE(os.stat(journal).st_mode) == 0o600
        assert "hunter2" not in journal.read_text()
    assert "stored_key" not in caplog.text
    assert "hunter2" not in caplog.text
    with Broker(SETTINGS, data_dir=tmp_path) as running:
        assert logs_in(running, "alice", "hunter2")
        state = running.node.metadata.state
        assert set(state.user_configs) == {"alice"}
        assert "stored_key" not in repr(state)
    lines = [json.loads(line[9:]) for line in journal.read_text().splitlines()]
    (entry,) = [each for line in lines for each in line if each[1:2] == ["/config/users/alice"]]
    assert entry[2]["config"]["SCRAM-SHA-256"].startswith("salt=")
