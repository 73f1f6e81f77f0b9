"""Avro: what one schema reads of another's, printed forms, refusals, values.

The pairs are those of Avro's own libraries and specification ("Schema Resolution"), in short schemas: Java's
TestSchemaCompatibility, Python's test_compatibility.py.
"""

import json
import warnings
from typing import Any

import pytest

from kbroker.schema_registry.formats.common import InvalidSchema, InvalidValue, Schema
from kbroker.schema_registry.formats.parsing import compatible, parse


def avro(schema: Any, references: dict[str, str] | None = None) -> Schema:
    return parse("AVRO", schema if isinstance(schema, str) else json.dumps(schema), references)


def record(name: str, *fields: Any, **more: Any) -> dict[str, Any]:
    made = [{"name": each[0], "type": each[1], **(each[2] if len(each) > 2 else {})} for each in fields]
    return {"type": "record", "name": name, "fields": made, **more}


def enum(name: str, *symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": name, "symbols": list(symbols), **more}


def fixed(name: str, size: int) -> dict[str, Any]:
    return {"type": "fixed", "name": name, "size": size}


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def mapping(values: Any) -> dict[str, Any]:
    return {"type": "map", "values": values}


NO_DEFAULT: dict[str, Any] = {}
LIST = record("List", ("head", "int"), ("tail", ["null", "List"], {"default": None}))
READS: list[tuple[Any, Any]] = [
    ('"boolean"', '"boolean"'),
    ('"int"', '"int"'),
    ('"null"', '"null"'),
    ('"long"', '"int"'),
    ('"float"', '"int"'),
    ('"float"', '"long"'),
    ('"double"', '"int"'),
    ('"double"', '"long"'),
    ('"double"', '"float"'),
    ('"string"', '"bytes"'),
    ('"bytes"', '"string"'),
    (array("int"), array("int")),
    (array("long"), array("int")),
    (mapping("int"), mapping("int")),
    (mapping("long"), mapping("int")),
    (enum("E", "A", "B"), enum("E", "A", "B")),
    (enum("E", "A", "B", "C"), enum("E", "A", "B")),
    (enum("E", "A", default="A"), enum("E", "A", "B")),
    (fixed("F", 4), fixed("F", 4)),
    ([], []),
    (["int"], []),
    (["int"], ["int"]),
    (["int", "string"], ["string", "int"]),
    (["long"], ["int"]),
    (["float"], ["int", "long"]),
    (["double"], ["float"]),
    (["string"], ["bytes"]),
    (["bytes"], ["string"]),
    (["int", "string"], "int"),
    ("string", ["string", "bytes"]),
    ("double", ["int", "long"]),
    (["null", "string"], "string"),
    (record("R"), record("R")),
    (record("R"), record("R", ("a", "int"))),
    (record("R", ("a", "int", {"default": 0})), record("R")),
    (record("R", ("a", "int", {"default": 0})), record("R", ("a", "int"))),
    (record("R", ("a", "long")), record("R", ("a", "int"))),
    (record("R", ("b", "int", {"aliases": ["a"]})), record("R", ("a", "int"))),
    (record("R", ("a", ["null", "int"], {"default": None})), record("R", ("a", "int"))),
    (record("R", ("a", "int"), ("b", "int", {"default": 1})), record("R", ("b", "int"), ("a", "int"))),
    (LIST, LIST),
    (record("N", aliases=["O"]), record("O")),
    (record("N", namespace="x", aliases=["O"]), record("O", namespace="x")),
    # Only the last part of a name counts.
    (record("R", namespace="x"), record("R", namespace="y")),
    ({"type": "int", "logicalType": "date"}, "int"),
    ({"type": "bytes", "logicalType": "decimal", "precision": 4}, "bytes"),
    (
        record("R", ("a", enum("E", "A", default="A"), {"default": "A"})),
        record("R"),
    ),
]
READS_NOT: list[tuple[Any, Any, list[str]]] = [
    ("null", "int", ["TYPE_MISMATCH /"]),
    ("boolean", "int", ["TYPE_MISMATCH /"]),
    ("int", "null", ["TYPE_MISMATCH /"]),
    ("int", "boolean", ["TYPE_MISMATCH /"]),
    ("int", "long", ["TYPE_MISMATCH /"]),
    ("int", "float", ["TYPE_MISMATCH /"]),
    ("int", "double", ["TYPE_MISMATCH /"]),
    ("long", "float", ["TYPE_MISMATCH /"]),
    ("long", "double", ["TYPE_MISMATCH /"]),
    ("float", "double", ["TYPE_MISMATCH /"]),
    ("string", "boolean", ["TYPE_MISMATCH /"]),
    ("string", "int", ["TYPE_MISMATCH /"]),
    ("bytes", "null", ["TYPE_MISMATCH /"]),
    ("bytes", "int", ["TYPE_MISMATCH /"]),
    (array("int"), array("long"), ["TYPE_MISMATCH /items"]),
    (mapping("int"), array("int"), ["TYPE_MISMATCH /"]),
    (array("int"), mapping("int"), ["TYPE_MISMATCH /"]),
    (mapping("int"), mapping("long"), ["TYPE_MISMATCH /values"]),
    (enum("E", "A", "B"), enum("E", "A", "B", "C"), ["MISSING_ENUM_SYMBOLS /symbols"]),
    (enum("E", "A", "B", "C"), enum("F", "A", "B", "C"), ["NAME_MISMATCH /name"]),
    (enum("E", "A"), "int", ["TYPE_MISMATCH /"]),
    ("int", enum("E", "A"), ["TYPE_MISMATCH /"]),
    (fixed("F", 4), fixed("F", 8), ["FIXED_SIZE_MISMATCH /size"]),
    (fixed("F", 4), fixed("G", 4), ["NAME_MISMATCH /name"]),
    (["int"], ["int", "string"], ["MISSING_UNION_BRANCH /1"]),
    (["int"], ["long"], ["MISSING_UNION_BRANCH /0"]),
    (["string"], "int", ["MISSING_UNION_BRANCH /"]),
    ("int", ["int", "string"], ["TYPE_MISMATCH /"]),
    (record("R", ("a", "int")), record("R"), ["READER_FIELD_MISSING_DEFAULT_VALUE /fields/0"]),
    (
        record("R", ("a", "int"), ("b", "int")),
        record("R"),
        ["READER_FIELD_MISSING_DEFAULT_VALUE /fields/0", "READER_FIELD_MISSING_DEFAULT_VALUE /fields/1"],
    ),
    (record("R", ("a", "string")), record("R", ("a", "int")), ["TYPE_MISMATCH /fields/0/type"]),
    (record("R", ("a", "int")), record("S", ("a", "int")), ["NAME_MISMATCH /name"]),
    (
        record("R", ("a", "int")),
        record("S", ("a", "string")),
        ["NAME_MISMATCH /name", "TYPE_MISMATCH /fields/0/type"],
    ),
    (
        record("R", ("a", array(["null", "int"]))),
        record("R", ("a", array("string"))),
        ["MISSING_UNION_BRANCH /fields/0/type/items"],
    ),
    (
        LIST,
        record("List", ("head", "string"), ("tail", ["null", "List"])),
        ["TYPE_MISMATCH /fields/0/type"],
    ),
]


@pytest.mark.parametrize(("reader", "writer"), READS, ids=str)
def test_reads(reader: Any, writer: Any) -> None:
    assert compatible(avro(reader), avro(writer)) == []


@pytest.mark.parametrize(("reader", "writer", "found"), READS_NOT, ids=str)
def test_reads_not(reader: Any, writer: Any, found: list[str]) -> None:
    assert [f"{each.error_type} {each.path}" for each in compatible(avro(reader), avro(writer))] == found


@pytest.mark.parametrize(("reader", "writer"), READS + [each[:2] for each in READS_NOT], ids=str)
def test_the_library_says_the_same(reader: Any, writer: Any) -> None:
    """Avro's own library gives the same verdict for the complete schemas as the checks here."""
    from avro.compatibility import ReaderWriterCompatibilityChecker

    read, written = avro(reader), avro(writer)
    verdict = ReaderWriterCompatibilityChecker().get_compatibility(read.library, written.library)  # type: ignore[attr-defined]
    assert (verdict.compatibility.value == "compatible") is (not compatible(read, written))


def test_messages() -> None:
    found = compatible(
        avro(record("R", ("a", "int"), ("b", enum("E", "A")), ("c", fixed("F", 1)))),
        avro(record("S", ("b", enum("E", "A", "Z", "B")), ("c", fixed("F", 2)))),
    )
    assert [each.message() for each in found] == [
        "{errorType:'NAME_MISMATCH', description:'The name of the schema has changed (path '/name')', "
        "additionalInfo:'expected: S'}",
        "{errorType:'READER_FIELD_MISSING_DEFAULT_VALUE', description:'The field 'a' at path '/fields/0' in the new "
        "schema has no default value and is missing in the old schema', additionalInfo:'a'}",
        "{errorType:'MISSING_ENUM_SYMBOLS', description:'The new schema is missing enum symbols '[B, Z]' at path "
        "'/fields/1/type/symbols' in the old schema', additionalInfo:'[B, Z]'}",
        "{errorType:'FIXED_SIZE_MISMATCH', description:'The size of FIXED type field at path '/fields/2/type/size' in "
        "the new schema does not match with the old schema', additionalInfo:'expected: 2, found: 1'}",
    ]
    (union,) = compatible(avro('["int"]'), avro('"string"'))
    assert union.description("old", "new") == (
        "The old schema is missing a type inside a union field at path '/' in the new schema"
    )
    assert union.additional_info == "reader union lacking writer type: STRING"


@pytest.mark.parametrize(
    ("given", "canonical", "normalized"),
    [
        ('{"type":"string"}', '"string"', '"string"'),
        ('"string"', '"string"', '"string"'),
        ("string", '"string"', '"string"'),
        (' [ "null" , {"type":"long"} ] ', '["null","long"]', '["null","long"]'),
        (
            '{"type":"string","z":1,"a":{"d":1,"c":2}}',
            '{"type":"string","z":1,"a":{"d":1,"c":2}}',
            '{"type":"string","a":{"c":2,"d":1},"z":1}',
        ),
        (
            '{"namespace":"x","fields":[],"doc":"","name":"R","type":"record"}',
            '{"type":"record","name":"R","namespace":"x","doc":"","fields":[]}',
            '{"type":"record","name":"R","namespace":"x","fields":[]}',
        ),
        (
            '{"type":"record","name":"x.y.R","namespace":"z","fields":[],"aliases":["S","x.y.B","q.A"]}',
            '{"type":"record","name":"R","namespace":"x.y","fields":[],"aliases":["S","B","q.A"]}',
            '{"type":"record","name":"R","namespace":"x.y","fields":[],"aliases":["q.A","B","S"]}',
        ),
        (
            '{"type":"enum","name":"E","default":"A","symbols":["A","B"],"doc":"d"}',
            '{"type":"enum","name":"E","doc":"d","symbols":["A","B"],"default":"A"}',
            '{"type":"enum","name":"E","doc":"d","symbols":["A","B"],"default":"A"}',
        ),
        (
            '{"type":"bytes","scale":2,"precision":4,"logicalType":"decimal"}',
            '{"type":"bytes","scale":2,"precision":4,"logicalType":"decimal"}',
            '{"type":"bytes","logicalType":"decimal","precision":4,"scale":2}',
        ),
    ],
)
def test_printed(given: str, canonical: str, normalized: str) -> None:
    schema = avro(given)
    assert (schema.canonical, schema.normalized) == (canonical, normalized)


def test_printed_fields() -> None:
    """Doc, default, order, aliases, then other properties; a name of the same namespace is short; Java's doubles."""
    text = (
        '{"type":"record","name":"a.R","fields":['
        '{"name":"f","p":1,"order":"ascending","default":1e10,"type":"double","doc":"ä\\u0041"},'
        '{"name":"g","type":{"type":"fixed","name":"F","size":1},"aliases":["h"],"order":"ignore"},'
        '{"name":"i","type":["null","a.F","b.G"],"default":null}]}'
    )
    with pytest.raises(InvalidSchema, match="Undefined schema"):
        avro(text)
    schema = avro(text, {"g": '{"type":"fixed","name":"b.G","size":2}'})
    assert schema.canonical == (
        '{"type":"record","name":"R","namespace":"a","fields":['
        '{"name":"f","type":"double","doc":"äA","default":1.0E10,"p":1},'
        '{"name":"g","type":{"type":"fixed","name":"F","size":1},"order":"ignore","aliases":["h"]},'
        '{"name":"i","type":["null","F","b.G"],"default":null}]}'
    )
    assert (schema.name, schema.names, schema.fields) == ("a.R", ("a.R",), frozenset(("f", "g", "i")))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("12", "No type"),
        ('{"type":"foo"}', 'Undefined schema: "foo"'),
        ('{"type":"record","name":"R"}', "no fields"),
        ('{"type":"record","fields":[]}', "No name"),
        ('{"type":"record","name":"1a","fields":[]}', "Illegal initial character"),
        ('{"type":"record","name":"a-b","fields":[]}', "Illegal character"),
        ('{"type":"record","name":"ä","fields":[]}', "Illegal character"),
        (
            '{"type":"record","name":"R","fields":[{"name":"a","type":"int"},{"name":"a","type":"int"}]}',
            "Duplicate field",
        ),
        ('{"type":"record","name":"R","fields":[{"name":"a","type":"int","default":"x"}]}', "Invalid default"),
        ('{"type":"record","name":"R","fields":[{"name":"a","type":"int","default":2147483648}]}', "Invalid default"),
        ('{"type":"record","name":"R","fields":[{"name":"a","type":["null","int"],"default":"x"}]}', "Invalid default"),
        ('{"type":"enum","name":"E","symbols":["A","A"]}', "Duplicate enum symbol"),
        ('{"type":"enum","name":"E","symbols":["A"],"default":"B"}', "Enum Default"),
        ('{"type":"fixed","name":"F"}', "size"),
        ('{"type":"fixed","name":"F","size":-1}', "size"),
        ('["int","int"]', "Duplicate in union"),
        ('[["int"]]', "Nested union"),
        ('{"type":"array"}', "no items"),
        ('{"type":"record","name":"int","fields":[]}', "primitives"),
        (
            '{"type":"record","name":"R","fields":[{"name":"a","type":{"type":"record","name":"R","fields":[]}}]}',
            "Can't redefine",
        ),
        ('{"type":"record","name":"R","fields":[{"name":"a","type":"int","order":"up"}]}', "order"),
    ],
)
def test_refused(text: str, said: str) -> None:
    with pytest.raises(InvalidSchema, match=f"^Invalid schema of type AVRO, details: .*{said}"):
        avro(text)


