"""Reading `_schemas`: others may write to it, so no record may prevent the registry from loading."""

from __future__ import annotations

import json
import random

import pytest

from kbroker.schema_registry.records import read_config, read_mode, read_version
from kbroker.schema_registry.state import State
from tests.schema_registry.context import Context

GOOD = {"subject": "a", "version": 1, "id": 1, "schema": "1", "deleted": False}


@pytest.mark.parametrize(
    "change",
    [
        {"references": 5},
        {"references": ["x"]},
        {"references": [{"name": "n", "subject": "s", "version": 2**40}]},
        {"references": [{"name": "n", "subject": "s", "version": True}]},
        {"schemaType": ["AVRO"]},
        {"metadata": []},
        {"metadata": {"tags": {"a": [1, "b"]}}},
        {"metadata": {"properties": {"a": 1}}},
        {"metadata": {"sensitive": 7}},
        {"ruleSet": {"domainRules": {"a": 1}}},
        {"ruleSet": {"domainRules": [7]}},
        {"ruleSet": {"domainRules": [{"name": "r", "type": "T", "params": {"a": 1}}]}},
        {"ruleSet": {"enableAt": 7}},
        {"id": 2**31},
        {"id": -1},
        {"version": 0},
        {"version": 2**31},
        {"schema": "\ud800"},
        {"metadata": {"properties": {"a": "\ud800"}}},
    ],
)
def test_a_version_that_nobody_could_serve_is_an_error_of_its_record(change):
    with pytest.raises(ValueError):
        read_version(json.dumps(GOOD | change).encode())


@pytest.mark.parametrize(
    "config",
    [
        {"compatibilityLevel": "SOME"},
        {"compatibilityLevel": 7},
        {"compatibilityGroup": ["a"]},
        {"alias": {}},
        {"defaultMetadata": {"properties": []}},
        {"overrideRuleSet": {"domainRules": 7}},
        {"defaultMetadata": {"properties": {"a": "\ud800"}}},
    ],
)
def test_a_config_that_nobody_could_obey_is_an_error_of_its_record(config):
    with pytest.raises(ValueError):
        read_config(json.dumps(config).encode())


def test_a_mode_that_is_none_is_an_error_of_its_record():
    with pytest.raises(ValueError):
        read_mode(b'{"mode":"WRITE"}')


def test_whatever_a_record_holds_it_is_read_or_it_is_a_value_error():
    chance = random.Random(7)
    values: list[object] = [None, True, -1, 0, 2**31, 2**70, 1.5, "", "a", "\ud800", [], {}, [{}], {"a": 1}, [["x"]]]
    kinds = ("SCHEMA", "CONFIG", "MODE", "DELETE_SUBJECT", "CLEAR_SUBJECT", "CONTEXT", "NOOP", "ASSOC")
    key_fields = ("subject", "version", "context", "tenant", "magic")
    fields = (
        *("subject", "version", "id", "schema", "schemaType", "references", "metadata", "ruleSet", "deleted"),
        *("mode", "compatibilityLevel", "alias", "normalize", "defaultMetadata", "overrideRuleSet", "context"),
    )
    inner = (
        *("name", "subject", "version", "tags", "properties", "sensitive"),
        *("domainRules", "params", "mode", "kind", "disabled", "enableAt"),
    )

    def made(depth: int) -> object:
        if depth == 0 or chance.random() < 0.5:
            return chance.choice(values)
        if chance.random() < 0.5:
            return [made(depth - 1) for _ in range(chance.randint(0, 2))]
        return {name: made(depth - 1) for name in chance.sample(inner, 2)}

    context = Context()
    context.register("a", "1")
    for _ in range(20_000):
        key = {"keytype": chance.choice(kinds)}
        key |= {name: chance.choice([*values, "a", "b", 1]) for name in chance.sample(key_fields, 3)}
        value = GOOD | {name: made(3) for name in chance.sample(fields, 3)}
        data = None if chance.random() < 0.1 else json.dumps(value).encode()
        try:
            context.shard.replay(1, -1, json.dumps(key).encode(), data)
        except ValueError:
            continue
    state = context.state
    for name in state.subjects():
        for version in state.versions(name, deleted=True):
            assert state.find_by_id(version.id, name) is not None
            json.dumps(version.content.as_json(), ensure_ascii=False).encode()
    json.dumps(list(state.configs.values()), ensure_ascii=False).encode()


def test_metadata_and_rules_that_say_the_same_are_the_same():
    plain = read_version(json.dumps(GOOD | {"metadata": {"properties": {"a": "1", "b": "2"}}}).encode())
    odd = {"properties": {"b": "2", "a": "1"}, "tags": {}, "other": 7}
    assert read_version(json.dumps(GOOD | {"metadata": odd}).encode()).content == plain.content
    rule = {"name": "r", "type": "CEL"}
    full = rule | {"kind": "TRANSFORM", "mode": "WRITEREAD", "disabled": False, "tags": []}
    one, two = (read_version(json.dumps(GOOD | {"ruleSet": {"domainRules": [each]}}).encode()) for each in (rule, full))
    assert (one.content, one.content.digest()) == (two.content, two.content.digest())


def test_an_empty_value_deletes_as_none_does():
    """Karapace writes one to delete a version permanently."""
    for gone in (None, b""):
        state = State()
        state.apply(("SCHEMA", "a", 1), json.dumps(GOOD).encode())
        state.apply(("CONFIG", "a", None), b'{"compatibilityLevel": "FULL"}')
        assert state.versions("a", deleted=True)
        state.apply(("SCHEMA", "a", 1), gone)
        state.apply(("CONFIG", "a", None), gone)
        assert not state.versions("a", deleted=True)
        assert "a" not in state.configs
