"""Columns by Avro schemas: types, and values that older and newer schemas wrote."""

from __future__ import annotations

import json
import random
import time
from decimal import Decimal
from typing import Any

import pytest

from kbroker.pipeline.decoding.columns import Fields, Reader
from kbroker.schema_registry.formats.common import InvalidValue, Schema
from kbroker.schema_registry.formats.parsing import parse

MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
MICROS = {"type": "long", "logicalType": "timestamp-micros"}
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}


A_OR_B = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
LONG_DECIMAL = {**DECIMAL, "precision": 50}


def avro(schema: Any) -> Schema:
    return parse("AVRO", json.dumps(schema))


def record(*fields: tuple[Any, ...], name: str = "R") -> dict[str, Any]:
    """Return a record of (name, type) or (name, type, default)."""
    read = [dict(zip(("name", "type", "default"), each, strict=False)) for each in fields]
    return {"type": "record", "name": name, "fields": read}


def typed(kind: Any) -> Any:
    """Return a type in short form: a struct as a dict, an array as a list, a map as a tuple."""
    if isinstance(kind, str):
        return kind
    if kind["type"] == "struct":
        return {each["name"]: typed(each["type"]) for each in kind["fields"]}
    if kind["type"] == "array":
        return [typed(kind["elementType"])]
    return (typed(kind["keyType"]), typed(kind["valueType"]))


def type_of(schema: Any) -> Any:
    return typed(Reader(avro(schema)).column.type)


def read(writer: Any, reader: Any, value: Any) -> Any:
    """Return what a reader's column contains for a value in Avro's JSON that a writer's schema wrote."""
    written = avro(writer)
    return Reader(avro(reader)).value(written, written.data_of(json.dumps(value)))


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ("string", "string"),
        ("null", "string"),
        (["null", "boolean"], "boolean"),
        (["int", "null", "long"], "long"),
        (["float", "double"], "double"),
        (["int", "string"], {"member0": "integer", "member1": "string"}),
        ({"type": "array", "items": ["null", "float"]}, ["float"]),
        ({"type": "map", "values": "bytes"}, ("string", "binary")),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "string"),
        ({"type": "fixed", "name": "F", "size": 3}, "binary"),
        (DECIMAL, "decimal(10,2)"),
        ({**DECIMAL, "precision": 40}, "string"),
        ({**DECIMAL, "scale": 11}, "binary"),
        ({"type": "fixed", "name": "F", "size": 2, "logicalType": "decimal", "precision": 5}, "binary"),
        ({"type": "fixed", "name": "F", "size": 2, "logicalType": "decimal", "precision": 4}, "decimal(4,0)"),
        ({"type": "int", "logicalType": "date"}, "date"),
        ({"type": "long", "logicalType": "date"}, "long"),
        ({"type": "int", "logicalType": "time-millis"}, "integer"),
        (MILLIS, "timestamp"),
        (MICROS, "timestamp"),
        ({"type": "long", "logicalType": "timestamp-nanos"}, "long"),
        ({"type": "long", "logicalType": "local-timestamp-millis"}, "timestamp_ntz"),
        ({"type": "string", "logicalType": "uuid"}, "string"),
        ({"type": "fixed", "name": "F", "size": 16, "logicalType": "uuid"}, "string"),
        (record(("a", "int"), ("b", record(("c", "long"), name="S"))), {"a": "integer", "b": {"c": "long"}}),
        (record(("a", "int"), ("more", {"type": "array", "items": "R"})), {"a": "integer", "more": ["string"]}),
        (record(), "string"),
        (record(("a", "int"), ("A", "int")), "string"),
    ],
)
def test_types_are_those_of_sparks_own_source(schema: Any, kind: Any) -> None:
    assert type_of(schema) == kind


def test_a_type_that_multiplies_ends() -> None:
    schema: Any = "int"
    for level in range(14):
        name = f"L{level}"
        inner = schema if level == 0 else f"L{level - 1}"
        schema = record(("a", schema), ("b", inner), name=name)
    text = json.dumps(Reader(avro(schema)).column.type)
    assert len(text) < 1_000_000
    assert read(schema, schema, _of_depth(14)) is not None


