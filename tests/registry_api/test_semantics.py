"""Confluent's answers in cases that are easy to get wrong: look-ups, versions, modes, contexts, aliases."""

from __future__ import annotations

import json
import threading
from typing import Any
from urllib.parse import quote

import pytest

from kbroker import Broker
from tests.registry_api.conftest import Http
from tests.registry_api.test_api import ONE, OTHER, TWO, text

OWNER = {"properties": {"owner": "me"}}


def versions_of(registry: Http, subject: str, query: str = "") -> Any:
    return registry.ok("GET", f"/subjects/{quote(subject, safe='')}/versions{query}")


# -- what is there already


@pytest.mark.parametrize("mode", ["READONLY", "READONLY_OVERRIDE", "IMPORT"])
def test_a_registered_schema_is_returned_whatever_the_mode(registry: Http, mode: str) -> None:
    first = registry.register("a", ONE)
    registry.ok("PUT", "/mode/a?force=true", {"mode": mode})
    assert registry.register("a", ONE) == first
    assert registry.refused("POST", "/subjects/a/versions", {"schema": text(TWO)})[0] == 42205


def test_a_schema_without_metadata_is_looked_for_as_it_is_first(registry: Http) -> None:
    registry.register("a", ONE)
    registry.register("a", TWO, metadata=OWNER)
    for schema, version in ((ONE, 1), (TWO, 2)):
        assert registry.ok("POST", "/subjects/a", {"schema": text(schema)})["version"] == version
        assert registry.register("a", schema)["version"] == version
    assert versions_of(registry, "a") == [1, 2]


def test_metadata_that_says_the_same_is_the_same_schema(registry: Http) -> None:
    first = registry.register("a", ONE, metadata={"properties": {"x": "1", "y": "2"}})
    again = registry.register("b", ONE, metadata={"tags": {}, "properties": {"y": "2", "x": "1"}, "other": 1})
    assert (again["id"], again["guid"], again["metadata"]) == (first["id"], first["guid"], first["metadata"])


def test_the_latest_version_is_asked_for_by_minus_one(registry: Http) -> None:
    registry.register("a", ONE)
    registry.register("a", TWO)
    assert registry.register("a", TWO, version=-1)["version"] == 2
    third = registry.register("a", ONE, version=-1)
    assert (third["version"], third["metadata"]) == (3, {"properties": {"confluent:version": "3"}})


def test_the_number_in_the_metadata_counts_deleted_versions(registry: Http) -> None:
    registry.register("a", ONE)
    registry.register("a", TWO)
    registry.ok("DELETE", "/subjects/a/versions/2")
    third = registry.register("a", {**TWO, "doc": "new"}, version=-1)
    assert (third["version"], third["metadata"]["properties"]["confluent:version"]) == (3, "3")


def test_a_version_with_its_number_is_also_found_without(registry: Http) -> None:
    registry.register("a", ONE, version=1)
    assert registry.ok("GET", "/subjects/a/versions/1")["metadata"]["properties"] == {"confluent:version": "1"}
    assert registry.register("a", ONE)["version"] == 1
    assert registry.ok("POST", "/subjects/a", {"schema": text(ONE)})["version"] == 1
    registry.register("b", ONE)
    numbered = {"schema": text(ONE), "metadata": {"properties": {"confluent:version": "1"}}}
    assert registry.ok("POST", "/subjects/b", numbered)["version"] == 1
    numbered["metadata"] = {"properties": {"confluent:version": "2"}}
    assert registry.refused("POST", "/subjects/b", numbered)[0] == 40403


def test_an_old_version_is_checked_again_if_it_asks_for_a_number(registry: Http) -> None:
    registry.register("a", ONE)
    registry.ok("PUT", "/config/a", {"compatibility": "NONE"})
    registry.register("a", OTHER)
    registry.ok("PUT", "/config/a", {"compatibility": "BACKWARD"})
    assert registry.refused("POST", "/subjects/a/versions", {"schema": text(ONE), "version": 3})[0] == 40901
    assert registry.register("a", ONE)["version"] == 1


