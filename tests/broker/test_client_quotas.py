"""Quotas by request: how they are stored and described, and that users' passwords do not change."""

from __future__ import annotations

import pytest

from compat_tests.wire.client import WireClient
from kbroker import Broker
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.access import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from kbroker.protocol.messages.clients import (
    AlterClientQuotasRequest,
    AlteredEntity,
    AlteredEntry,
    ComponentData,
    DescribeClientQuotasRequest,
    OpData,
)

ALL = ()


def entry(entity, **limits):
    ops = [OpData(key, value or 0.0, value is None) for key, value in limits.items()]
    return AlteredEntry([AlteredEntity(kind, name) for kind, name in entity.items()], ops)


def alter(client, *entries, validate_only=False, version=1):
    answer = client.ask(AlterClientQuotasRequest(entries=list(entries), validate_only=validate_only), version)
    return [(each.error_code, each.error_message) for each in answer.entries]


def describe(client, *components, strict=False, version=1):
    request = DescribeClientQuotasRequest([ComponentData(*each) for each in components], strict)
    answer = client.ask(request, version)
    if answer.error_code:
        assert answer.entries is None
        return answer.error_code, answer.error_message
    return {
        frozenset((part.entity_type, part.entity_name) for part in each.entity): {v.key: v.value for v in each.values}
        for each in answer.entries
    }


def key(**entity):
    return frozenset((kind.replace("_", "-"), name) for kind, name in entity.items())


@pytest.fixture
def admin():
    with Broker(strict=True) as running, WireClient(running.bootstrap_servers) as client:
        yield client


@pytest.mark.parametrize("version", [0, 1])
def test_quotas_are_set_changed_and_removed(admin, version):
    alice, app = {"user": "alice"}, {"user": None, "client-id": "app/1"}
    both = [
        entry(alice, producer_byte_rate=1024.0, request_percentage=12.5),
        entry(app, controller_mutation_rate=0.5),
        entry({"ip": "127.0.0.1"}, connection_creation_rate=3.0),
    ]
    assert alter(admin, *both, version=version) == [(0, None)] * 3
    assert describe(admin, version=version) == {
        key(user="alice"): {"producer_byte_rate": 1024.0, "request_percentage": 12.5},
        key(user=None, client_id="app/1"): {"controller_mutation_rate": 0.5},
        key(ip="127.0.0.1"): {"connection_creation_rate": 3.0},
    }
    change = entry(alice, producer_byte_rate=2048.0, request_percentage=None, consumer_byte_rate=None)
    assert alter(admin, change, version=version) == [(0, None)]
    assert describe(admin, ("user", 0, "alice"), version=version) == {key(user="alice"): {"producer_byte_rate": 2048.0}}
    assert alter(admin, entry(alice, producer_byte_rate=None), version=version) == [(0, None)]
    assert describe(admin, ("user", 2, None), version=version) == {
        key(user=None, client_id="app/1"): {"controller_mutation_rate": 0.5}
    }


def test_what_is_only_validated_changes_nothing(admin):
    assert alter(admin, entry({"user": "alice"}, producer_byte_rate=1.0), validate_only=True) == [(0, None)]
    assert describe(admin) == {}


@pytest.mark.parametrize(
    ("refused", "text"),
    [
        (entry({}, producer_byte_rate=1.0), "Invalid empty client quota entity"),
        (entry({"user": "bob"}, producer_byte_rate=0.5), "producer_byte_rate cannot be a fractional value."),
        (entry({"ip": "no host."}, connection_creation_rate=1.0), "no host. is not a valid IP or resolvable host."),
        (entry({"ip": "nul\0"}, connection_creation_rate=1.0), "nul\0 is not a valid IP or resolvable host."),
        (
            AlteredEntry([AlteredEntity("user", "bob")], [OpData("producer_byte_rate", value) for value in (1.0, 2.0)]),
            "Ignoring duplicate entity ClientQuotaEntity(entries={user=bob})",
        ),
    ],
)  # fmt: skip
def test_what_is_refused_leaves_nothing_and_harms_no_other(admin, refused, text):
    alice = entry({"user": "alice"}, producer_byte_rate=1.0)
    assert alter(admin, refused, alice) == [(ErrorCode.INVALID_REQUEST, text), (0, None)]
    assert describe(admin) == {key(user="alice"): {"producer_byte_rate": 1.0}}


def test_an_entity_that_comes_twice_is_altered_as_it_came_first(admin):
    twice = [entry({"client-id": None, "user": "alice"}, producer_byte_rate=each) for each in (1.0, 2.0)]
    text = "Ignoring duplicate entity ClientQuotaEntity(entries={client-id=null, user=alice})"
    assert alter(admin, *twice) == [(ErrorCode.INVALID_REQUEST, text)]
    assert describe(admin) == {key(user="alice", client_id=None): {"producer_byte_rate": 1.0}}


def test_filters_that_cannot_be(admin):
    assert describe(admin, ("group", 0, "g")) == (ErrorCode.UNSUPPORTED_VERSION, "Unsupported entity type group")
    many = [("user", 2, None)] * 100
    text = "Entity type user cannot appear more than once in the filter."
    assert describe(admin, *many) == (ErrorCode.INVALID_REQUEST, text)


def test_quotas_and_passwords_of_a_user_do_not_touch_each_other(admin):
    alter(
        admin,
        entry({"user": "alice"}, producer_byte_rate=5.0),
        entry({"user": "alice", "client-id": "a"}, producer_byte_rate=6.0),
    )
    upsertion = ScramCredentialUpsertion("alice", 1, 4096, b"salt", b"x" * 32)
    assert admin.ask(AlterUserScramCredentialsRequest(upsertions=[upsertion]), 0).results[0].error_code == 0
    assert len(describe(admin, ("user", 0, "alice"))) == 2
    (told,) = admin.ask(DescribeUserScramCredentialsRequest(users=None), 0).results
    assert (told.user, [each.mechanism for each in told.credential_infos]) == ("alice", [1])

    alter(admin, entry({"user": "alice"}, producer_byte_rate=None))
    assert len(admin.ask(DescribeUserScramCredentialsRequest(users=None), 0).results) == 1
    alter(admin, entry({"user": "alice"}, producer_byte_rate=7.0))
    deletion = ScramCredentialDeletion("alice", 1)
    assert admin.ask(AlterUserScramCredentialsRequest(deletions=[deletion]), 0).results[0].error_code == 0
    assert describe(admin, ("user", 0, "alice"), strict=True) == {key(user="alice"): {"producer_byte_rate": 7.0}}


def test_quotas_are_there_after_a_restart(tmp_path):
    entities = [
        {"user": "alice"}, {"user": "a/b ü", "client-id": "c/d"}, {"user": None}, {"user": None, "client-id": None},
        {"user": "..", "client-id": "<default>"}, {"client-id": "app"}, {"client-id": None},
    ]  # fmt: skip
    with Broker(data_dir=tmp_path) as running, WireClient(running.bootstrap_servers) as client:
        for number, entity in enumerate(entities, 1):
            assert alter(client, entry(entity, producer_byte_rate=float(number))) == [(0, None)]
        assert alter(client, entry({"ip": "::1"}, connection_creation_rate=9.0)) == [(0, None)]
        assert alter(client, entry({"ip": None}, connection_creation_rate=10.0)) == [(0, None)]
        before = describe(client)
        assert len(before) == 9
    with Broker(data_dir=tmp_path) as running, WireClient(running.bootstrap_servers) as client:
        assert describe(client) == before
