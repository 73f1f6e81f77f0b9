"""How a task decodes one record, and handles a registry that does not answer."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from kbroker.pipeline.decoding.records import Decoder, EventDecoder
from kbroker.pipeline.decoding.registry import SchemaText, patiently
from kbroker.pipeline.decoding.topics import DecodedTopics
from kbroker.pipeline.errors import PipelineError, first_line
from kbroker.schema_registry.formats.common import Schema
from kbroker.schema_registry.formats.parsing import parse

INT = parse("AVRO", '"int"')
RECORD = parse("AVRO", '{"type": "record", "name": "R", "fields": [{"name": "visitor", "type": "string"}]}')
ASKED: list[bytes] = []


class Schemas:
    """A registry with the schemas 1 and 2, and the subject `orders-value`."""

    def of_token(self, token: bytes) -> Schema | str:
        ASKED.append(token)
        if token == b"\0\0\0\0\3":
            raise OSError("nobody answers")
        return {b"\0\0\0\0\1": INT, b"\0\0\0\0\2": RECORD}.get(token, "unknown")

    def latest(self, subject: str) -> Schema | str:
        if subject == "odd-value":
            return parse("PROTOBUF", 'syntax = "proto3"; enum E { A = 0; }')
        return INT if subject == "orders-value" else f"no {subject}"

    def check(self) -> None:
        return None


@dataclass(frozen=True)
class Place:
    name: str

    def schemas(self) -> Schemas:
        return Schemas()


def test_a_record_is_decoded_or_has_a_reason() -> None:
    decoder = Decoder(Place("a"), SchemaText.of(INT), patience_s=0.0)
    assert decoder(b"\0\0\0\0\1\2", None) == (1, None)
    assert decoder(bytearray(b"\2"), bytearray(b"\0\0\0\0\1")) == (1, None)
    assert decoder(None, None) == (None, None)
    assert decoder(b"\0\0\0\0\x09\2", None) == (None, "unknown")
    assert decoder(b"\0\0\0\0\1", None) == (None, "does not match the Avro schema: EOFError")
    assert decoder(b"\0\0\0\0\2\2v", None) == (None, "value: R cannot be read as int")


def test_a_registry_that_does_not_answer_ends_the_task() -> None:
    decoder = Decoder(Place("b"), SchemaText.of(INT), patience_s=0.0)
    with pytest.raises(PipelineError, match="the schema registry: nobody answers"):
        decoder(b"\0\0\0\0\3", None)
    slept: list[float] = []

    def fails_twice() -> int:
        if len(slept) < 2:
            raise OSError("not yet")
        return 5

    assert patiently(fails_twice, 60.0, slept.append) == 5


def test_events() -> None:
    decoder = EventDecoder(Place("c"), ("visitor", "time"), patience_s=0.0)
    assert decoder(b"\0\0\0\0\2\2v", None) == ("v", None, None)
    assert decoder(b"\0\0\0\0\1\2", None) == (None, None, "is no record with fields")
    assert decoder(b"", None) == (None, None, "unknown")
    assert decoder(None, None) == (None, None, None)


def test_topics_without_a_subject_have_no_columns() -> None:
    said: list[str] = []
    topics = DecodedTopics(Place("d"), ["value", "key", "value"], said.append, 0.0)
    topics.prepare(["orders", "plain"])
    topics.prepare(["orders", "odd"])
    assert topics.fingerprint("orders")
    assert topics.fingerprint("plain") == ""
    assert said == [
        "orders has no key_decoded: no orders-key",
        "plain has no key_decoded: no plain-key",
        "plain has no value_decoded: no plain-value",
        "odd has no key_decoded: no odd-key",
        "odd has no value_decoded: the schema of odd-value gives no column: the Protobuf schema has no message",
    ]


def test_the_line_of_an_error_that_a_task_raised() -> None:
    text = """An error occurred: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "x", line 1, in patiently
kbroker.pipeline.errors.PipelineError: the schema registry: nobody answers

\tat org.apache.spark.api.python.BasePythonRunner"""
    assert first_line(RuntimeError(text)) == "the schema registry: nobody answers"
