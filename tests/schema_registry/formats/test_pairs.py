"""Compatibility of JSON Schema and Protobuf by tables of pairs, each with its source (the .txt files beside)."""

import json
from pathlib import Path

import pytest

from kbroker.schema_registry.formats.common import Schema
from kbroker.schema_registry.formats.parsing import compatible, parse


def rows(name: str) -> list[list[str]]:
    text = (Path(__file__).parent / name).read_text(encoding="utf-8")
    return [line.split(" | ") for line in text.splitlines() if not line.startswith("#")]


JSON_PAIRS = rows("json_schema_pairs.txt")
PROTOBUF_PAIRS = rows("protobuf_pairs.txt")


def json_schema(name: str, text: str) -> Schema:
    schema = json.loads(text)
    if "[2020]" in name:
        schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
        return parse("JSON", json.dumps(schema))
    return parse("JSON", text)


def protobuf(text: str) -> Schema:
    own, _, imported = (
        text.replace("P3 ", 'syntax = "proto3"; ').replace("P2 ", 'syntax = "proto2"; ').partition(" ;; ")
    )
    return parse("PROTOBUF", own, {"i.proto": imported} if imported else {})


def kinds(reader: Schema, writer: Schema) -> str:
    return ",".join(each.error_type for each in compatible(reader, writer)) or "ok"


def test_there_are_at_least_150_pairs_with_different_names() -> None:
    for pairs in (JSON_PAIRS, PROTOBUF_PAIRS):
        assert len({each[0] for each in pairs}) == len(pairs)
        assert all(len(each) == 6 and all(each) for each in pairs)
    assert len(JSON_PAIRS) + len(PROTOBUF_PAIRS) >= 150


@pytest.mark.parametrize(
    ("name", "old", "new", "backward", "forward", "source"), JSON_PAIRS, ids=lambda each: each[:50]
)
def test_json_schema(name: str, old: str, new: str, backward: str, forward: str, source: str) -> None:
    before, after = json_schema(name, old), json_schema(name, new)
    assert (kinds(after, before), kinds(before, after)) == (backward, forward)
    assert kinds(before, before) == kinds(after, after) == "ok"


@pytest.mark.parametrize(
    ("name", "old", "new", "backward", "forward", "source"), PROTOBUF_PAIRS, ids=lambda each: each[:50]
)
def test_protobuf(name: str, old: str, new: str, backward: str, forward: str, source: str) -> None:
    before, after = protobuf(old), protobuf(new)
    assert (kinds(after, before), kinds(before, after)) == (backward, forward)
    assert kinds(before, before) == kinds(after, after) == "ok"
    for each in (before, after):
        again = parse("PROTOBUF", each.canonical, each.references)
        assert again.canonical == each.canonical
        assert again.normalized == each.normalized