def _of_depth(depth: int) -> Any:
    return {"a": _of_depth(depth - 1), "b": _of_depth(depth - 1)} if depth > 1 else {"a": 1, "b": 2}


@pytest.mark.parametrize(
    ("writer", "reader", "value", "found"),
    [
        ("int", "long", 5, 5),
        ("int", "double", 5, 5.0),
        ("long", "float", 5, 5.0),
        ("string", "bytes", "é", "é".encode()),
        ("bytes", "string", "\u00c3\u00a9", "é"),
        ("int", ["null", "string", "double"], 5, (None, 5.0)),
        (["null", "int"], "int", {"int": 5}, 5),
        (["int", "long", "string"], ["int", "long", "string"], {"long": 1 << 40}, (None, 1 << 40, None)),
        (["float", "double", "string"], ["float", "double", "string"], {"double": 0.1}, (None, 0.1, None)),
        (["float", "double", "string"], ["float", "double", "string"], {"double": 0.5}, (0.5, None, None)),
        (["string", "int"], ["int", "string"], {"string": "x"}, (None, "x")),
        (["null", "string"], ["null", "string"], None, None),
        (record(("a", "int"), ("c", "string")), record(("b", "int", 3), ("a", "long")), {"a": 1, "c": ""}, (3, 1)),
        (
            record(("old", "int"), name="A"),
            {"type": "record", "name": "B", "fields": [{"name": "new", "aliases": ["old"], "type": "int"}]},
            {"old": 1},
            (1,),
        ),
        (
            {"type": "enum", "name": "E", "symbols": ["A", "B"]},
            {"type": "enum", "name": "E", "symbols": ["A", "C"], "default": "C"},
            "B",
            "C",
        ),
        (
            MILLIS,
            MICROS,
            -1,
            -1000,
        ),
        (
            MICROS,
            MILLIS,
            7,
            7,
        ),
        (MICROS, MICROS, 2**63 - 1, 2**63 - 1),
        (DECIMAL, {**DECIMAL, "scale": 4}, "\u0001\u0000", Decimal("2.5600")),
        (DECIMAL, {**DECIMAL, "scale": 0}, "\u0001\u002c", Decimal(3)),
        (DECIMAL, DECIMAL, "\u00ff", Decimal("-0.01")),
        (LONG_DECIMAL, LONG_DECIMAL, "\u007f" + "\u00ff" * 16, f"{2**135 // 100}.{2**135 % 100 - 1}"),
        ({"type": "map", "values": "int"}, {"type": "map", "values": "long"}, {"a": 1}, {"a": 1}),
    ],
)  # fmt: skip
def test_values_are_resolved_to_the_readers_schema(writer: Any, reader: Any, value: Any, found: Any) -> None:
    assert read(writer, reader, value) == found


def test_defaults_of_all_types() -> None:
    inner = record(("x", "int", 1), ("y", ["null", "int"], None), name="I")
    fields = [
        ("bytes", "bytes", "\u00ff"),
        ("price", DECIMAL, "\u0001\u0000"),
        ("inner", inner, {"x": 7}),
        ("list", {"type": "array", "items": ["string", "int"]}, ["a"]),
        ("union", ["string", "int"], "s"),
        ("double", "double", 1),
        ("at", MILLIS, 3),
    ]
    found = read(record(), record(*fields), {})
    assert found == (b"\xff", Decimal("2.56"), (7, None), [("a", None)], ("s", None), 1.0, 3000)


