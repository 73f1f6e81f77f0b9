"""Sequences of requests from Confluent's own tests, with the answers that these expect (rest.RestApi*Test)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.registry_api.conftest import Http
from tests.registry_api.test_api import text

FIELD = {"name": "f1", "type": "string"}
ONE = {"type": "record", "name": "myrecord", "fields": [FIELD]}
VERSION = "confluent:version"


def latest(registry: Http, subject: str = "test") -> tuple[int, Any]:
    found = registry.ok("GET", f"/subjects/{subject}/versions/latest?findTags=*")
    return found["version"], found.get("metadata", {}).get("properties", {}).get(VERSION)


def test_numbers_of_versions_in_the_metadata(registry: Http) -> None:
    """testConfluentVersion."""

    def register(version: int | None, properties: dict[str, str] | None = None) -> int:
        metadata = None if properties is None else {"properties": properties}
        found: int = registry.register("test", ONE, version=version, metadata=metadata)["id"]
        return found

    def look_up(properties: dict[str, str] | None = None) -> tuple[int, str | None]:
        metadata = None if properties is None else {"properties": properties}
        found = registry.ok("POST", "/subjects/test", {"schema": text(ONE), "metadata": metadata})
        return found["version"], found.get("metadata", {}).get("properties", {}).get(VERSION)

    assert register(None) == 1
    assert latest(registry) == (1, None)
    assert [register(-1), register(2), register(-1)] == [1, 2, 2]
    assert latest(registry) == (2, "2")
    assert [look_up(), look_up({VERSION: "1"}), look_up({VERSION: "2"})] == [(1, None), (1, None), (2, "2")]
    registry.ok("DELETE", "/subjects/test/versions/1")
    assert look_up() == (2, "2")
    assert register(None) == 2
    assert [register(3), register(-1), register(-1)] == [3, 3, 3]
    assert latest(registry) == (3, "3")
    assert registry.refused("POST", "/subjects/test/versions", {"schema": text(ONE), "version": 3})[0] == 42201
    assert register(4) == 4
    assert look_up() == (4, "4")
    assert register(None, {VERSION: "-1"}) == 5
    assert latest(registry) == (5, "5")
    assert [register(None, {VERSION: each}) for each in ("2", "3", "0")] == [2, 3, 6]
    assert latest(registry) == (6, "6")
    assert register(None, {}) == 6
    assert register(None, {"mykey": "myvalue"}) == 7
    assert latest(registry) == (7, None)
    assert register(-1) == 8
    assert latest(registry) == (8, "8")
    assert look_up({"mykey": "myvalue"}) == (7, None)
    registry.ok("DELETE", "/subjects/test/versions/7")
    assert look_up({"mykey": "myvalue"}) == (8, "8")
    other = {"schema": text({**ONE, "doc": "mydoc"}), "version": -1}
    assert registry.refused("POST", "/subjects/test", other)[0] == 40403


def test_a_schema_is_imported_again_with_its_id(registry: Http) -> None:
    """testRegisterSchemaWithSameIdButWithMetadataAfterImport, testRegisterSchemaWithNoIdAfterImport."""
    assert registry.register("s", ONE)["id"] == 1
    registry.ok("DELETE", "/subjects/s")
    registry.ok("PUT", "/mode", {"mode": "IMPORT"})
    for _ in range(2):
        assert registry.register("s", ONE, id=1, version=1, metadata={"properties": {"foo": "bar"}})["id"] == 1
        assert registry.ok("GET", "/subjects/s/versions/1")["schema"] == text(ONE)
        registry.ok("DELETE", "/subjects/s")
    assert registry.register("t", ONE, id=5, version=1)["id"] == 5
    assert registry.register("t", ONE)["id"] == 5


def test_one_schema_is_imported_with_two_ids(registry: Http) -> None:
    """testImportModeWithSameSchemaDifferentIdAndSubject, testImportSameSchemaDifferentVersion."""
    registry.ok("PUT", "/mode", {"mode": "IMPORT"})
    assert registry.register("s1", ONE, id=100, version=1)["id"] == 100
    assert registry.register("s1", ONE, id=200, version=2)["id"] == 200
    assert registry.register("s2", ONE, id=300, version=1)["id"] == 300
    for subject in ("s1", "s2"):
        assert registry.ok("POST", f"/subjects/{subject}", {"schema": text(ONE)})["subject"] == subject
    assert [registry.register("s3", ONE, id=1, version=each)["version"] for each in (1, 2, 1)] == [1, 2, 1]


@pytest.mark.parametrize("query", ["", "?normalize=true"])
def test_an_import_is_not_normalized(registry: Http, query: str) -> None:
    """testNormalizeConfigFallbackNotAppliedInImportMode, testExplicitNormalizeIgnoredInImportMode."""
    odd = {**ONE, "fields": [{**FIELD, "zprop": "z", "aprop": "a"}]}
    registry.ok("PUT", "/config/s", {"normalize": True})
    registry.ok("PUT", "/config/t", {"normalize": True})
    registry.ok("PUT", "/mode/s", {"mode": "IMPORT"})
    assert registry.register("s", odd, id=1, version=1, query=query)["schema"] == text(odd)
    assert registry.register("t", odd)["schema"] == text({**ONE, "fields": [{**FIELD, "aprop": "a", "zprop": "z"}]})


def test_a_deleted_version_to_which_a_schema_refers_is_kept(registry: Http) -> None:
    """testSameIdTombstonePreservesReferencedSoftDeletedVersion, testReviveSchemaWithDanglingReference."""
    registry.ok("PUT", "/config/user", {"compatibility": "NONE"})
    registry.register("user", ONE)
    two = {**ONE, "fields": [FIELD, {"name": "f2", "type": "string"}]}
    assert registry.register("user", two)["id"] == 2
    order = {"type": "record", "name": "Order", "fields": [{"name": "buyer", "type": "myrecord"}]}
    reference = {"name": "myrecord", "subject": "user", "version": 2}
    assert registry.register("order", order, references=[reference])["id"] == 3
    registry.ok("DELETE", "/subjects/order/versions/1")
    registry.ok("DELETE", "/subjects/user")
    again = registry.register("user", two)
    assert (again["id"], again["version"]) == (2, 3)
    kept = registry.ok("GET", "/subjects/user/versions/2?deleted=true")
    assert (kept["id"], kept["deleted"]) == (2, True)
    assert registry.ok("GET", "/subjects/user/versions/2/referencedby?deleted=true") == [3]
    registry.ok("DELETE", "/subjects/order/versions/1?permanent=true")
    registry.ok("DELETE", "/subjects/user/versions/2?permanent=true")
    body = {"schema": text(order), "references": [reference]}
    assert registry.refused("POST", "/subjects/order/versions", body)[0] == 42201


def test_rules_are_registered_without_a_schema(registry: Http) -> None:
    """testRegisterEmptyRuleSet."""
    assert registry.register("s", ONE, ruleSet={"domainRules": []})["id"] == 1
    assert registry.ok("POST", "/subjects/s", {"schema": text(ONE)})["id"] == 1
    rules = {"domainRules": [{"name": "foo", "mode": "READ", "type": "IGNORE"}]}
    found = registry.ok("POST", "/subjects/s/versions", {"ruleSet": rules})
    assert (found["id"], found["schema"]) == (2, text(ONE))
    assert registry.ok("POST", "/subjects/s", {"schema": text(ONE)})["id"] == 2


def test_two_aliases_of_one_subject(registry: Http) -> None:
    """testGetSchemasWithAliases, testSubjectAliasWithContext."""
    registry.register("testSubject", ONE)
    registry.register("testAlligator", {**ONE, "name": "other"})
    for alias in ("testAlias", "testAlias2"):
        registry.ok("PUT", f"/config/{alias}", {"alias": "testSubject"})
    for prefix in ("testAl", "test"):
        listed = registry.ok("GET", f"/schemas?subjectPrefix={prefix}&aliases=true&deleted=true")
        assert [(each["subject"], each.get("aliases")) for each in listed] == [
            ("testAlligator", None),
            ("testSubject", ["testAlias", "testAlias2"]),
        ]
    registry.register(":.ctx:real", ONE)
    registry.ok("PUT", "/config/:.ctx:alias", {"alias": "real"})
    assert registry.ok("GET", "/subjects/:.ctx:alias/versions/1")["subject"] == ":.ctx:real"
    registry.ok("PUT", "/config", {"alias": "testSubject"})
    assert registry.refused("GET", "/subjects/none/versions/1")[0] == 40401, "the global config is no alias"


def test_tags_that_a_registration_adds_removes_and_keeps(registry: Http) -> None:
    """testRegisterSchemaTagsBasic."""

    def entity(tags: list[str]) -> dict[str, Any]:
        return {"schemaEntity": {"entityPath": "myrecord", "entityType": "sr_record"}, "tags": tags}

    registry.register("test", ONE)
    tagged = {**ONE, "confluent:tags": ["TAG1", "TAG2"]}
    made = registry.register("test", ONE, version=2, schemaTagsToAdd=[entity(["TAG1", "TAG2"])])
    assert (made["id"], made["schema"]) == (2, text(tagged))
    assert latest(registry) == (2, "2")
    left = {**ONE, "confluent:tags": ["TAG1"]}
    made = registry.register("test", tagged, version=3, schemaTagsToRemove=[entity(["TAG2"])])
    assert (made["id"], made["schema"]) == (3, text(left))
    assert registry.ok("GET", "/schemas/ids/3?findTags=TAG1")["schemaTags"] == [entity(["TAG1"])]
    more = {**ONE, "fields": [{**FIELD, "confluent:tags": ["TAG2"]}, {"name": "f2", "type": "string", "default": "hi"}]}
    made = registry.register("test", more, propagateSchemaTags=True)
    assert (made["id"], made["schema"]) == (4, text({**more, "confluent:tags": ["TAG1"]}))
    assert latest(registry) == (4, "4")
    found = registry.ok("GET", "/subjects/test/versions/latest?findTags=TAG1&findTags=TAG2")["schemaTags"]
    assert [each["schemaEntity"]["entityPath"] for each in found] == ["myrecord", "myrecord.f1"]


def test_reserved_fields(registry: Http) -> None:
    """testRegisterSchemaWithReservedFields."""
    both = {**ONE, "fields": [{"name": "f", "type": "string"}, {"name": "g", "type": "string", "default": "d"}]}
    of_f, of_g = ({"schema": text(both), "metadata": {"properties": {"confluent:reserved": each}}} for each in "fg")
    registry.ok("PUT", "/config", {"compatibility": "BACKWARD", "validateFields": True})
    code, message = registry.refused("POST", "/subjects/s0/versions", of_f)
    assert (code, message.partition("details: ")[2]) == (
        40901,
        "[The new schema has field that conflicts with the reserved field f., "
        "{validateFields: 'true', compatibility: 'BACKWARD'}]",
    )
    assert registry.ok("POST", "/compatibility/subjects/s0/versions", of_f) == {"is_compatible": False}
    registry.ok("PUT", "/config/s1", {"validateFields": False})
    assert registry.ok("POST", "/subjects/s1/versions", of_f)["id"] == 1
    assert registry.ok("POST", "/subjects/s1/versions", of_g)["id"] == 2
    registry.ok("PUT", "/config", {"validateFields": False})
    assert registry.ok("POST", "/subjects/s0/versions", of_f)["id"] == 1
    registry.ok("PUT", "/config", {"validateFields": True})
    only_g = {**of_g, "schema": text({**both, "fields": both["fields"][1:]})}
    code, message = registry.refused("POST", "/subjects/s0/versions", only_g)
    assert (code, message.count("reserved field f removed"), message.count("reserved field g")) == (40901, 1, 1)
    odd = {"schema": text({"type": "object", "properties": {"$$a": {}}}), "schemaType": "JSON"}
    assert registry.refused("POST", "/subjects/j/versions", odd)[0] == 42201
