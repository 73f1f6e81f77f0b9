"""The registry's API by its endpoints: their responses, and the error codes of refused requests."""

from __future__ import annotations

import json
import threading

import pytest
from confluent_kafka import Producer

from kbroker import Broker
from tests.registry_api.conftest import AVRO_TYPE, Http

ONE = {"type": "record", "name": "One", "fields": [{"name": "a", "type": "int"}]}
TWO = {
    "type": "record",
    "name": "One",
    "fields": [{"name": "a", "type": "int"}, {"name": "b", "type": "int", "default": 0}],
}
OTHER = {"type": "record", "name": "One", "fields": [{"name": "c", "type": "int"}]}


def text(schema: object) -> str:
    return json.dumps(schema, separators=(",", ":"))


def test_a_schema_is_registered_and_found(registry: Http) -> None:
    first = registry.register("orders-value", ONE)
    assert {name: first[name] for name in ("id", "version", "schema")} == {"id": 1, "version": 1, "schema": text(ONE)}
    assert registry.register("orders-value", ONE) == first
    assert registry.register("orders-value", TWO)["version"] == 2
    assert registry.register("copies/value ü", ONE)["id"] == 1
    assert registry.ok("GET", "/subjects") == ["copies/value ü", "orders-value"]
    assert registry.ok("GET", "/subjects?subjectPrefix=orders") == ["orders-value"]
    assert registry.ok("GET", "/subjects?limit=1&offset=1") == ["orders-value"]
    assert registry.ok("GET", "/subjects/orders-value/versions") == [1, 2]
    latest = registry.ok("GET", "/subjects/orders-value/versions/latest")
    assert (latest["subject"], latest["version"], latest["id"]) == ("orders-value", 2, 2)
    assert registry.ok("GET", "/subjects/orders-value/versions/1/schema") == ONE
    assert registry.ok("GET", "/schemas/ids/2")["schema"] == text(TWO)
    assert registry.ok("GET", "/schemas/ids/2?fetchMaxId=true")["maxId"] == 2
    assert registry.ok("GET", "/schemas/ids/1/schema") == ONE
    assert registry.ok("GET", "/schemas/ids/1/subjects") == ["orders-value", "copies/value ü"]
    assert registry.ok("GET", "/schemas/ids/1/versions")[0] == {"subject": "orders-value", "version": 1}
    assert [each["version"] for each in registry.ok("GET", "/schemas?subjectPrefix=orders")] == [1, 2]
    assert [each["version"] for each in registry.ok("GET", "/schemas?subjectPrefix=orders&latestOnly=true")] == [2]
    assert set(registry.ok("GET", "/schemas/types")) == {"AVRO", "JSON", "PROTOBUF"}
    found = registry.ok("POST", "/subjects/orders-value", {"schema": json.dumps(ONE, indent=2)})
    assert (found["version"], found["id"]) == (1, 1)


def test_compatibility_is_checked_before_and_at_a_registration(registry: Http) -> None:
    registry.register("a", ONE)
    code, message = registry.refused("POST", "/subjects/a/versions", {"schema": text(OTHER)})
    assert code == 40901
    assert message.startswith(
        'Schema being registered is incompatible with an earlier schema for subject "a", details: '
    )
    assert "READER_FIELD_MISSING_DEFAULT_VALUE" in message
    for path in ("/compatibility/subjects/a/versions", "/compatibility/subjects/a/versions/latest"):
        assert registry.ok("POST", path, {"schema": text(OTHER)}) == {"is_compatible": False}
        told = registry.ok("POST", f"{path}?verbose=true", {"schema": text(OTHER)})["messages"]
        assert f"details: [{', '.join(told)}]" in message
        assert registry.ok("POST", path, {"schema": text(TWO)}) == {"is_compatible": True}
    assert registry.ok("POST", "/compatibility/subjects/none/versions/latest", {"schema": text(ONE)})["is_compatible"]
    assert registry.refused("POST", "/compatibility/subjects/a/versions/7", {"schema": text(ONE)})[0] == 40402
    assert registry.ok("PUT", "/config/a", {"compatibility": "none"}) == {"compatibility": "NONE"}
    assert registry.register("a", OTHER)["version"] == 2