@pytest.mark.parametrize(
    ("one", "two"),
    [({"const": 1}, {"const": True}), ({"const": 1}, {"const": 1.0}), ({"a": 1, "b": 2}, {"b": 2, "a": 1})],
)
def test_json_schemas_are_the_same_only_if_their_texts_are(registry: Http, one: Any, two: Any) -> None:
    registry.ok("PUT", "/config", {"compatibility": "NONE"})
    registry.register("a", json.dumps(one, indent=1), schemaType="JSON")
    assert registry.register("a", json.dumps(one), schemaType="JSON")["version"] == 1
    assert registry.register("a", two, schemaType="JSON")["version"] == 2


def test_a_json_schema_that_is_stored_as_it_was_written_is_found(broker: Broker, registry: Http) -> None:
    """Older registries store JSON with its white space."""
    written = json.dumps({"title": "é", "type": "object"}, indent=2)
    key = {"keytype": "SCHEMA", "subject": "a", "version": 1, "magic": 1}
    value = {"subject": "a", "version": 1, "id": 3, "schemaType": "JSON", "schema": written, "deleted": False}
    broker.topics.create("_schemas", 1, {"cleanup.policy": "compact"})
    broker.topics["_schemas"].produce(json.dumps(value), key=json.dumps(key, separators=(",", ":")))
    compact = '{"title":"é","type":"object"}'
    for _ in range(2):
        assert registry.register("a", compact, schemaType="JSON")["id"] == 3
    assert registry.ok("POST", "/subjects/a", {"schema": compact, "schemaType": "JSON"})["version"] == 1
    assert registry.ok("GET", "/schemas/ids/3")["schema"] == written


def test_an_avro_schema_stands_for_one_with_references(registry: Http) -> None:
    registry.register("one", ONE)
    holder = {"type": "record", "name": "Holder", "fields": [{"name": "one", "type": "One"}]}
    reference = {"name": "One", "subject": "one", "version": 1}
    made = registry.register("h", holder, references=[reference])
    whole = {**holder, "fields": [{"name": "one", "type": ONE}]}
    assert registry.register("h", whole) == made
    assert registry.ok("POST", "/subjects/h", {"schema": text(whole)})["id"] == made["id"]
    assert registry.ok("GET", f"/schemas/ids/{made['id']}?format=resolved")["schema"] == text(whole)
    latest = {"schema": text(holder), "references": [{**reference, "version": -1}]}
    assert registry.ok("POST", "/subjects/h", latest)["version"] == 1


def test_a_look_up_without_a_schema_finds_nothing(registry: Http) -> None:
    assert registry.refused("POST", "/subjects/a", {}) == (40401, "Subject 'a' not found.")
    registry.register("a", ONE)
    assert registry.refused("POST", "/subjects/a", {"schema": " "}) == (40403, "Schema not found")


def test_a_deleted_schema_is_looked_up_on_demand(registry: Http) -> None:
    registry.register("a", ONE)
    registry.register("a", TWO)
    registry.ok("DELETE", "/subjects/a/versions/1")
    assert registry.refused("POST", "/subjects/a", {"schema": text(ONE)})[0] == 40403
    assert registry.ok("POST", "/subjects/a?deleted=true", {"schema": text(ONE)})["version"] == 1
    assert registry.ok("GET", "/schemas/ids/1/subjects") == []
    assert registry.ok("GET", "/schemas/ids/1/subjects?deleted=true") == ["a"]
    registry.ok("DELETE", "/subjects/a")
    assert registry.refused("POST", "/subjects/a", {"schema": text(ONE)})[0] == 40401


# -- comparisons


def test_a_comparison_inherits_nothing(registry: Http) -> None:
    registry.register("a", ONE, metadata={"properties": {"major": "1"}})
    registry.ok("PUT", "/config/a", {"compatibility": "BACKWARD", "compatibilityGroup": "major"})
    check = "/compatibility/subjects/a/versions"
    assert registry.ok("POST", check, {"schema": text(OTHER)}) == {"is_compatible": True}, "another group"
    alike = {"schema": text(OTHER), "metadata": {"properties": {"major": "1"}}}
    assert registry.ok("POST", check, alike) == {"is_compatible": False}
    assert registry.refused("POST", check, {"schema": ""}) == (42201, "Empty schema")
    assert registry.ok("POST", f"{check}?verbose=true", {"schema": ""}) == {
        "is_compatible": False,
        "messages": ["Empty schema"],
    }


