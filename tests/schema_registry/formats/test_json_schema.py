"""JSON Schema: printed forms, refusals, references, values, and comparisons that tables do not show."""

import json
from typing import Any

import pytest

from kbroker.schema_registry.formats.common import InvalidSchema, InvalidValue, java_order
from kbroker.schema_registry.formats.json_schema import JsonSchema
from kbroker.schema_registry.formats.parsing import compatible, parse

DRAFT_2020 = "https://json-schema.org/draft/2020-12/schema"


def schema(given: Any, references: dict[str, str] | None = None) -> JsonSchema:
    made = parse("JSON", given if isinstance(given, str) else json.dumps(given), references)
    assert isinstance(made, JsonSchema)
    return made


@pytest.mark.parametrize(
    ("given", "canonical", "normalized"),
    [
        ("true", "true", "true"),
        (' { "type" : "string" } ', '{"type":"string"}', '{"type":"string"}'),
        ('{"b":1,"a":{"d":[],"c":{}}}', '{"b":1,"a":{"d":[],"c":{}}}', '{"a":{"c":{},"d":[]},"b":1}'),
        # Digits stay as they are written, as with Java's BigDecimal.
        (
            '{"multipleOf":1.50,"maximum":1e10}',
            '{"multipleOf":1.50,"maximum":1E+10}',
            '{"maximum":1E+10,"multipleOf":1.50}',
        ),
        ('{"title":"\\u00e4\\n\\"/"}', '{"title":"ä\\n\\"/"}', '{"title":"ä\\n\\"/"}'),
    ],
)
def test_printed(given: str, canonical: str, normalized: str) -> None:
    made = schema(given)
    assert (made.canonical, made.normalized) == (canonical, normalized)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not JSON"),
        ("NaN", "not JSON"),
        ("1", "expected an object or boolean at the root, found NUMBER"),
        ("[]", "found ARRAY"),
        ('"x"', "found STRING"),
        ("null", "found NULL"),
        ('{"type":"foo"}', "foo"),
        ('{"minLength":-1}', "-1"),
        ('{"properties":[]}', "properties|object"),
        ('{"$ref":"#/definitions/a"}', "definitions/a"),
        ('{"$ref":"other.json"}', "other.json"),
        ('{"properties":{"a":{"$ref":"#/x"}}}', "x"),
    ],
)
def test_refused(text: str, said: str) -> None:
    with pytest.raises(InvalidSchema, match=f"^Invalid schema of type JSON, details: .*({said})"):
        schema(text)


def test_names_and_fields() -> None:
    made = schema({"title": "T", "properties": {"a": {}, "b": {}}})
    assert (made.name, made.names, made.fields) == ("T", ("T",), frozenset("ab"))
    assert (schema("{}").name, schema("true").fields) == (None, frozenset())


def test_references_by_name() -> None:
    """A reference names another schema; that one, a third; and parts of them."""
    references = {
        "c.json": '{"$defs":{"n":{"type":"integer"}}}',
        "b.json": '{"type":"object","properties":{"n":{"$ref":"c.json#/$defs/n"}},"required":["n"]}',
    }
    for root in ({}, {"$id": "http://acme.invalid/root.json"}, {"$schema": DRAFT_2020}):
        made = schema({**root, "properties": {"b": {"$ref": "b.json"}}}, references)
        made.check_value(b'{"b":{"n":1}}')
        for wrong in (b'{"b":{}}', b'{"b":{"n":"x"}}'):
            with pytest.raises(InvalidValue):
                made.check_value(wrong)
        changed = {**references, "c.json": '{"$defs":{"n":{"type":"string"}}}'}
        other = schema({**root, "properties": {"b": {"$ref": "b.json"}}}, changed)
        assert [(each.error_type, each.path) for each in compatible(other, made)] == [
            ("TYPE_CHANGED", "#/properties/b/properties/n")
        ]


@pytest.mark.parametrize(
    "text",
    [
        '{"definitions":{"a":{"type":"integer"}},"$ref":"#/definitions/a"}',
        '{"definitions":{"a":{"type":"integer"}},"$ref":"#/$defs/a"}',
        '{"definitions":{"a/b%":{"type":"integer"}},"$ref":"#/definitions/a~1b%25"}',
        '{"definitions":{"a":{"$id":"#here","type":"integer"}},"$ref":"#here"}',
        '{"definitions":{"a":{"$id":"other.json","type":"integer"}},"$ref":"other.json"}',
        f'{{"$schema":"{DRAFT_2020}","$defs":{{"a":{{"$anchor":"x","type":"integer"}}}},"$ref":"#x"}}',
        f'{{"$schema":"{DRAFT_2020}","$id":"http://a.invalid/b/","$defs":{{"a":{{"$id":"c","type":"integer"}}}},"$ref":"c"}}',
        '{"$schema":"http://json-schema.org/draft-04/schema#","id":"http://a.invalid/","definitions":{"a":{"id":"#q",'
        '"type":"integer"}},"$ref":"#q"}',
        '{"allOf":[{"type":"integer"}],"properties":{"x":{"$ref":"#/allOf/0"}},"$comment":"a list"}',
    ],
)
def test_references_within(text: str) -> None:
    """What the validator resolves, the comparison resolves, too."""
    made = schema(text)
    made.check_value(b"1")
    with pytest.raises(InvalidValue):
        made.check_value(b'"x"')
    assert compatible(made, made) == []
    assert compatible(schema('{"type":"string"}'), made)


