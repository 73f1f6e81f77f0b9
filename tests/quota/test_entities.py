"""The entities of quotas: as messages name them, and as ZooKeeper paths contain them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.quota.configured import (
    ANY,
    CONNECTION,
    CONSUMER,
    EXACT,
    MUTATION,
    OF_DEFAULT,
    PRODUCER,
    REQUEST,
    Entity,
    QuotaFilter,
    changed,
    check_value,
    checked_entity,
    entity_at,
    quotas_in,
    revised,
    stored_text,
    values_of,
)


@pytest.mark.parametrize(
    ("entity", "path"),
    [
        (Entity("alice"), ("users", "alice")),
        (Entity(""), ("users", "")),
        (Entity("CN=a b,O=*~+/"), ("users", "CN%3Da%20b%2CO%3D%2A%7E%2B%2F")),
        (Entity("alice", "app"), ("users", "alice/clients/app")),
        (Entity("alice", ""), ("users", "alice/clients/<default>")),
        (Entity("", "app/1"), ("users", "<default>/clients/app%2F1")),
        (Entity("", ""), ("users", "<default>/clients/<default>")),
        (Entity(client_id="app"), ("clients", "app")),
        (Entity(client_id=""), ("clients", "")),
        (Entity(ip="10.0.0.1"), ("ips", "10.0.0.1")),
        (Entity(ip="::1"), ("ips", "%3A%3A1")),
        (Entity(ip=""), ("ips", "")),
    ],
)
def test_paths(entity, path):
    assert entity.path() == path
    assert entity_at(*path) == entity


names = st.one_of(st.none(), st.text(st.characters(codec="utf-8")))


@given(names, names)
def test_every_name_comes_back(user, client_id):
    if user is not None or client_id is not None:
        entity = Entity(user, client_id)
        assert entity_at(*entity.path()) == entity


@given(st.sampled_from(["users", "clients", "ips", "topics"]), st.text())
def test_any_path_is_somebodys_or_nobodys(kind, name):
    entity_at(kind, name)


@pytest.mark.parametrize("name", ["a/b", "a/clients", "a/clients/", "a/clients/b/c", "a/users/b"])
def test_paths_of_nobody(name):
    assert entity_at("users", name) is None


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ({}, "Invalid empty client quota entity"),
        ({"group": "g"}, "Unhandled client quota entity type: group"),
        ({"user": ""}, "Empty user not supported"),
        ({"user": "u", "client-id": ""}, "Empty client-id not supported"),
        (
            {"user": "u", "ip": "1.2.3.4"},
            "Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId",
        ),
    ],
)
def test_entities_that_are_none(parts, text):
    with pytest.raises(ApiError) as refused:
        checked_entity(parts)
    assert (refused.value.code, refused.value.message) == (ErrorCode.INVALID_REQUEST, text)


def test_null_is_the_default():
    assert checked_entity({"user": None, "client-id": "app"}) == Entity("", "app")
    assert Entity("", "app").parts() == {"user": None, "client-id": "app"}


@pytest.mark.parametrize(
    ("entity", "key", "value", "text"),
    [
        (Entity("u"), "bytes", 1.0, "Invalid configuration key bytes"),
        (Entity("u"), CONNECTION, 1.0, f"Invalid configuration key {CONNECTION}"),
        (Entity(ip="1.2.3.4"), PRODUCER, 1.0, f"Invalid configuration key {PRODUCER}"),
        (Entity("u"), PRODUCER, 0.0, f"Quota {PRODUCER} must be greater than 0"),
        (Entity("u"), REQUEST, -1.5, f"Quota {REQUEST} must be greater than 0"),
        (Entity("u"), MUTATION, math.nan, f"Quota {MUTATION} must be a finite number"),
        (Entity("u"), REQUEST, math.inf, f"Quota {REQUEST} must be a finite number"),
        (Entity("u"), REQUEST, -math.inf, f"Quota {REQUEST} must be a finite number"),
        (Entity("u"), PRODUCER, 1.5, f"{PRODUCER} cannot be a fractional value."),
        (Entity("u"), CONSUMER, 1e19, f"Proposed value for {CONSUMER} is too large for a LONG."),
        (Entity(ip=""), CONNECTION, 2.0**31, f"Proposed value for {CONNECTION} is too large for an INT."),
    ],
)
def test_values_that_are_none(entity, key, value, text):
    with pytest.raises(ApiError) as refused:
        check_value(entity, key, value)
    assert (refused.value.code, refused.value.message) == (ErrorCode.INVALID_REQUEST, text)


@given(st.sampled_from([PRODUCER, CONSUMER, REQUEST, MUTATION]), st.floats())
def test_what_passes_comes_back(key, value):
    try:
        check_value(Entity("u"), key, value)
    except ApiError:
        return
    assert values_of(Entity("u"), {key: stored_text(key, value)}) == {key: value}


def test_credentials_stay_where_limits_change():
    old = {"SCRAM-SHA-256": "salt=...", PRODUCER: "1024"}
    assert revised(old, [(PRODUCER, None), (REQUEST, 12.5), ("SCRAM-SHA-256", None)]) == {
        "SCRAM-SHA-256": "salt=...",
        REQUEST: "12.5",
    }
    assert values_of(Entity("u"), old) == {PRODUCER: 1024.0}


def test_what_is_no_limit_is_none():
    texts = {PRODUCER: "many", CONSUMER: "0", REQUEST: "NaN", MUTATION: "-1"}
    assert values_of(Entity("u"), texts) == {}


def test_a_value_changes_only_with_a_limit():
    quotas = quotas_in({"users": {"alice": {PRODUCER: "5", "SCRAM-SHA-256": "x"}, "bob": {"SCRAM-SHA-256": "x"}}})
    assert quotas == {Entity("alice"): {PRODUCER: 5.0}}
    assert changed(quotas, "users", "alice", {PRODUCER: "5"}) is quotas
    assert changed(quotas, "users", "carol", {"SCRAM-SHA-256": "x"}) is quotas
    assert changed(quotas, "topics", "alice", {}) is quotas
    assert changed(quotas, "users", "alice", {}) == {}
    assert changed(quotas, "users", "alice", {}).altered_since(quotas) == Entity("alice")
    twice = changed(changed(quotas, "users", "alice", {}), "users", "bob", {PRODUCER: "1"})
    assert twice.altered_since(quotas) is None
    assert quotas_in({}).altered_since(quotas) is None
    assert changed(quotas, "clients", "", {CONSUMER: "7"}) == {**quotas, Entity(client_id=""): {CONSUMER: 7.0}}


ENTITIES = [
    Entity("a"), Entity(""), Entity("a", "c"), Entity("a", ""), Entity("", "c"), Entity("", ""), Entity(client_id="c"),
    Entity(client_id=""), Entity(ip="1.2.3.4"), Entity(ip=""),
]  # fmt: skip


@pytest.mark.parametrize(
    ("components", "strict", "wanted"),
    [
        ([], False, ENTITIES),
        ([], True, []),
        ([("user", EXACT, "a")], False, [Entity("a"), Entity("a", "c"), Entity("a", "")]),
        ([("user", EXACT, "a")], True, [Entity("a")]),
        ([("user", EXACT, "")], False, []),
        ([("user", OF_DEFAULT, None)], True, [Entity("")]),
        ([("user", ANY, None)], True, [Entity("a"), Entity("")]),
        ([("user", ANY, None), ("client-id", ANY, None)], True, ENTITIES[2:6]),
        ([("user", EXACT, "a"), ("client-id", OF_DEFAULT, None)], False, [Entity("a", "")]),
        ([("client-id", EXACT, "c")], False, [Entity("a", "c"), Entity("", "c"), Entity(client_id="c")]),
        ([("ip", ANY, None)], False, [Entity(ip="1.2.3.4"), Entity(ip="")]),
    ],
)
def test_filters(components, strict, wanted):
    matches = QuotaFilter(components, strict=strict).matches
    assert [each for each in ENTITIES if matches(each)] == wanted


@pytest.mark.parametrize(
    ("components", "code", "text"),
    [
        ([("", EXACT, "a")], 42, "Invalid empty entity type."),
        ([("user", ANY, None)] * 2, 42, "Entity type user cannot appear more than once in the filter."),
        ([("group", EXACT, "a")], 35, "Unsupported entity type group"),
        ([("user", EXACT, None)], 42, "Request specified MATCH_TYPE_EXACT, but set match string to null."),
        ([("user", OF_DEFAULT, "a")], 42, "Request specified MATCH_TYPE_DEFAULT, but also specified a match string."),
        ([("user", ANY, "a")], 42, "Request specified MATCH_TYPE_SPECIFIED, but also specified a match string."),
        ([("user", 3, None)], 42, "Unknown match type 3"),
        (
            [("ip", ANY, None), ("user", ANY, None)],
            42,
            "Invalid entity filter component combination. IP filter component should not be used with user or "
            "clientId filter component.",
        ),
    ],
)
def test_filters_that_are_none(components, code, text):
    with pytest.raises(ApiError) as refused:
        QuotaFilter(components, strict=False)
    assert (refused.value.code, refused.value.message) == (code, text)