def test_force_skips_the_comparison_only(registry: Http) -> None:
    registry.register("a", ONE)
    assert registry.register("a", OTHER, query="?force=true")["version"] == 2
    assert registry.refused("POST", "/subjects/a/versions?force=true", {"schema": "{"})[0] == 42201


def test_new_schemas_may_be_read_less_strictly(registry: Http) -> None:
    odd = {"type": "record", "name": "One", "fields": [{"name": "a", "type": "int", "default": "no number"}]}
    assert registry.refused("POST", "/subjects/a/versions", {"schema": text(odd)})[0] == 42201
    registry.ok("PUT", "/config/a", {"validateNewSchemas": False})
    assert registry.register("a", odd)["version"] == 1


# -- configs


def test_what_a_config_adds_to_new_schemas(registry: Http) -> None:
    config = {
        "defaultMetadata": {"properties": {"owner": "them", "team": "t"}},
        "overrideMetadata": {"properties": {"level": "high"}},
        "defaultRuleSet": {"domainRules": [{"name": "r", "type": "CEL", "kind": "CONDITION"}]},
    }
    registry.ok("PUT", "/config/a", config)
    first = registry.register("a", ONE, metadata=OWNER)
    assert first["metadata"]["properties"] == {"level": "high", "owner": "me", "team": "t"}
    assert [each["name"] for each in first["ruleSet"]["domainRules"]] == ["r"]
    assert registry.register("a", ONE, metadata=OWNER) == first
    assert registry.ok("GET", "/config/a")["defaultRuleSet"]["domainRules"][0]["mode"] == "WRITEREAD"


def test_a_config_of_another_kind_is_refused(registry: Http) -> None:
    for change in ({"compatibility": 7}, {"normalize": "yes"}, {"defaultMetadata": []}, {"compatibilityGroup": {}}):
        assert registry.refused("PUT", "/config/a", change)[0] == 400
    assert registry.refused("PUT", "/config", {"defaultMetadata": {"properties": {"a": 1}}})[0] == 42210


def test_an_alias_stands_for_a_subject(registry: Http) -> None:
    registry.register("real", ONE)
    registry.ok("PUT", "/config/other", {"alias": "real"})
    assert registry.ok("GET", "/subjects/other/versions/latest")["subject"] == "real"
    assert versions_of(registry, "other") == [1]
    assert registry.register("other", TWO)["version"] == 2
    assert registry.ok("POST", "/subjects/other", {"schema": text(ONE)})["subject"] == "real"
    assert registry.ok("POST", "/compatibility/subjects/other/versions", {"schema": text(OTHER)}) == {
        "is_compatible": False
    }
    assert registry.ok("GET", "/schemas/ids/1?subject=other")["subject"] == "real"
    assert registry.ok("GET", "/config/other")["alias"] == "real", "configs have no alias"
    listed = registry.ok("GET", "/schemas?subjectPrefix=other&aliases=true&latestOnly=true")
    assert [(each["subject"], each["aliases"]) for each in listed] == [("real", ["other"])]
    assert registry.ok("GET", "/schemas?subjectPrefix=other") == []
    assert registry.ok("DELETE", "/subjects/other") == [1, 2]
    registry.ok("PUT", "/config/other", {"alias": None})
    assert registry.refused("GET", "/subjects/other/versions/latest")[0] == 40401


# -- deletion


def test_a_context_is_not_deleted_as_a_subject(registry: Http) -> None:
    registry.register("a", ONE)
    registry.register(":.blue:a", ONE)
    for name in (":.blue:", ":.:"):
        assert registry.refused("DELETE", f"/subjects/{name}")[0] == 40401
        assert registry.refused("DELETE", f"/subjects/{name}?permanent=true")[0] == 40401


