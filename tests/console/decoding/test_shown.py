"""How bytes are shown, and that hostile ones cost nothing."""

from __future__ import annotations

import contextlib
import io
import json
import struct
import time

import fastavro
import pytest
from google.protobuf import descriptor_pb2
from hypothesis import given
from hypothesis import strategies as st

from kbroker.admin.errors import AdminError, WrongInput
from kbroker.admin.registry_schemas import framed_id
from kbroker.console.decoding import protobuf
from kbroker.console.decoding.schemas import Schemas, from_form
from kbroker.console.decoding.shown import FORMS, LONGEST, shown
from tests.console.world import ORDER, avro

NONE = Schemas()


@pytest.mark.parametrize(
    ("data", "kind", "text"),
    [
        (b'{"a":[1,2]}', "json", '{\n  "a": [\n    1,\n    2\n  ]\n}'),
        (b"[1", "text", "[1"),
        ("grüße".encode(), "text", "grüße"),
        (b"", "text", ""),
        (b"\xff\x01", "hex", "00000000  ff 01                                            .."),
        (b"a\x00b", "hex", "00000000  61 00 62                                         a.b"),
    ],
)
def test_the_guess(data, kind, text):
    found = shown(data, "auto", NONE)
    assert (found.kind, found.text) == (kind, text)


def test_null_is_no_empty_value():
    assert shown(None, "auto", NONE).kind == "null"


@given(st.binary(max_size=300), st.sampled_from(FORMS))
def test_any_bytes_are_shown_in_any_way(data, way):
    found = shown(data, way, NONE)
    assert len(found.text) <= LONGEST
    assert "\n" not in found.brief
    assert len(found.brief) <= 301


@pytest.mark.parametrize("data", [b"[" * 100_000, b'{"a":' * 50_000, b"9" * 500_000, b"x" * 5_000_000])
def test_what_is_deep_or_long_is_cut(data):
    begun = time.thread_time()
    found = shown(data, "auto", NONE)
    assert len(found.text) <= LONGEST
    assert time.thread_time() - begun < 2


def test_avro_by_a_schema_framed_or_not():
    schemas = Schemas()
    schemas.add_avro("order", json.dumps(ORDER))
    value = {"id": 1, "customer": "c", "total": 1.5, "items": ["a"]}
    framed = avro(value)
    assert framed_id(framed) == 42
    for data in (framed, framed[5:]):
        found = shown(data, "schema:order", schemas)
        assert (found.kind, found.value) == ("avro", value)
    broken = shown(framed[:-1], "schema:order", schemas)
    assert broken.kind == "hex"
    assert "does not match this Avro schema" in str(broken.note)
    assert "Confluent's framing, schema id 42" in str(shown(framed, "auto", schemas).note)
    schemas.add_avro("42", json.dumps(ORDER))
    assert shown(framed, "auto", schemas).value == value
    with pytest.raises(WrongInput, match="there is no schema"):
        shown(b"", "schema:nope", schemas)


@given(st.binary(max_size=200))
def test_any_bytes_are_decoded_by_avro_or_refused(data):
    schemas = Schemas()
    schemas.add_avro("order", json.dumps(ORDER))
    assert shown(data, "schema:order", schemas).kind in ("avro", "hex")


@pytest.mark.parametrize(
    "items",
    [
        "null",
        {"type": "fixed", "name": "F", "size": 0},
        {"type": "record", "name": "R", "fields": []},
        {"type": "record", "name": "R", "fields": [{"name": "n", "type": "null"}]},
    ],
)
def test_a_schema_by_which_few_bytes_are_endless_is_refused(items):
    nested = {"type": "record", "name": "Top", "fields": [{"name": "a", "type": {"type": "array", "items": items}}]}
    for schema in ({"type": "array", "items": items}, nested):
        with pytest.raises(WrongInput, match="take no bytes"):
            Schemas().add_avro("x", json.dumps(schema))


def test_a_schema_by_which_no_bytes_make_millions_is_refused():
    """Each record contains the previous one twice; the innermost record is empty."""
    nested = "null"
    for number in range(40):
        again = f"R{number - 1}" if number else "null"
        fields = [{"name": "a", "type": nested}, {"name": "b", "type": again}]
        nested = {"type": "record", "name": f"R{number}", "fields": fields}
    with pytest.raises(WrongInput, match="take no bytes"):
        Schemas().add_avro("x", json.dumps(nested))
    Schemas().add_avro("x", json.dumps(nested).replace('"null"', '"int"'))


def test_a_schema_that_holds_itself_is_taken():
    tree = {
        "type": "record",
        "name": "Tree",
        "fields": [{"name": "children", "type": {"type": "array", "items": "Tree"}}],
    }
    schemas = Schemas()
    schemas.add_avro("tree", json.dumps(tree))
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(tree), {"children": [{"children": []}]})
    assert shown(body.getvalue(), "schema:tree", schemas).value == {"children": [{"children": []}]}
    assert shown(b"\x02" * 100_000, "schema:tree", schemas).kind == "hex", "deeper than anything can be"


def descriptor() -> bytes:
    files = descriptor_pb2.FileDescriptorSet()
    file = files.file.add(name="m.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Measure")
    message.field.add(name="number", number=1, type=3, label=1)
    message.field.add(name="sensor_name", number=2, type=9, label=1)
    return files.SerializeToString()


def test_protobuf_by_a_descriptor_set(tmp_path):
    (tmp_path / "measures.desc").write_bytes(descriptor())
    (tmp_path / "42.avsc").write_text(json.dumps(ORDER))
    (tmp_path / "notes.txt").write_text("nothing of ours")
    schemas = Schemas(tmp_path)
    assert [each.name for each in schemas.all()] == ["42", "measures:shop.Measure"]
    data = b"\x08\x07\x12\x04temp"
    value = {"number": "7", "sensor_name": "temp"}
    assert shown(data, "schema:measures:shop.Measure", schemas).value == value
    framed = struct.pack(">bI", 0, 9) + b"\0" + data
    assert shown(framed, "schema:measures:shop.Measure", schemas).value == value
    assert shown(b"\xff\xff", "schema:measures:shop.Measure", schemas).kind == "hex"


def test_a_directory_that_is_none_or_broken_is_said(tmp_path):
    with pytest.raises(AdminError, match="is no directory"):
        Schemas(tmp_path / "nope")
    (tmp_path / "x.avsc").write_text("{")
    with pytest.raises(AdminError, match="an Avro schema is JSON"):
        Schemas(tmp_path)


def test_protobuf_without_a_schema():
    inner = b"\x0a\x03abc\x10\x05"
    data = b"\x08\x96\x01" + b"\x12" + bytes([len(inner)]) + inner + b"\x1d\x00\x00\x80\x3f" + b"\x20\x01\x20\x02"
    assert protobuf.decode(data) == {
        "1": 150,
        "2": {"1": "abc", "2": 5},
        "3": {"fixed": 0x3F800000, "or": 1.0},
        "4": [1, 2],
    }
    for broken in (b"", b"\x08", b"\x0a\x05ab", b"\x00\x01", b"\x0b"):
        with pytest.raises(ValueError):
            protobuf.decode(broken)


@given(st.binary(max_size=400))
def test_any_bytes_are_a_message_or_none(data):
    with contextlib.suppress(ValueError):
        assert protobuf.decode(data)


def test_schemas_are_few_and_small():
    schemas = Schemas()
    with pytest.raises(WrongInput, match="at most"):
        from_form(schemas, "x", "avro", " " * 3_000_000)
    with pytest.raises(WrongInput, match="letters"):
        from_form(schemas, "a\nb", "avro", '"string"')