def test_drafts() -> None:
    """A schema without `$schema`, or with an unknown one, has draft 7."""
    for said in ({}, {"$schema": "http://acme.invalid/schema"}, {"$schema": "http://json-schema.org/draft-07/schema#"}):
        made = schema({**said, "prefixItems": [{"type": "string"}], "items": [{"type": "integer"}]})
        assert made.draft == 7
        made.check_value(b"[1]")
        assert "$schema" not in said or f'"{said["$schema"]}"' in made.canonical
    made = schema({"$schema": DRAFT_2020, "prefixItems": [{"type": "string"}]})
    assert made.draft == 2020
    with pytest.raises(InvalidValue):
        made.check_value(b"[1]")
    four = schema({"$schema": "http://json-schema.org/draft-04/schema#", "maximum": 5, "exclusiveMaximum": True})
    with pytest.raises(InvalidValue):
        four.check_value(b"5")
    assert compatible(four, four) == []


def test_values() -> None:
    made = schema({"type": "object", "properties": {"a": {"pattern": "^(?=x)"}}, "required": ["a"]})
    made.check_value(b'{"a":"x"}')
    for wrong in (b"", b"{", b"\xff", b'{"a":"y"}', b"{}", b"1", b'{"a":1e999}'[:3]):
        with pytest.raises(InvalidValue):
            made.check_value(wrong)
    schema("true").check_value(b"1e999")
    with pytest.raises(InvalidValue):
        schema("false").check_value(b"1")


def recursive(first: str, second: str) -> JsonSchema:
    """Return alternatives that contain themselves: T0 and T1 refer to T2, and T2 to T0."""

    def one(kind: str, other: str) -> dict[str, Any]:
        return {"properties": {"id": {"type": kind}, "ref": {"oneOf": [{"$ref": f"#/definitions/{other}"}]}}}

    return schema(
        {
            "definitions": {"T0": one(first, "T2"), "T1": one(second, "T2"), "T2": one("integer", "T0")},
            "properties": {"root": {"oneOf": [{"$ref": "#/definitions/T0"}, {"$ref": "#/definitions/T1"}]}},
        }
    )


def test_a_circle_hides_nothing() -> None:
    """A pair that counts as compatible within itself, and is not, must not be believed elsewhere."""
    assert compatible(recursive("boolean", "number"), recursive("integer", "boolean"))
    assert compatible(recursive("integer", "boolean"), recursive("integer", "boolean")) == []


@pytest.mark.long
def test_many_alternatives_that_refer_to_each_other() -> None:
    names = [f"T{each}" for each in range(12)]
    union = {"oneOf": [{"$ref": f"#/definitions/{name}"} for name in names]}

    def trade(kind: str) -> JsonSchema:
        made = {name: {"properties": {"id": {"type": kind}, "one": union, "other": union}} for name in names}
        return schema({"definitions": made, "properties": {"product": union}})

    assert compatible(trade("string"), trade("string")) == []
    assert compatible(trade("number"), trade("string"))


def test_a_member_is_matched_with_one_member_only() -> None:
    """Both old members fit the first new one: a matching of both must be found, or there is none."""
    wide, narrow, other = {"maxLength": 9}, {"maxLength": 5}, {"type": "null"}
    old = schema({"anyOf": [narrow, {"maxLength": 7}]})
    assert compatible(schema({"anyOf": [{"maxLength": 8}, wide]}), old) == []
    assert [each.error_type for each in compatible(schema({"anyOf": [wide, other]}), old)] == [
        "COMBINED_TYPE_SUBSCHEMAS_CHANGED"
    ]


def test_order_of_java() -> None:
    """Orders that a HashSet of Java has: by hash, spread over 16 buckets or more."""
    assert java_order(["foo"], ["bar"]) == ["bar", "foo"]
    assert java_order(["prop2", "prop1"]) == ["prop2", "prop1"]
    assert java_order([17, 1, 16, 0]) == [16, 0, 17, 1]
    # 13 names have 32 buckets; k11 shares one with k5, k10 with k6, k12 with k8.
    order = "k0 k1 k2 k3 k4 k5 k11 k6 k10 k7 k8 k12 k9"
    assert " ".join(java_order([f"k{each}" for each in range(13)])) == order