def test_latest_is_never_a_deleted_version(registry: Http) -> None:
    registry.register("a", ONE)
    registry.register("a", TWO)
    registry.ok("DELETE", "/subjects/a/versions/latest")
    assert registry.ok("GET", "/subjects/a/versions/latest?deleted=true")["version"] == 1
    assert registry.ok("GET", "/subjects/a/versions/-1")["version"] == 1
    assert registry.refused("DELETE", "/subjects/a/versions/latest?permanent=true")[0] == 40407
    registry.ok("DELETE", "/subjects/a/versions/-1")
    assert registry.refused("DELETE", "/subjects/a/versions/latest") == (40402, "Version -1 not found.")


@pytest.mark.long
def test_no_schema_refers_to_what_was_deleted_meanwhile(registry: Http) -> None:
    """One client permanently deletes a schema again and again, while others register schemas that refer to it."""
    holder = {"type": "record", "name": "Holder", "fields": [{"name": "one", "type": "One"}]}
    registry.ok("PUT", "/config", {"compatibility": "NONE"})
    registry.register("base", ONE)
    over = threading.Event()
    told: list[int] = []

    def refer(name: str) -> None:
        number = 0
        while not over.is_set():
            number += 1
            at = registry.raw("GET", "/subjects/base/versions/latest")
            version = json.loads(at[1])["version"] if at[0] == 200 else 1
            body = {
                "schema": text({**holder, "doc": f"{name}{number}"}),
                "references": [{"name": "One", "subject": "base", "version": version}],
            }
            told.append(registry.raw("POST", f"/subjects/{name}/versions", json.dumps(body).encode())[0])
            registry.raw("DELETE", f"/subjects/{name}")
            registry.raw("DELETE", f"/subjects/{name}?permanent=true")

    writers = [threading.Thread(target=refer, args=(name,)) for name in ("h1", "h2")]
    for each in writers:
        each.start()
    deleted = 0
    for _ in range(60):
        registry.raw("DELETE", "/subjects/base")
        deleted += registry.raw("DELETE", "/subjects/base?permanent=true")[0] == 200
        registry.raw("POST", "/subjects/base/versions", json.dumps({"schema": text(ONE)}).encode())
        for name in ("h1", "h2"):
            for version in json.loads(registry.raw("GET", f"/schemas?subjectPrefix={name}")[1]):
                reference = version["references"][0]
                found = registry.raw("GET", f"/subjects/base/versions/{reference['version']}?deleted=true")
                still = registry.raw("GET", f"/subjects/{name}/versions/{version['version']}")
                assert found[0] == 200 or still[0] == 404, version
    over.set()
    for each in writers:
        each.join(60)
    assert deleted
    assert set(told) <= {200, 422}


# -- imports


def test_an_import_gives_ids_up_to_31_bits(registry: Http) -> None:
    registry.ok("PUT", "/mode/a", {"mode": "IMPORT"})
    path = "/subjects/a/versions"
    assert registry.refused("POST", path, {"schema": text(ONE), "id": 2**31})[0] == 400
    assert registry.refused("POST", path, {"schema": text(ONE), "version": 2**31})[0] == 400
    assert registry.register("a", ONE, id=2**31 - 1, version=5)["id"] == 2**31 - 1
    assert registry.register("a", ONE, id=2**31 - 1, version=6)["version"] == 6
    assert registry.register("a", ONE, id=2**31 - 1, version=5)["version"] == 5
    assert registry.refused("POST", path, {"schema": text(TWO), "id": 2**31 - 1})[0] == 42205
    code, message = registry.refused("POST", "/subjects/b/versions", {"schema": text(TWO)})
    assert (code, "2147483647" in message) == (42205, True)
    assert registry.register(":.blue:b", TWO)["id"] == 1


# -- contexts


