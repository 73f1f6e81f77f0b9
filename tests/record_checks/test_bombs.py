"""Hostile values and schemas on a topic that reads its values: the record soon gets an error, others continue."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tests.record_checks.conftest import OF_A_BAD_RECORD, ORDER, Shop, avro, named, order

SOON = 30.0
"""Seconds: far more than any of these takes, and far less than an unbounded one takes."""

NODE = {
    "type": "record",
    "name": "Node",
    "fields": [{"name": "next", "type": ["null", "Node"]}],
}
NUMBERS = {"type": "array", "items": "int"}
NOTHINGS = {"type": "array", "items": "null"}
WIDE = {"type": "array", "items": {"type": "record", "name": "W", "fields": [{"name": "a", "type": "boolean"}]}}
BACKTRACKING = {"type": "string", "pattern": "^(?=a)((a+)+)+$"}
ALTERNATIVES: dict[str, Any] = {
    "$defs": {"n": {"anyOf": [{"items": {"$ref": "#/$defs/n"}, "type": "array"}] * 6}},
    "$ref": "#/$defs/n",
}
PROTO = 'syntax = "proto3"; message M { M next = 1; repeated int32 n = 2; map<string, M> by_name = 3; }'


def varint(number: int) -> bytes:
    """Return a number as Avro and Protobuf's indexes write it."""
    number = number << 1 ^ number >> 63
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def nested_proto(levels: int) -> bytes:
    data = b""
    for _ in range(levels):
        size, head = len(data), bytearray(b"\x0a")
        while size > 0x7F:
            head.append(size & 0x7F | 0x80)
            size >>= 7
        data = bytes([*head, size]) + data
    return data


BOMBS: list[tuple[str, str, Any, bytes]] = [
    ("recursive Avro", "AVRO", NODE, b"\x02" * 900_000),
    ("a count of items", "AVRO", NUMBERS, varint(2**62)),
    ("a count of nothings", "AVRO", NOTHINGS, varint(2**40) + b"\0"),
    ("a negative count", "AVRO", NUMBERS, varint(-(2**62)) + varint(2**62)),
    ("a long text", "AVRO", "string", varint(2**62)),
    ("many objects", "AVRO", WIDE, varint(10_000_000) + bytes(10_000_000)),
    ("deep JSON", "JSON", {}, b"[" * 900_000),
    ("deep and whole JSON", "JSON", {}, b"[" * 400_000 + b"]" * 400_000),
    ("a long number", "JSON", {}, b"1" * 900_000),
    ("a pattern", "JSON", BACKTRACKING, b'"' + b"a" * 5_000 + b'b"'),
    ("alternatives", "JSON", ALTERNATIVES, b"[" * 60 + b"1" + b"]" * 60),
    ("no UTF-8", "JSON", {}, b"\xff\xfe"),
    ("deep messages", "PROTOBUF", PROTO, b"\0" + nested_proto(50_000)),
    ("no such message", "PROTOBUF", PROTO, varint(1) + varint(7)),
    ("many indexes", "PROTOBUF", PROTO, varint(2**31 - 1)),
    ("endless indexes", "PROTOBUF", PROTO, b"\xff" * 1_000),
    ("negative indexes", "PROTOBUF", PROTO, varint(1) + varint(-1)),
]


@pytest.mark.long
@pytest.mark.parametrize(
    ("schema_type", "schema", "data"), [each[1:] for each in BOMBS], ids=[each[0] for each in BOMBS]
)
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_bomb_is_an_error_of_its_record(shop: Shop, schema_type: str, schema: Any, data: bytes, codec: str) -> None:
    if codec == "none" and len(data) > 1_000_000:
        pytest.skip("larger than a batch")
    shop.topic("bad")
    shop.checked("orders", kbroker_schema_validation_level="parse", kbroker_schema_validation_deadletter_topic="bad")
    shop.checked("calm", kbroker_schema_validation_level="parse")
    text = schema if schema_type == "PROTOBUF" else json.dumps(schema)
    known = shop.register("orders-value", text, schemaType=schema_type)
    calm = shop.register("calm-value", ORDER)
    began = time.monotonic()
    settings = {"compression.type": codec, "message.max.bytes": 20_000_000, "batch.size": 1}
    sent = shop.send("orders", [named(known, data)], **settings)
    assert shop.send("calm", [order(calm)]) == [0]
    assert time.monotonic() - began < SOON
    if sent == [0]:
        assert len(shop.values("bad")) == 1
    else:
        assert sent == [OF_A_BAD_RECORD]
    assert shop.values("orders") == []


def test_a_zip_bomb_is_refused(shop: Shop) -> None:
    shop.checked("orders", kbroker_schema_validation_level="parse")
    known = shop.register("orders-value", '"bytes"')
    value = named(known, avro("bytes", bytes(40_000_000)))
    settings = {"compression.type": "zstd", "message.max.bytes": 100_000_000}
    assert shop.send("orders", [value], **settings) == [OF_A_BAD_RECORD]
    value = named(known, avro("bytes", bytes(10_000_000)))
    assert shop.send("orders", [value], **settings) == [0]


def test_many_unknown_schemas_are_many_errors(shop: Shop) -> None:
    shop.checked("orders")
    settings = {"batch.num.messages": 10_000, "linger.ms": 500}
    codes = shop.send("orders", [order(number) for number in range(5_000)], **settings)
    assert OF_A_BAD_RECORD in codes
    assert 0 not in codes
