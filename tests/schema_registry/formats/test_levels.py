"""The seven levels, and the messages that Confluent's registry shows with `verbose`."""

import pytest

from kbroker.schema_registry.formats.common import Schema
from kbroker.schema_registry.formats.levels import LEVELS, LONGEST_SCHEMA_SHOWN, check
from kbroker.schema_registry.formats.parsing import parse


def record(*fields: str) -> Schema:
    made = ",".join(
        f'{{"name":"{name}","type":"int"' + (',"default":0}' if default else "}")
        for name, _, default in (each.partition("=") for each in fields)
    )
    return parse("AVRO", f'{{"type":"record","name":"R","fields":[{made}]}}')


A, AB, AB0 = record("a"), record("a", "b"), record("a", "b=0")


@pytest.mark.parametrize(
    ("new", "previous", "allowed"),
    [
        (AB, [A], ("NONE", "FORWARD", "FORWARD_TRANSITIVE")),
        (A, [AB], ("NONE", "BACKWARD", "BACKWARD_TRANSITIVE")),
        (AB0, [A], LEVELS),
        (A, [AB0], LEVELS),
        (A, [], LEVELS),
        # The latest has a default, the first has no such field: AB reads the latest, not the first.
        (AB, [A, AB0], ("NONE", "BACKWARD", "FORWARD", "FULL", "FORWARD_TRANSITIVE")),
        (A, [AB, AB0], ("NONE", "BACKWARD", "FORWARD", "FULL", "BACKWARD_TRANSITIVE")),
        (parse("JSON", "{}"), [A], ("NONE",)),
    ],
)
def test_levels(new: Schema, previous: list[Schema], allowed: tuple[str, ...]) -> None:
    assert tuple(each for each in LEVELS if not check(each, new, enumerate(previous, 1))) == tuple(
        each for each in LEVELS if each in allowed
    )


MISSING = (
    "{errorType:'READER_FIELD_MISSING_DEFAULT_VALUE', description:'The field 'b' at path '/fields/1' in the %s schema "
    "has no default value and is missing in the %s schema', additionalInfo:'b'}"
)
CHANGED = (
    "{errorType:'TYPE_MISMATCH', description:'The type (path '/fields/0/type') of a field in the %s schema does not "
    "match with the %s schema', additionalInfo:'reader type: %s not compatible with writer type: %s'}"
)


def test_messages_of_backward() -> None:
    assert check("BACKWARD", AB, [(3, A)]) == [
        MISSING % ("new", "old"),
        "{oldSchemaVersion: 3}",
        f"{{oldSchema: '{A.canonical}'}}",
        "{validateFields: 'false', compatibility: 'BACKWARD'}",
    ]
    assert check("BACKWARD", AB, [(None, A)])[1] == f"{{oldSchema: '{A.canonical}'}}"


def test_messages_of_forward() -> None:
    assert check("FORWARD_TRANSITIVE", A, [(1, AB), (2, AB)]) == [
        MISSING % ("old", "new"),
        "{oldSchemaVersion: 2}",
        f"{{oldSchema: '{AB.canonical}'}}",
        "{validateFields: 'false', compatibility: 'FORWARD_TRANSITIVE'}",
    ]


def test_messages_of_full() -> None:
    """What the old schema cannot read comes first; the old schema itself only after what the new one cannot read."""
    text = '{"type":"record","name":"R","fields":[{"name":"a","type":"%s"}]}'
    number, words = parse("AVRO", text % "int"), parse("AVRO", text % "string")
    assert check("FULL", words, [(1, number)]) == [
        CHANGED % ("old", "new", "INT", "STRING"),
        CHANGED % ("new", "old", "STRING", "INT"),
        "{oldSchemaVersion: 1}",
        f"{{oldSchema: '{number.canonical}'}}",
        "{validateFields: 'false', compatibility: 'FULL'}",
    ]
    assert check("FULL", A, [(1, AB)]) == [
        MISSING % ("old", "new"),
        "{validateFields: 'false', compatibility: 'FULL'}",
    ]


def test_transitive_stops_at_the_latest_that_fails() -> None:
    assert "{oldSchemaVersion: 2}" in check("BACKWARD_TRANSITIVE", AB, [(1, A), (2, A), (3, AB)])
    assert check("BACKWARD", AB, [(1, A), (2, A), (3, AB)]) == []


def test_other_type() -> None:
    assert check("FULL", parse("JSON", "{}"), [(1, A)]) == [
        "Incompatible because of different schema type",
        "{validateFields: 'false', compatibility: 'FULL'}",
    ]


def test_long_schemas_are_cut() -> None:
    long = parse("JSON", '{"title":"' + "x" * LONGEST_SCHEMA_SHOWN + '","type":"string"}')
    found = check("BACKWARD", parse("JSON", '{"type":"number"}'), [(1, long)])
    assert found[2] == f"{{oldSchema: <truncated> '{long.canonical[:LONGEST_SCHEMA_SHOWN]}...'}}"


def test_messages_of_json_schema() -> None:
    old = parse("JSON", '{"properties":{"a":{"type":"string"}},"additionalProperties":false}')
    new = parse("JSON", '{"properties":{"a":{"type":"number","maximum":1}},"additionalProperties":false}')
    assert check("FULL", new, [(1, old)])[:2] == [
        '{errorType:"TYPE_CHANGED", description:"A type at path \'#/properties/a\' is different between the old schema '
        "and the new schema'}",
        '{errorType:"TYPE_CHANGED", description:"A type at path \'#/properties/a\' is different between the new schema '
        "and the old schema'}",
    ]


def test_messages_of_protobuf() -> None:
    old = parse("PROTOBUF", 'syntax = "proto3"; message M { string a = 1; }')
    new = parse("PROTOBUF", 'syntax = "proto3"; message M { int32 a = 1; }')
    assert check("BACKWARD", new, [(1, old)])[:2] == [
        '{errorType:"FIELD_SCALAR_KIND_CHANGED", description:"The kind of a SCALAR field at path \'#/M/1\' in the new '
        'schema does not match its kind in the old schema"}',
        "{oldSchemaVersion: 1}",
    ]


def test_names_with_braces_and_percents_stand_in_messages_as_they_are() -> None:
    old = parse("JSON", '{"properties":{"{reader}%s":{"type":"string"}}}')
    new = parse("JSON", '{"properties":{"{reader}%s":{"type":"number"}}}')
    assert "'#/properties/{reader}%s'" in check("BACKWARD", new, [(1, old)])[0]
