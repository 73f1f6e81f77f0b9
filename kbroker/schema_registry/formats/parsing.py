"""`parse` and `compatible` for all three formats. The module and the libraries of a format are loaded at first use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast

from kbroker.schema_registry.formats.common import Incompatibility, InvalidSchema, Schema, check_size

SCHEMA_TYPES: Final = ("JSON", "PROTOBUF", "AVRO")
"""The types of schemas, in the order in which Confluent's registry lists them."""


def parse(schema_type: str, text: str, references: Mapping[str, str] | None = None, *, is_new: bool = True) -> Schema:
    """Parse a schema. Raises InvalidSchema with the reason, or ImportError without the extra `registry`.

    `references` has the texts of all schemas that the schema references, directly or indirectly, by the names in the
    references; each text comes after the texts that it needs. No other schema or file is read, whatever the text names.
    `is_new` is False for a schema that a registry already stores: then Avro's defaults are not checked, because
    Confluent's registry did not always check them.
    """
    given = dict(references or {})
    check_size(text, given)
    if schema_type == "AVRO":
        from kbroker.schema_registry.formats import avro

        return avro.parse(text, given, is_new=is_new)
    if schema_type == "JSON":
        from kbroker.schema_registry.formats import json_schema

        return json_schema.parse(text, given)
    if schema_type == "PROTOBUF":
        from kbroker.schema_registry.formats import protobuf

        return protobuf.parse(text, given)
    raise InvalidSchema(f"Invalid schema type {schema_type}")


def compatible(reader: Schema, writer: Schema) -> list[Incompatibility]:
    """Return the reasons for which the reader's schema cannot read the writer's data; an empty list if it can.

    Both schemas must be of the same type. Raises InvalidSchema for schemas that cannot be compared within the limits.
    """
    if reader.schema_type != writer.schema_type:
        raise ValueError("schemas of two types are never compatible")
    if reader.schema_type == "AVRO":
        from kbroker.schema_registry.formats import avro

        return avro.compatible(cast("avro.AvroSchema", reader), cast("avro.AvroSchema", writer))
    if reader.schema_type == "JSON":
        from kbroker.schema_registry.formats import json_schema, json_schema_compatibility

        return json_schema_compatibility.compatible(
            cast("json_schema.JsonSchema", reader), cast("json_schema.JsonSchema", writer)
        )
    from kbroker.schema_registry.formats import protobuf, protobuf_compatibility

    return protobuf_compatibility.compatible(
        cast("protobuf.ProtobufSchema", reader), cast("protobuf.ProtobufSchema", writer)
    )