def test_configs_and_modes(registry: Http) -> None:
    assert registry.ok("GET", "/config") == {"compatibilityLevel": "BACKWARD"}
    assert registry.refused("GET", "/config/a")[0] == 40408
    assert registry.ok("GET", "/config/a?defaultToGlobal=true") == {"compatibilityLevel": "BACKWARD"}
    assert registry.refused("PUT", "/config", {"compatibility": "SOME"})[0] == 42203
    assert registry.ok("PUT", "/config", {"compatibility": "FULL"}) == {"compatibility": "FULL"}
    change = {"compatibility": "FORWARD", "normalize": True, "compatibilityGroup": "major"}
    assert registry.ok("PUT", "/config/a", change) == change
    assert registry.ok("PUT", "/config/a", {"compatibilityGroup": None})["normalize"] is True
    assert registry.ok("GET", "/config/a") == {"compatibilityLevel": "FORWARD", "normalize": True}
    assert registry.ok("DELETE", "/config/a") == {"compatibilityLevel": "FORWARD", "normalize": True}
    assert registry.refused("DELETE", "/config/a")[0] == 40401
    assert registry.ok("DELETE", "/config") == {"compatibilityLevel": "FULL"}
    assert registry.ok("GET", "/mode") == {"mode": "READWRITE"}
    assert registry.refused("GET", "/mode/a")[0] == 40409
    assert registry.refused("PUT", "/mode/a", {"mode": "WRITE"})[0] == 42204
    assert registry.refused("PUT", "/mode/a", {"mode": "FORWARD"})[0] == 42204
    assert registry.ok("PUT", "/mode/a", {"mode": "READONLY"}) == {"mode": "READONLY"}
    assert registry.refused("POST", "/subjects/a/versions", {"schema": text(ONE)})[0] == 42205
    assert registry.ok("DELETE", "/mode/a") == {"mode": "READONLY"}
    assert registry.ok("GET", "/mode/a?defaultToGlobal=true") == {"mode": "READWRITE"}


def test_deletion_is_soft_and_then_for_good(registry: Http) -> None:
    registry.register("a", ONE)
    registry.register("a", TWO)
    assert registry.refused("DELETE", "/subjects/a?permanent=true")[0] == 40405
    assert registry.ok("DELETE", "/subjects/a/versions/1") == 1
    assert registry.refused("GET", "/subjects/a/versions/1")[0] == 40402
    assert registry.ok("GET", "/subjects/a/versions/1?deleted=true")["deleted"] is True
    assert registry.ok("GET", "/subjects/a/versions?deletedAsNegative=true") == [-1, 2]
    assert registry.ok("GET", "/subjects/a/versions?deletedOnly=true") == [1]
    assert registry.ok("GET", "/schemas/ids/1")["schema"] == text(ONE)
    assert registry.refused("DELETE", "/subjects/a/versions/1")[0] == 40406
    assert registry.ok("DELETE", "/subjects/a/versions/1?permanent=true") == 1
    assert registry.refused("GET", "/schemas/ids/1")[0] == 40403
    assert registry.ok("DELETE", "/subjects/a") == [2]
    assert registry.ok("GET", "/subjects") == []
    assert registry.ok("GET", "/subjects?deleted=true") == ["a"]
    assert registry.refused("DELETE", "/subjects/a")[0] == 40404
    assert registry.ok("DELETE", "/subjects/a?permanent=true") == [2]
    assert registry.refused("DELETE", "/subjects/a?permanent=true")[0] == 40401


def test_references_are_resolved_and_protect_what_they_name(registry: Http) -> None:
    registry.register("one", ONE)
    holder = {"type": "record", "name": "Holder", "fields": [{"name": "one", "type": "One"}]}
    reference = {"name": "One", "subject": "one", "version": 1}
    assert registry.refused("POST", "/subjects/h/versions", {"schema": text(holder)})[0] == 42201
    missing = {"schema": text(holder), "references": [{**reference, "version": 9}]}
    code, message = registry.refused("POST", "/subjects/h/versions", missing)
    assert code == 42201
    assert 'subject "one" and version 9' in message
    made = registry.register("h", holder, references=[reference])
    assert made["references"] == [reference]
    assert registry.ok("GET", "/subjects/one/versions/1/referencedby") == [made["id"]]
    code, message = registry.refused("DELETE", "/subjects/one/versions/1")
    assert code == 42206
    assert message.endswith("{magic=1,keytype=SCHEMA,subject=one,version=1}.")
    found = registry.ok("POST", "/subjects/h", {"schema": text(holder), "references": [reference]})
    assert found["version"] == 1


