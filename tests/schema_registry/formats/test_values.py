"""Values of all formats: from JSON to bytes and back."""

from __future__ import annotations

import json
from datetime import date
from decimal import Decimal
from typing import Any

import pytest

from kbroker.schema_registry.formats.common import InvalidValue, Schema
from kbroker.schema_registry.formats.parsing import parse

AVRO = json.dumps(
    {
        "type": "record", "name": "Order", "namespace": "shop",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "note", "type": ["null", "string"], "default": None},
            {"name": "by", "type": "Person"},
            {"name": "raw", "type": "bytes", "default": ""},
        ],
    }
)  # fmt: skip
PERSON = '{"type": "record", "name": "Person", "namespace": "shop", "fields": [{"name": "name", "type": "string"}]}'
PROTO = """syntax = "proto3"; package shop; import "person.proto"; import "google/protobuf/timestamp.proto";
message Order { int64 id = 1; Person by = 2; google.protobuf.Timestamp at = 3; message Line { string sku = 1; } }"""
PERSON_PROTO = 'syntax = "proto3"; package shop; message Person { string name = 1; }'
JSON = (
    '{"type": "object", "properties": {"id": {"type": "integer"}, "by": {"$ref": "person.json"}}, "required": ["id"]}'
)
PERSON_JSON = '{"type": "object", "properties": {"name": {"type": "string"}}}'


def avro() -> Schema:
    return parse("AVRO", AVRO, {"shop.Person": PERSON})


def protobuf() -> Schema:
    return parse("PROTOBUF", PROTO, {"person.proto": PERSON_PROTO})


def json_schema() -> Schema:
    return parse("JSON", JSON, {"person.json": PERSON_JSON})


@pytest.mark.parametrize(
    ("schema", "given", "shown"),
    [
        (avro, {"id": 7, "by": {"name": "a"}}, {"id": 7, "note": None, "by": {"name": "a"}, "raw": b""}),
        (
            avro,
            {"id": 7, "note": {"string": "x"}, "by": {"name": "a"}, "raw": "\u00ff"},
            {"id": 7, "note": "x", "by": {"name": "a"}, "raw": b"\xff"},
        ),
        (
            avro,
            {"id": 7, "note": "x", "by": {"name": "a"}},
            {"id": 7, "note": "x", "by": {"name": "a"}, "raw": b""},
        ),
        (
            protobuf,
            {"id": "7", "by": {"name": "a"}, "at": "2026-01-31T12:00:00Z"},
            {"id": "7", "by": {"name": "a"}, "at": "2026-01-31T12:00:00Z"},
        ),
        (json_schema, {"id": 7, "by": {"name": "\u00e9"}}, {"id": 7, "by": {"name": "\u00e9"}}),
    ],
)  # fmt: skip
def test_from_json_to_bytes_and_back(schema: Any, given: Any, shown: Any) -> None:
    made: Schema = schema()
    data = made.data_of(json.dumps(given))
    made.check_value(data)
    assert made.value_of(data) == shown


def test_a_message_within_a_message_is_found_by_its_indexes() -> None:
    assert protobuf().value_of(b"\x04\x00\x00\x0a\x01s") == {"sku": "s"}


@pytest.mark.parametrize("schema", [avro, protobuf, json_schema])
@pytest.mark.parametrize("wrong", [{"id": "x"}, {"other": 1}, [], 7, None, "x", {"id": 7, "by": 9}])
def test_values_of_another_form_are_refused(schema: Any, wrong: Any) -> None:
    made: Schema = schema()
    with pytest.raises(InvalidValue, match="does not match"):
        made.data_of(json.dumps(wrong))


def test_logical_types_and_defaults_of_all_kinds() -> None:
    text = """{"type": "record", "name": "R", "fields": [
        {"name": "day", "type": {"type": "int", "logicalType": "date"}, "default": 1},
        {"name": "sum", "type": {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}},
        {"name": "odd", "type": {"type": "string", "logicalType": "none such"}, "default": "x"},
        {"name": "many", "type": {"type": "array", "items": "double"}, "default": [1.5]},
        {"name": "by", "type": {"type": "map", "values": "float"}, "default": {"a": 1e3}}]}"""
    made = parse("AVRO", text)
    value = made.value_of(made.data_of('{"sum": "\\u0001\\u00f4"}'))
    assert value == {
        "day": date(1970, 1, 2), "sum": Decimal("5.00"), "odd": "x", "many": [1.5], "by": {"a": 1000.0},
    }  # fmt: skip


@pytest.mark.parametrize("schema", [avro, protobuf, json_schema])
def test_deep_values_are_refused(schema: Any) -> None:
    with pytest.raises(InvalidValue, match="nested too deeply"):
        schema().data_of('{"by":' * 100_000 + "1" + "}" * 100_000)


def test_json_is_read_whether_it_matches_or_not() -> None:
    assert json_schema().value_of(b'{"id": "x"}') == {"id": "x"}
    with pytest.raises(InvalidValue, match="not JSON"):
        json_schema().value_of(b"{")


UNION = """["null", "long", "double", {"type": "map", "values": "int"}, {"type": "enum", "name": "E", "symbols": ["A"]},
    {"type": "record", "name": "a.R", "fields": [{"name": "x", "type": ["null", "a.R"]}]},
    {"type": "fixed", "name": "F", "size": 2}, "string"]"""


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (None, None),
        (7, 7),
        (1 << 70, float(1 << 70)),
        (1.5, 1.5),
        ({"double": 1}, 1.0),
        ({"a": 1}, {"a": 1}),
        ({"long": 1}, 1),
        ({"map": {"long": 1}}, {"long": 1}),
        ("A", "A"),
        ({"string": "A"}, "A"),
        ({"x": None}, {"x": None}),
        ({"a.R": {"x": {"a.R": {"x": None}}}}, {"x": {"x": None}}),
        ({"R": {"x": {"x": None}}}, {"x": {"x": None}}),
        ("zz", b"zz"),
        ("zzz", "zzz"),
    ],
)  # fmt: skip
def test_a_union_in_both_forms(given: Any, shown: Any) -> None:
    made = parse("AVRO", UNION)
    assert made.value_of(made.data_of(json.dumps(given))) == shown


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ('{"id": "x", "by": {"name": "a"}}', "value.id is no long"),
        ('{"id": 1}', "value.by is missing"),
        ('{"id": 1, "by": {"name": "a", "age": 1}}', "value.by has a field age, and shop.Person has none of this name"),
        ('{"id": 1, "by": {"name": "a"}, "raw": "\\u0100"}', "value.raw is bytes, but has a character beyond"),
        ('{"id": 9223372036854775808, "by": {"name": "a"}}', "value.id is no long"),
    ],
)  # fmt: skip
def test_the_place_that_does_not_match_is_named(given: str, said: str) -> None:
    with pytest.raises(InvalidValue, match=said):
        avro().data_of(given)
