"""Decodes keys and values of records in Spark's tasks, and adds the results as columns of a frame.

Owns the two functions that Spark calls for each record. They never raise an error for the content of a record: for
invalid content they return a null value with the reason. If the registry does not answer, they raise an error, which
ends the job.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from kbroker.pipeline.decoding import spark_types as types
from kbroker.pipeline.decoding.columns import Fields, Reader
from kbroker.pipeline.decoding.registry import HEADERS, PATIENCE_S, Lookup, Registry, SchemaText, kept, lookup_of
from kbroker.schema_registry.formats import framing
from kbroker.schema_registry.formats.common import Schema

_LONGEST: Final = 500
"""The maximum number of characters of a reason."""


@dataclass(frozen=True)
class Decoder:
    """Decodes one part of each record with the schema that the record names, into the type of the reader's schema."""

    registry: Registry
    reader: SchemaText
    patience_s: float = PATIENCE_S

    def __call__(self, data: bytes | None, header: bytes | None) -> tuple[Any, str | None]:
        """Return the value and None, or None and the reason. For a record without the part, return None twice."""
        if data is None:
            return None, None
        token, rest = framing.split(bytes(data), None if header is None else bytes(header))
        schema = self._lookup.of_token(token)
        if isinstance(schema, str):
            return None, _reason(schema)
        try:
            return self._column.value(schema, rest), None
        except Exception as err:  # noqa: BLE001 - bytes of others may raise anything, and are no reason to end a job
            return None, _reason(str(err) or type(err).__name__)

    # Each task looks this up once. The task's process keeps it for the next task.

    @cached_property
    def _lookup(self) -> Lookup:
        return lookup_of(self.registry, self.patience_s)

    @cached_property
    def _column(self) -> Reader:
        return kept("reader", self.reader, lambda: Reader(self.reader.parsed()))


@dataclass(frozen=True)
class EventDecoder:
    """Reads fields of each record's value as texts, with the schema that the record names."""

    registry: Registry
    names: tuple[str, ...]
    patience_s: float = PATIENCE_S

    def __call__(self, data: bytes | None, header: bytes | None) -> tuple[str | None, ...]:
        """Return the fields and, as the last element, the reason for which they cannot be read."""
        nothing = (None,) * len(self.names)
        if data is None:
            return (*nothing, None)
        token, rest = framing.split(bytes(data), None if header is None else bytes(header))
        schema = self._lookup.of_token(token)
        if isinstance(schema, str):
            return (*nothing, _reason(schema))
        try:
            return (*self._fields(schema).of(rest), None)
        except Exception as err:  # noqa: BLE001 - as above
            return (*nothing, _reason(str(err) or type(err).__name__))

    @cached_property
    def _lookup(self) -> Lookup:
        return lookup_of(self.registry, self.patience_s)

    def _fields(self, schema: Schema) -> Fields:
        _, found = kept("fields", (id(schema), self.names), lambda: (schema, Fields(schema, self.names)))
        return found


def _reason(text: str) -> str:
    return " ".join(text.encode("utf-8", "replace").decode().split())[:_LONGEST]


def decoded(frame: Any, part: str, decoder: Decoder, kind: types.SparkType) -> Any:
    """Add the columns PART_decoded and PART_decode_error to records."""
    both = types.struct_type([("decoded", kind), ("error", types.STRING)])
    found = frame.withColumn("_found", _called(decoder, both)(part, _header(part)))
    found = found.withColumn(f"{part}_decoded", found["_found.decoded"])
    return found.withColumn(f"{part}_decode_error", found["_found.error"]).drop("_found")


def with_fields(frame: Any, decoder: EventDecoder) -> Any:
    """Add a column `found` to records: a struct of `field0`, `field1` and so on, and `reason`. All are texts."""
    names = [f"field{index}" for index in range(len(decoder.names))]
    kind = types.struct_type([(name, types.STRING) for name in (*names, "reason")])
    return frame.withColumn("found", _called(decoder, kind)("value", _header("value")))


def _called(function: Any, kind: types.SparkType) -> Any:
    """Return a Spark function that calls a Python function with a task's rows.

    The results of that function are not converted again.
    """
    from pyspark.sql.types import StructType

    class ReadyType(StructType):
        """A struct whose values have the form that the JVM expects."""

        @classmethod
        def typeName(cls) -> str:  # noqa: N802 - pyspark's name
            return "struct"

        def needConversion(self) -> bool:  # noqa: N802
            return False

    from pyspark.sql import functions as f

    ready = ReadyType(StructType.fromJson(json.loads(json.dumps(kind))).fields)
    # Arrow is off, because it would need pyarrow in the tasks. The function is called once for each row, even if
    # several columns use its fields.
    return f.udf(function, ready, useArrow=False).asNondeterministic()


def _header(part: str) -> Any:
    """Return the content of the last header that names the schema of a part; null if there is none."""
    from pyspark.sql import functions as f

    named = f.filter("headers", lambda header: header["key"] == HEADERS[part])
    return f.try_element_at(f.transform(named, lambda header: header["value"]), f.lit(-1))