def test_contexts(registry: Http) -> None:
    registry.register("a", ONE)
    assert registry.register(":.blue:a", TWO)["id"] == 1
    assert registry.ok("GET", "/contexts") == [".", ".blue"]
    assert registry.ok("GET", "/subjects") == [":.blue:a", "a"]
    assert registry.ok("GET", "/subjects?subjectPrefix=:.blue:") == [":.blue:a"]
    assert registry.ok("GET", "/schemas/ids/1?subject=:.blue:")["schema"] == text(TWO)
    assert registry.ok("GET", "/schemas/ids/1")["schema"] == text(ONE)
    registry.register(":.blue:only", OTHER)
    assert registry.ok("GET", "/subjects/only/versions/1")["subject"] == ":.blue:only"
    assert registry.refused("DELETE", "/contexts/:.blue:")[0] == 42211


def test_metadata_and_rules_are_kept_and_inherited(registry: Http) -> None:
    metadata = {"properties": {"owner": "me"}, "tags": {"One.a": ["PII"]}}
    rule = {"name": "r", "kind": "CONDITION", "mode": "WRITE", "type": "CEL", "expr": "true", "disabled": False}
    rules = {"domainRules": [rule]}
    registry.register("a", ONE, metadata=metadata, ruleSet=rules)
    assert registry.register("b", ONE, metadata=None, ruleSet=None)["id"] == 2
    second = registry.register("a", TWO)
    assert (second["metadata"], second["ruleSet"]) == (metadata, rules)
    assert [each["subject"] for each in registry.ok("GET", "/schemas?ruleType=CEL")] == ["a", "a"]


def test_what_is_no_request_of_the_api(registry: Http) -> None:
    assert registry.refused("GET", "/nothing") == (404, "HTTP 404 Not Found")
    assert registry.refused("PUT", "/subjects") == (405, "HTTP 405 Method Not Allowed")
    assert registry.refused("GET", "/subjects/a/versions/first")[0] == 42202
    assert registry.refused("GET", "/subjects/a/versions/0")[0] == 42202
    assert registry.refused("GET", "/subjects/a/versions/1")[0] == 40401
    assert registry.refused("GET", "/schemas/ids/99999999999")[0] == 404
    assert registry.refused("GET", "/schemas/ids/7") == (40403, "Schema 7 not found")
    assert registry.refused("POST", "/subjects/__GLOBAL/versions", {"schema": text(ONE)})[0] == 42208
    assert registry.refused("POST", "/subjects/a/versions", {"schema": "{"})[0] == 42201
    assert registry.refused("POST", "/subjects/a/versions", {"schema": ""})[0] == 42201
    assert registry.refused("POST", "/subjects/a/versions", {"schema": "{}", "schemaType": "XML"})[0] == 42201
    assert registry.refused("POST", "/subjects/a/versions", {"schema": 7})[0] == 400
    for body, kind, status in (
        (b"{", AVRO_TYPE, 400),
        (b"[]", AVRO_TYPE, 400),
        (b"", AVRO_TYPE, 422),
        (b"[" * 100_000, AVRO_TYPE, 400),
        (b"{}", "text/xml", 415),
        (b" " * (3 << 20), AVRO_TYPE, 413),
    ):
        assert registry.raw("POST", "/subjects/a/versions", body, kind)[0] == status, body[:10]
    assert registry.ok("GET", "/") == {}
    assert registry.ok("GET", "/v1/metadata/id")["scope"]["clusters"]["kafka-cluster"]


@pytest.mark.parametrize("path", ["/subjects", "/config", "/schemas/types"])
def test_head_is_as_get_without_a_body(registry: Http, path: str) -> None:
    status, body = registry.raw("HEAD", path)
    assert (status, body) == (200, b"")


@pytest.mark.parametrize(
    ("name", "value"), [("aliasForDeks", "other"), ("validateRules", True), ("compatibilityPolicy", "LENIENT")]
)
def test_a_config_without_effect_is_refused(registry: Http, name: str, value: object) -> None:
    code, message = registry.refused("PUT", "/config/a", {name: value})
    assert (code, message) == (42205, f"{name} has no effect in this registry")
    assert registry.ok("PUT", "/config/a", {"compatibility": "NONE", name: None}) == {"compatibility": "NONE"}