def test_what_was_stored_once_may_have_wrong_defaults() -> None:
    text = '{"type":"record","name":"R","fields":[{"name":"ä","type":"int","default":"x"}]}'
    with pytest.raises(InvalidSchema):
        avro(text)
    assert parse("AVRO", text, is_new=False).canonical == text


def test_logical_types_that_are_wrong_are_only_properties() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        schema = avro('{"type":"bytes","logicalType":"decimal","precision":-1}')
        assert compatible(schema, avro('{"type":"string","logicalType":"foo"}')) == []


def test_values() -> None:
    schema = avro(record("R", ("a", "int"), ("b", ["null", "string"])))
    schema.check_value(b"\x02\x00")
    schema.check_value(b"\x02\x02\x02x")
    for wrong in (b"", b"\x02", b"\x02\x04", b"\x02\x00\x00", b"\x02\x02\x06x"):
        with pytest.raises(InvalidValue):
            schema.check_value(wrong)
    # A type without a namespace within one that has one, referred to from both.
    inner = {"type": "record", "name": "I", "namespace": "", "fields": [{"name": "i", "type": ["null", "I"]}]}
    mixed = avro(record("S", ("r", inner), ("q", "I"), namespace="x"))
    mixed.check_value(b"\x02\x00\x00")
    assert [each.additional_info for each in compatible(avro(record("J")), avro(record("I")))] == ["expected: I"]
    assert compatible(mixed, mixed) == []
    avro(LIST).check_value(b"\x02\x02\x04\x00")
    referring = avro(record("S", ("r", "T")), {"t": json.dumps(record("T", ("x", "long")))})
    referring.check_value(b"\x02")
    with pytest.raises(InvalidValue):
        referring.check_value(b"\x02\x02")