def test_paths_within_a_context(registry: Http) -> None:
    base = "/contexts/.blue"
    made = registry.ok("POST", f"{base}/subjects/a/versions", {"schema": text(TWO)})
    registry.register("a", ONE)
    assert made["id"] == 1
    assert registry.ok("GET", f"{base}/subjects") == [":.blue:a"]
    assert registry.ok("GET", "/contexts/blue/subjects") == [":.blue:a"]
    assert registry.ok("GET", "/contexts/:.blue:/subjects?subjectPrefix=a") == [":.blue:a"]
    assert registry.ok("GET", "/contexts/./subjects") == ["a"]
    assert registry.ok("GET", f"{base}/subjects/a/versions/1")["schema"] == text(TWO)
    assert registry.ok("GET", f"{base}/subjects/:.:a/versions/1")["schema"] == text(ONE)
    assert registry.ok("GET", f"{base}/schemas/ids/1")["schema"] == text(TWO)
    assert registry.ok("GET", f"{base}/schemas/ids/1?subject=a")["subject"] == ":.blue:a"
    assert [each["subject"] for each in registry.ok("GET", f"{base}/schemas")] == [":.blue:a"]
    assert [each["subject"] for each in registry.ok("GET", "/schemas")] == ["a"], "of the default context"
    assert len(registry.ok("GET", "/schemas?subjectPrefix=:*:")) == 2
    assert registry.ok("GET", "/subjects?subjectPrefix=") == ["a"]
    assert registry.ok("POST", f"{base}/compatibility/subjects/a/versions", {"schema": text(OTHER)})
    registry.ok("PUT", f"{base}/config", {"compatibility": "FULL"})
    registry.ok("PUT", f"{base}/mode/a", {"mode": "READONLY"})
    assert registry.ok("GET", "/config/:.blue:") == {"compatibilityLevel": "FULL"}
    assert registry.ok("GET", "/mode/:.blue:a") == {"mode": "READONLY"}
    assert registry.ok("GET", "/config") == {"compatibilityLevel": "BACKWARD"}
    assert registry.ok("GET", "/contexts/./config") == {"compatibilityLevel": "BACKWARD"}
    assert registry.refused("GET", "/contexts/a:b/subjects") == (400, "Context name 'a:b' cannot contain a colon")


@pytest.mark.parametrize("name", [".blue", "blue", ":.blue:"])
def test_a_context_is_deleted_once_it_is_empty(registry: Http, name: str) -> None:
    registry.register(":.blue:a", ONE)
    assert registry.refused("DELETE", f"/contexts/{name}") == (42211, "The specified context ':.blue:' is not empty.")
    registry.ok("DELETE", "/subjects/:.blue:a")
    registry.ok("DELETE", "/subjects/:.blue:a?permanent=true")
    assert registry.raw("DELETE", f"/contexts/{name}") == (204, b"")
    assert registry.ok("GET", "/contexts") == ["."]


def test_contexts_are_in_order(registry: Http) -> None:
    for name in ("c", "a", "b"):
        registry.register(f":.{name}:s", ONE)
    assert registry.ok("GET", "/contexts") == [".", ".a", ".b", ".c"]
    assert registry.ok("GET", "/contexts?contextPrefix=.b") == [".b"]
    assert registry.ok("GET", "/contexts?offset=1&limit=2") == [".a", ".b"]
    assert registry.ok("GET", "/subjects/s/versions/1")["subject"] == ":.a:s"
    assert registry.ok("POST", "/subjects/s", {"schema": text(ONE)})["subject"] == ":.a:s"


def test_a_guid_leads_to_the_ids_in_all_contexts(registry: Http) -> None:
    registry.register(":.blue:x", TWO)
    guid = registry.register(":.blue:a", ONE)["guid"]
    assert registry.register("b", ONE)["guid"] == guid
    assert registry.ok("GET", f"/schemas/guids/{guid}/ids") == [
        {"context": ".", "id": 1},
        {"context": ".blue", "id": 2},
    ]
    found = registry.ok("GET", f"/schemas/guids/{guid}")
    assert found == {"guid": guid, "schemaType": "AVRO", "schema": text(ONE)}
    for unknown in ("0" * 32, "x", "1"):
        assert registry.refused("GET", f"/schemas/guids/{unknown}") == (40403, f"Schema {unknown} not found")
        assert registry.ok("GET", f"/schemas/guids/{unknown}/ids") == []


# -- metadata and tags