@pytest.mark.parametrize(
    ("writer", "reader", "value", "reason"),
    [
        ("string", "int", "x", "value: string cannot be read as int"),
        (record(("a", "string")), record(("a", "int")), {"a": "x"}, r"value\.a: string cannot be read as int"),
        (record(), record(("a", "int")), {}, r"value\.a is missing, and has no default"),
        (["null", "int"], "int", None, "null cannot be read as int"),
        (DECIMAL, {**DECIMAL, "scale": 1}, "\u0001", "more than 1 digits after the point"),
        (DECIMAL, {**DECIMAL, "precision": 2}, "\u0001\u0000", "more than 2 digits"),
        (MILLIS, MILLIS, 2**62, "64 bits"),
        ("double", ["int", "string"], 0.5, "double is no branch of the union"),
        (A_OR_B, {**A_OR_B, "symbols": ["B"]}, "A", "has no symbol A"),
        ("bytes", "string", "\u00ff", "not UTF-8"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_has_a_reason(writer: Any, reader: Any, value: Any, reason: str) -> None:
    with pytest.raises(InvalidValue, match=reason):
        read(writer, reader, value)


def test_a_branch_that_cannot_be_read_is_no_error_of_the_others() -> None:
    assert read(["string", "int"], "int", {"int": 1}) == 1
    with pytest.raises(InvalidValue, match="string cannot be read as int"):
        read(["string", "int"], "int", {"string": "x"})


def test_a_recursive_schema_is_json_where_it_recurs() -> None:
    at = MILLIS
    schema = record(("at", at), ("price", DECIMAL), ("next", ["null", "R"]))
    value = {"at": 0, "price": "\u0001\u0000", "next": {"R": {"at": 1, "price": "\u0001", "next": None}}}
    text = '{"at":"1970-01-01T00:00:00.001000Z","price":"0.01","next":null}'
    assert read(schema, schema, value) == (0, Decimal("2.56"), text)


def test_a_value_that_is_nested_too_deeply_is_an_error() -> None:
    schema = avro(record(("next", ["null", "R"])))
    with pytest.raises(InvalidValue):
        Reader(schema).value(schema, b"\2" * 100_000 + b"\0")


def test_hostile_bytes_raise_nothing_else() -> None:
    old = avro(record(("a", ["null", "int", "string"]), ("m", {"type": "map", "values": DECIMAL}), ("e", "string")))
    new = avro(record(("a", ["string", "null", "long"]), ("m", {"type": "map", "values": {**DECIMAL, "scale": 3}})))
    reader, drawn = Reader(new), random.Random(1)
    for _ in range(3_000):
        try:
            reader.value(old, drawn.randbytes(drawn.randrange(30)))
        except InvalidValue:
            continue


def test_another_format_is_a_reason() -> None:
    with pytest.raises(InvalidValue, match="of type JSON, not AVRO"):
        Reader(avro("int")).value(parse("JSON", "{}"), b"1")


def test_fields_of_events() -> None:
    at = MICROS
    fields = [("who", "int"), ("at", at), ("id", ["null", "string"]), ("raw", "bytes"), ("price", DECIMAL)]
    schema = avro(record(*fields, ("list", {"type": "array", "items": DECIMAL})))
    value = {"who": 5, "at": -1, "id": None, "raw": "x", "price": "\u0001", "list": ["\u0001"]}
    data = schema.data_of(json.dumps(value))
    names = ("who", "at", "id", "raw", "price", "list", "none")
    assert Fields(schema, names).of(data) == ("5", "-1", None, "x", "0.01", '["0.01"]', None)
    with pytest.raises(InvalidValue, match="no record"):
        Fields(avro("int"), names).of(b"\2")


def test_an_int_that_is_none_is_an_error() -> None:
    """fastavro reads an int as a long, of which Spark would use the lower half."""
    for kind in ("int", {"type": "int", "logicalType": "date"}):
        written = avro("long").data_of(str(1 << 31))
        with pytest.raises(InvalidValue, match="more than 32 bits"):
            Reader(avro(kind)).value(avro(kind), written)
        assert Reader(avro(kind)).value(avro(kind), avro("long").data_of(str((1 << 31) - 1))) == (1 << 31) - 1


def test_decimals_of_another_scale_take_no_time() -> None:
    writer = avro({**DECIMAL, "scale": 4})
    reader, data = Reader(avro(DECIMAL)), b"\x04\x27\x10"
    began = time.process_time()
    assert {reader.value(writer, data) for _ in range(50)} == {Decimal("1.00")}
    assert time.process_time() - began < 5
