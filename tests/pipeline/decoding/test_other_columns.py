"""Columns by JSON Schemas and Protobuf messages."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest

from kbroker.pipeline.decoding.columns import Fields, Reader
from kbroker.schema_registry.formats.common import InvalidValue, Schema
from kbroker.schema_registry.formats.parsing import parse
from tests.pipeline.decoding.test_avro_column import typed


def json_schema(schema: Any) -> Schema:
    return parse("JSON", json.dumps(schema))


def obj(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        (obj(a={"type": "integer"}, b={"type": "number"}), {"a": "long", "b": "double"}),
        ({"properties": {"a": {"type": "string"}}, "required": ["a"]}, {"a": "string"}),
        (obj(a={"type": ["null", "boolean"]}), {"a": "boolean"}),
        (obj(a={"oneOf": [{"type": "null"}, obj(b={"type": "string"})]}), {"a": {"b": "string"}}),
        (obj(a={"anyOf": [{"type": "integer"}, {"type": "number"}]}), {"a": "double"}),
        (obj(a={"anyOf": [{"type": "integer"}, {"type": "string"}]}), {"a": "string"}),
        (obj(a={"enum": ["x", None]}), {"a": "string"}),
        (obj(a={"const": 5}), {"a": "long"}),
        (obj(a={"type": "string", "format": "date-time", "minLength": 3}), {"a": "string"}),
        (obj(a={"type": "array", "items": {"type": "integer"}}), {"a": ["long"]}),
        (obj(a={"type": "array"}, b={}, c={"type": "object"}), {"a": "string", "b": "string", "c": "string"}),
        (obj(a={"type": "object", "additionalProperties": {"type": "integer"}}), {"a": ("string", "long")}),
        ({"allOf": [obj(a={"type": "string"}), obj(b={"type": "integer"})]}, {"a": "string", "b": "long"}),
        ({**obj(a={"type": "string"}), "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, {"a": "string"}),
        (
            obj(a={"$ref": "#/definitions/d"}) | {"definitions": {"d": obj(b={"type": "string"})}},
            {"a": {"b": "string"}},
        ),
        (obj(a={"type": "integer"}, next={"$ref": "#"}), {"a": "long", "next": "string"}),
        (obj(a={"type": "integer"}, A={"type": "integer"}), "string"),
        ({"allOf": [{"$ref": "#"}]}, "string"),
        (True, "string"),
    ],
)  # fmt: skip
def test_types_of_json_schemas(schema: Any, kind: Any) -> None:
    assert typed(Reader(json_schema(schema)).column.type) == kind


def test_values_by_the_names_of_properties() -> None:
    old = json_schema(obj(a={"type": "integer"}, gone={"type": "string"}))
    new = json_schema(obj(b={"type": "string"}, a={"type": "number"}, any={}))
    reader = Reader(new)
    assert reader.value(old, b'{"a": 1, "gone": "x"}') == (None, 1.0, None)
    assert reader.value(new, b'{"b": "y", "any": {"k": [1, "\\u00e9"]}}') == ("y", None, '{"k":[1,"é"]}')
    with pytest.raises(InvalidValue, match="a value is no number"):
        reader.value(old, b'{"a": "no number"}')
    with pytest.raises(InvalidValue, match="a value is no text"):
        reader.value(json_schema({}), b'{"b": 5}')
    with pytest.raises(InvalidValue, match="half a character"):
        reader.value(new, b'{"b": "\\ud800"}')
    with pytest.raises(InvalidValue):
        reader.value(new, b'{"any": 1e999}')


def test_a_whole_number_is_exact_or_an_error() -> None:
    schema = json_schema(obj(a={"type": "integer"}))
    reader = Reader(schema)
    assert reader.value(schema, b'{"a": 9223372036854775807}') == (2**63 - 1,)
    assert reader.value(schema, b'{"a": 2.0}') == (2,)
    with pytest.raises(InvalidValue, match="64 bits"):
        reader.value(schema, b'{"a": 9223372036854775808}')


PROTO = """
syntax = "proto3"; package q;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/struct.proto";
message A {
  int32 a = 1; optional string b = 2; repeated B c = 3; map<int32, B> m = 4;
  oneof o { string x = 5; uint64 y = 6; }
  google.protobuf.Timestamp t = 7; A self = 8; E e = 9; google.protobuf.UInt64Value w = 10;
  google.protobuf.Struct free = 11; uint32 u = 12; float f = 13; repeated E es = 14; B b1 = 15;
  message B { bytes z = 1; }
}
enum E { ZERO = 0; ONE = 1; }
message Other { string visitor = 1; int64 time = 2; google.protobuf.Timestamp at = 3; }
"""


def test_a_protobuf_message() -> None:
    schema = parse("PROTOBUF", PROTO)
    reader = Reader(schema)
    assert typed(reader.column.type) == {
        "a": "integer",
        "b": "string",
        "c": [{"z": "binary"}],
        "m": ("integer", {"z": "binary"}),
        "x": "string",
        "y": "decimal(20,0)",
        "t": "timestamp",
        "self": "string",
        "e": "string",
        "w": "decimal(20,0)",
        "free": "string",
        "u": "long",
        "f": "float",
        "es": ["string"],
        "b1": {"z": "binary"},
    }
    value = {
        "c": [{"z": "AQI="}], "m": {"5": {"z": ""}}, "y": str(2**64 - 1), "self": {"a": 2}, "e": "ONE", "w": "7",
        "t": "2026-01-01T00:00:00.123456789Z", "free": {"k": [True]}, "u": 2**32 - 1, "f": 0.5, "es": ["ONE", "ZERO"],
    }  # fmt: skip
    found = reader.value(schema, schema.data_of(json.dumps(value)))
    assert found == (
        *(0, None, [(b"\1\2",)], {5: (b"",)}, None, Decimal(2**64 - 1), 1767225600123456, '{"a":2}', "ONE"),
        *(Decimal(7), '{"k":[true]}', 2**32 - 1, 0.5, ["ONE", "ZERO"], None),
    )


def test_protobuf_fields_are_found_by_their_numbers() -> None:
    old = parse(
        "PROTOBUF", 'syntax = "proto3"; message M { int32 n = 1; E e = 2; string gone = 3; } enum E { A = 0; B = 7; }'
    )
    new = parse(
        "PROTOBUF",
        'syntax = "proto3"; message M { optional string more = 4; int64 renamed = 1; E e = 2; } enum E { A = 0; }',
    )
    assert Reader(new).value(old, old.data_of('{"n": 5, "e": "B", "gone": "x"}')) == (None, 5, "7")
    assert Reader(old).value(new, new.data_of('{"more": "x", "renamed": "3"}')) == (3, "A", "")


def test_another_message_of_the_file_is_a_reason() -> None:
    schema = parse("PROTOBUF", PROTO)
    with pytest.raises(InvalidValue, match=r"is a message q\.Other, and the column is of q\.A"):
        Reader(schema).value(schema, b"\2\2")
    with pytest.raises(InvalidValue, match="no message has the indexes"):
        Reader(schema).value(schema, b"\2\x7e")


def test_fields_of_events() -> None:
    schema = parse("PROTOBUF", PROTO)
    data = b"\2\2" + b"\x0a\x01v" + b"\x10\x05"
    assert Fields(schema, ("visitor", "time", "at", "id")).of(data) == ("v", "5", None, None)
    events = json_schema(obj(visitor={"type": "string"}))
    found = Fields(events, ("visitor", "time", "id", "more")).of(b'{"visitor": "v", "time": 5.5, "more": {"a": null}}')
    assert found == ("v", "5.5", None, '{"a":null}')
    with pytest.raises(InvalidValue, match="no JSON object"):
        Fields(json_schema({}), ("visitor",)).of(b"[]")
