"""A column of decoded keys or values. The reader's schema defines its type; other schemas may have written values.

Owns the choice of the format. Needs no Spark.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

from kbroker.pipeline.decoding.spark_types import Convert, SparkType, as_text, text
from kbroker.schema_registry.formats.common import InvalidValue, Schema

_MOST_WRITERS: Final = 500


class Column(Protocol):
    """Decodes bytes to values of one column."""

    type: SparkType

    def read_by(self, writer: Schema) -> Callable[[bytes], Any]:
        """Return a function that converts bytes of another schema of the same format to values of this column."""


class Reader:
    """Decodes values for a column. Keeps the conversion for each schema that has written values."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.column = column_of(schema)
        self._known: OrderedDict[int, tuple[Schema, Convert]] = OrderedDict()

    def value(self, writer: Schema, data: bytes) -> Any:
        """Decode a value that was written with the schema `writer`, to the form for Spark. Raises InvalidValue."""
        known = self._known.get(id(writer))
        if known is None:
            if writer.schema_type != self.schema.schema_type:
                raise InvalidValue(f"is of a schema of type {writer.schema_type}, not {self.schema.schema_type}")
            known = self._known[id(writer)] = (writer, self.column.read_by(writer))
            if len(self._known) > _MOST_WRITERS:
                self._known.popitem(last=False)
        return known[1](data)


def column_of(schema: Schema) -> Column:
    """Return the column for a reader's schema. Raises InvalidValue or InvalidSchema if values have no type."""
    if schema.schema_type == "AVRO":
        from kbroker.pipeline.decoding.avro_column import AvroColumn
        from kbroker.schema_registry.formats.avro import AvroSchema

        return AvroColumn(cast("AvroSchema", schema))
    if schema.schema_type == "JSON":
        from kbroker.pipeline.decoding.json_column import JsonColumn
        from kbroker.schema_registry.formats.json_schema import JsonSchema

        return JsonColumn(cast("JsonSchema", schema))
    from kbroker.pipeline.decoding.protobuf_column import ProtobufColumn
    from kbroker.schema_registry.formats.protobuf import ProtobufSchema

    return ProtobufColumn(cast("ProtobufSchema", schema))


class Fields:
    """Reads the top-level fields of a value as texts, with the schema that has written the value."""

    def __init__(self, schema: Schema, names: tuple[str, ...]) -> None:
        self._schema = schema
        self._names = names
        self._columns: dict[str, tuple[Column, Callable[[bytes], Any]]] = {}

    def of(self, data: bytes) -> tuple[str | None, ...]:
        """Return the texts of the fields, with None for a field that is null or missing. Raises InvalidValue."""
        if self._schema.schema_type == "JSON":
            return self._of_json(data)
        column, read = self._column(data)
        value = read(data)
        kind = column.type
        if isinstance(kind, str) or kind["type"] != "struct" or value is None:
            raise InvalidValue("is no record with fields")
        found = {
            field["name"]: as_text(field["type"], each)
            for field, each in zip(kind["fields"], value, strict=True)
            if field["name"] in self._names
        }
        return tuple(found.get(name) for name in self._names)

    def _of_json(self, data: bytes) -> tuple[str | None, ...]:
        value = self._schema.value_of(data)
        if not isinstance(value, dict):
            raise InvalidValue("is no JSON object")
        return tuple(_json_text(value.get(name)) for name in self._names)

    def _column(self, data: bytes) -> tuple[Column, Callable[[bytes], Any]]:
        key, schema = "", self._schema
        if schema.schema_type == "PROTOBUF":
            from kbroker.schema_registry.formats.protobuf import ProtobufSchema

            key = str(cast("ProtobufSchema", schema).message_of(data).DESCRIPTOR.full_name)
        if key not in self._columns:
            column: Column
            if key:
                from kbroker.pipeline.decoding.protobuf_column import ProtobufColumn

                column = ProtobufColumn(cast("ProtobufSchema", schema), key)
            else:
                column = column_of(schema)
            self._columns[key] = column, column.read_by(schema)
        return self._columns[key]


def _json_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value if value is None else text(value)
    from kbroker.pipeline.decoding.spark_types import json_text

    return json_text(value)