def test_the_latest_version_with_some_metadata(registry: Http) -> None:
    registry.register("a", ONE, metadata=OWNER)
    registry.register("a", TWO, metadata={"properties": {"owner": "you"}})
    path = "/subjects/a/metadata"
    assert registry.ok("GET", f"{path}?key=owner&value=me")["version"] == 1
    assert registry.ok("GET", path)["version"] == 2
    assert registry.refused("GET", f"{path}?key=owner&value=me&key=x&value=y") == (40403, "Schema not found")
    assert registry.refused("GET", "/subjects/b/metadata")[0] == 40401
    registry.ok("DELETE", "/subjects/a/versions/1")
    assert registry.refused("GET", f"{path}?key=owner&value=me")[0] == 40403
    assert registry.ok("GET", f"{path}?key=owner&value=me&deleted=true")["version"] == 1


def test_tags_within_an_avro_schema(registry: Http) -> None:
    inner = {"type": "record", "name": "In", "fields": [{"name": "x", "type": "int", "confluent:tags": ["PII"]}]}
    outer = {"type": "record", "name": "Out", "namespace": "n", "fields": [{"name": "in", "type": inner}]}
    registry.register("a", outer)
    field = {"entityPath": "n.In.x", "entityType": "sr_field"}
    record = {"entityPath": "n.Out", "entityType": "sr_record"}
    one = "/subjects/a/versions/1"
    assert registry.ok("GET", f"{one}?findTags=*")["schemaTags"] == [{"schemaEntity": field, "tags": ["PII"]}]
    assert registry.ok("GET", "/schemas/ids/1?findTags=PII")["schemaTags"]
    assert "schemaTags" not in registry.ok("GET", f"{one}?findTags=OTHER")
    change = {
        "newVersion": 2,
        "tagsToAdd": [{"schemaEntity": record, "tags": ["KEEP"]}],
        "tagsToRemove": [{"schemaEntity": field, "tags": ["PII"]}],
        "rulesToMerge": {"domainRules": [{"name": "r", "type": "CEL"}]},
    }
    made = registry.ok("POST", f"{one}/tags", change)
    assert (made["version"], made["metadata"]["properties"]) == (2, {"confluent:version": "2"})
    assert [each["name"] for each in made["ruleSet"]["domainRules"]] == ["r"]
    two = registry.ok("GET", "/subjects/a/versions/2?findTags=*")
    assert two["schemaTags"] == [{"schemaEntity": record, "tags": ["KEEP"]}]
    third = registry.ok("POST", "/subjects/a/versions/latest/tags", {"rulesToRemove": ["r"]})
    assert (third["version"], third["ruleSet"]) == (3, {})
    nowhere = {"tagsToAdd": [{"schemaEntity": {**field, "entityPath": "n.In.y"}, "tags": ["X"]}]}
    assert registry.refused("POST", f"{one}/tags", nowhere) == (42201, "No matching path 'n.In.y' found in the schema")
    assert registry.refused("POST", "/subjects/a/versions/9/tags", {})[0] == 40402
    assert registry.refused("POST", f"{one}/tags", {"tagsToAdd": [{"tags": ["X"]}]})[0] == 400
    both = {"ruleSet": {}, "rulesToRemove": []}
    assert registry.refused("POST", f"{one}/tags", both)[0] == 42210


def test_a_registration_adds_and_keeps_tags(registry: Http) -> None:
    entity = {"entityPath": "One.a", "entityType": "sr_field"}
    first = registry.register("a", ONE, schemaTagsToAdd=[{"schemaEntity": entity, "tags": ["PII"]}])
    assert (first["version"], '"confluent:tags":["PII"]' in first["schema"]) == (1, True)
    second = registry.register("a", TWO, propagateSchemaTags=True)
    assert (second["version"], '"confluent:tags":["PII"]' in second["schema"]) == (2, True)
    proto = {"schema": 'syntax = "proto3"; message M { int32 a = 1; }', "schemaType": "PROTOBUF"}
    tags = [{"schemaEntity": {"entityPath": "M.a", "entityType": "sr_field"}, "tags": ["PII"]}]
    assert registry.refused("POST", "/subjects/p/versions", {**proto, "schemaTagsToAdd": tags})[0] == 42201
