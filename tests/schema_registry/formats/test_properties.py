"""What holds for all schemas: printed forms are fixed points, a schema reads itself, levels agree with their parts."""

import json
from contextlib import suppress
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kbroker.schema_registry.formats.common import InvalidSchema, InvalidValue, Schema
from kbroker.schema_registry.formats.levels import check
from kbroker.schema_registry.formats.parsing import compatible, parse

NAMES = st.sampled_from(["a", "b", "c", "int32", "message", "x_y"])
PRIMITIVES = st.sampled_from(["null", "boolean", "int", "long", "float", "double", "bytes", "string"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from([0.5, 1e20, -0.001]) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@st.composite
def avro_schemas(draw: st.DrawFn) -> Any:
    """A schema with named types, of which each is defined once and used again."""
    defined: list[str] = []

    def inner(depth: int) -> Any:
        kinds = ["primitive", "primitive", "named"] + (
            ["record", "array", "map", "union", "enum", "fixed"] if depth else []
        )
        kind = draw(st.sampled_from(kinds))
        if kind == "named" and defined:
            return draw(st.sampled_from(defined))
        if kind in ("array", "map"):
            return {"type": kind, "items" if kind == "array" else "values": inner(depth - 1), "p": draw(VALUES)}
        if kind == "union":
            return sorted(draw(st.sets(PRIMITIVES, min_size=1)))
        if kind in ("record", "enum", "fixed"):
            name = f"N{len(defined)}"
            made: dict[str, Any] = {"name": name, "type": kind, "namespace": draw(st.sampled_from(["", "x", "x.y"]))}
            if draw(st.booleans()):
                made["doc"] = draw(st.text(max_size=5))
            if draw(st.booleans()):
                made["aliases"] = draw(st.lists(st.sampled_from(["A", "q.B"]), unique=True))
            defined.append(f"{made['namespace']}.{name}" if made["namespace"] else name)
            if kind == "record":
                names = draw(st.lists(NAMES, unique=True, max_size=3))
                made["fields"] = [{"name": each, "type": inner(depth - 1)} for each in names]
            elif kind == "enum":
                made["symbols"] = draw(st.lists(NAMES, unique=True, min_size=1))
            else:
                made["size"] = draw(st.integers(0, 9))
            return made
        primitive = draw(PRIMITIVES)
        return draw(st.sampled_from([primitive, {"type": primitive}, {"type": primitive, "q": 1.5}]))

    return inner(3)


SCALARS = st.sampled_from(["int32", "sint64", "fixed32", "bool", "string", "bytes", "double"])


@st.composite
def protobuf_files(draw: st.DrawFn) -> str:
    """A file of nested messages with fields of all kinds; names are unique within it."""
    count = iter(range(10_000))
    made: list[str] = []

    def field(number: int) -> str:
        kinds = [*(draw(SCALARS) for _ in range(2)), *made[-2:], f"map<string, {draw(SCALARS)}>"]
        kind = draw(st.sampled_from(kinds))
        label = "" if kind.startswith("map") else draw(st.sampled_from(["", "repeated ", "optional "]))
        options = draw(st.sampled_from(["", " [deprecated = true]", f' [json_name="j{number}" , deprecated=false]']))
        return f"{label}{kind} f{next(count)} = {number}{options};"

    def message(depth: int) -> str:
        name = f"M{next(count)}"
        parts = [message(depth - 1) for _ in range(draw(st.integers(0, 2 if depth else 0)))]
        parts += [field(number) for number in draw(st.lists(st.integers(1, 99), unique=True, max_size=4))]
        if draw(st.booleans()):
            members = "".join(f"{draw(SCALARS)} o{next(count)} = {number};" for number in (101, 102))
            parts.append(f"oneof c{next(count)} {{ {members} }}")
        if draw(st.booleans()):
            parts.append('reserved 200, 300 to max; reserved "old";')
        if draw(st.booleans()):
            parts.append(f"enum E{next(count)} {{ V{next(count)} = 0; V{next(count)} = 1; }}")
        made.append(name) if depth == 2 else None
        return f"message {name} {{ {' '.join(draw(st.permutations(parts)))} }}"

    body = " ".join(message(2) for _ in range(draw(st.integers(1, 3))))
    return f'syntax = "proto3"; {draw(st.sampled_from(["", "package p.q;"]))} /* c */ {body}'


@st.composite
def json_schemas(draw: st.DrawFn) -> Any:
    """A schema of all families of keywords, some of whose parts refer to it or to a definition."""

    def inner(depth: int) -> Any:
        made: dict[str, Any] = {}
        for keyword, value in (
            ("type", st.sampled_from(["string", "integer", "object", ["string", "null"]])),
            ("minLength", st.integers(0, 3)),
            ("maximum", st.sampled_from([1, 1.5, 1e30])),
            ("multipleOf", st.sampled_from([1, 0.1, 3])),
            ("pattern", st.sampled_from(["^a", "(?=b)"])),
            ("enum", st.lists(VALUES, min_size=1, max_size=3)),
            ("const", VALUES),
            ("default", VALUES),
            ("required", st.lists(NAMES, unique=True)),
            ("additionalProperties", st.booleans()),
        ):
            if draw(st.integers(0, 3)) == 0:
                made[keyword] = draw(value)
        if depth:
            for keyword in ("properties", "patternProperties"):
                if draw(st.booleans()):
                    made[keyword] = {draw(NAMES): inner(depth - 1)}
            for keyword in ("allOf", "anyOf", "oneOf"):
                if draw(st.integers(0, 3)) == 0:
                    made[keyword] = [inner(depth - 1) for _ in range(draw(st.integers(1, 2)))]
            for keyword in ("not", "items"):
                if draw(st.integers(0, 3)) == 0:
                    made[keyword] = inner(depth - 1)
            if draw(st.integers(0, 4)) == 0:
                return {"$ref": draw(st.sampled_from(["#", "#/definitions/d"]))}
        return made

    root = inner(2)
    if root.get("$ref") == "#":
        root = {}
    return {**root, "definitions": {"d": inner(1)}}


def holds(schema: Schema) -> None:
    again = parse(schema.schema_type, schema.canonical, schema.references)
    assert again.canonical == schema.canonical
    assert again.normalized == schema.normalized
    normal = parse(schema.schema_type, schema.normalized, schema.references)
    assert normal.normalized == schema.normalized
    for reader, writer in ((schema, schema), (again, schema), (schema, normal), (normal, schema)):
        assert compatible(reader, writer) == []


@given(avro_schemas())
def test_avro(schema: Any) -> None:
    holds(parse("AVRO", json.dumps(schema)))


@given(json_schemas())
def test_json_schema(schema: Any) -> None:
    holds(parse("JSON", json.dumps(schema)))


@given(protobuf_files())
def test_protobuf(text: str) -> None:
    schema = parse("PROTOBUF", text)
    holds(schema)
    again = parse("PROTOBUF", schema.serialized or "")
    assert again.normalized == schema.normalized
    assert compatible(again, schema) == compatible(schema, again) == []


@given(avro_schemas(), avro_schemas())
def test_avro_agrees_with_its_library(one: Any, other: Any) -> None:
    from avro.compatibility import ReaderWriterCompatibilityChecker

    reader, writer = parse("AVRO", json.dumps(one)), parse("AVRO", json.dumps(other))
    verdict = ReaderWriterCompatibilityChecker().get_compatibility(reader.library, writer.library)  # type: ignore[attr-defined]
    assert (verdict.compatibility.value == "compatible") is (not compatible(reader, writer))


@given(json_schemas(), json_schemas())
def test_full_is_backward_and_forward(one: Any, other: Any) -> None:
    new, old = parse("JSON", json.dumps(one)), parse("JSON", json.dumps(other))
    backward, forward = (not check(level, new, [(1, old)]) for level in ("BACKWARD", "FORWARD"))
    assert (not check("FULL", new, [(1, old)])) is (backward and forward)
    assert (not check("BACKWARD", old, [(1, new)])) is forward


@given(st.sampled_from(["AVRO", "JSON", "PROTOBUF"]), st.text() | st.text("{}[]\":,\\/*<>()=;.ab 01\n'$_-"))
def test_any_text(kind: str, text: str) -> None:
    with suppress(InvalidSchema):
        holds(parse(kind, text))


@given(st.sampled_from(["AVRO", "JSON", "PROTOBUF"]), st.binary(max_size=40))
def test_any_value(kind: str, data: bytes) -> None:
    text = {
        "AVRO": '{"type":"record","name":"R","fields":['
        '{"name":"a","type":["null","R",{"type":"map","values":"double"}]}]}',
        "JSON": '{"properties":{"a":{"$ref":"#"}},"type":["object","integer"]}',
        "PROTOBUF": 'syntax = "proto2"; message M { required int32 a = 1; repeated M m = 2; map<string, M> n = 3; }',
    }[kind]
    with suppress(InvalidValue):
        parse(kind, text).check_value(data)