def test_rules_and_forms_that_nobody_could_use_are_refused(registry: Http) -> None:
    rules = {"domainRules": [{"name": "r", "kind": "CONDITION", "mode": "UPGRADE", "type": "CEL"}]}
    assert registry.refused("POST", "/subjects/a/versions", {"schema": text(ONE), "ruleSet": rules})[0] == 42210
    properties = {"properties": {"n": 7}}
    assert registry.refused("POST", "/subjects/a/versions", {"schema": text(ONE), "metadata": properties})[0] == 42210
    assert registry.refused("PUT", "/config", {"defaultRuleSet": rules})[0] == 42210
    registry.register("a", ONE)
    assert registry.ok("GET", "/schemas/ids/1?format=serialized")["schema"] == text(ONE), "a form it does not have"
    proto = registry.register("p", 'syntax = "proto3"; message M { int32 a = 1; }', schemaType="PROTOBUF")
    assert registry.ok("GET", f"/schemas/ids/{proto['id']}?format=serialized")["schema"].endswith("cHJvdG8z")


def test_the_topic_is_read_as_another_registry_has_left_it(broker: Broker, registry: Http) -> None:
    """The records are as Confluent's registry writes them, and are copied while this one serves."""
    registry.register("a", ONE)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for key, value in (
        (
            {"keytype": "SCHEMA", "subject": "b", "version": 1, "magic": 1},
            {"subject": "b", "version": 1, "id": 7, "md5": "", "schema": text(TWO), "deleted": False, "ts": 1},
        ),
        ({"keytype": "CONFIG", "subject": None, "magic": 0}, {"compatibilityLevel": "FULL"}),
        ({"keytype": "NOOP", "magic": 0}, None),
    ):
        producer.produce("_schemas", None if value is None else text(value), text(key))
    producer.produce("_schemas", b"nonsense", b"nonsense")
    assert producer.flush(20) == 0
    assert registry.ok("GET", "/schemas/ids/7")["schema"] == text(TWO)
    assert registry.ok("GET", "/config") == {"compatibilityLevel": "FULL"}
    assert registry.register("c", OTHER)["id"] == 8
    keys = [json.loads(each.key or b"") for each in broker.topics["_schemas"].records() if each.key != b"nonsense"]
    assert keys[0] == {"keytype": "SCHEMA", "subject": "a", "version": 1, "magic": 1}


def test_writers_of_one_subject_at_once_get_ids_without_a_hole(registry: Http) -> None:
    answers: list[tuple[int, int]] = []

    def write(name: str) -> None:
        for number in range(20):
            field = {"name": f"{name}{number}", "type": "int", "default": 0}
            found = registry.register("s", {"type": "record", "name": "One", "fields": [field]})
            answers.append((found["version"], found["id"]))

    writers = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for each in writers:
        each.start()
    for each in writers:
        each.join(60)
    assert sorted(answers) == [(number, number) for number in range(1, 81)]


def test_a_registry_goes_with_its_broker_and_is_kept_in_a_snapshot() -> None:
    before = threading.enumerate()
    with Broker(registry=True) as broker:
        own = {each for each in threading.enumerate() if each not in before and each.name.startswith("kbroker")}
        assert "kbroker-schema" in {each.name for each in own}
        http = Http(broker.registry_url)
        http.register("a", ONE)
        kept = broker.snapshot()
        broker.reset()
        assert http.ok("GET", "/subjects") == []
        broker.restore(kept)
        assert http.ok("GET", "/subjects") == ["a"]
    assert not [each for each in own if each.is_alive()]


def test_a_descriptor_is_returned_as_it_was_sent(registry: Http) -> None:
    """A client that keeps the answer's text for its deserializer could not read the schema's text."""
    sent = "CgdkZWZhdWx0IhEKAUESDAoBeBgBIAEoBVIBeGIGcHJvdG8z"
    made = registry.register("p", sent, schemaType="PROTOBUF")
    assert made["schema"] == sent
    assert "message A" in registry.ok("GET", "/subjects/p/versions/1")["schema"]
