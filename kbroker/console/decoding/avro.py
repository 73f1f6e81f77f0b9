"""Values by an Avro schema, with fastavro.

Owns which schemas are accepted, and that values are decoded in full or not at all. Never resolves schemas.
"""

from __future__ import annotations

import importlib.util
import io
import json
from collections.abc import Callable
from typing import Any

from kbroker.admin.errors import WrongInput
from kbroker.console.decoding.avro_shape import has_free_items, has_many_free, holds_itself
from kbroker.extras import how_to_install


def parsed(text: str) -> Any:
    """Return a schema; raises WrongInput."""
    if importlib.util.find_spec("fastavro") is None:
        raise WrongInput(f"Avro needs fastavro: {how_to_install('schemas')}")
    from fastavro.schema import SchemaParseException, UnknownType, parse_schema

    try:
        schema = json.loads(text)
        # Without fastavro's hints: the schema is examined and shown.
        found = parse_schema(schema, _write_hint=False)
    except (ValueError, RecursionError):
        raise WrongInput("an Avro schema is JSON") from None
    except (SchemaParseException, UnknownType, KeyError, TypeError, AttributeError) as error:
        raise WrongInput(f"this is not an Avro schema: {' '.join(str(error).split())[:200]}") from None
    if has_many_free(found):
        raise WrongInput("this Avro schema has a record with many fields that take no bytes")
    if has_free_items(schema):
        raise WrongInput(
            "this Avro schema has a list of elements that take no bytes: a few bytes could make it endless"
        )
    return found


def about(schema: Any) -> str:
    """Return a one-line summary of a schema."""
    if isinstance(schema, dict) and "fields" in schema:
        fields = ", ".join(str(each["name"]) for each in schema["fields"])
        return f"{schema['type']} {schema['name']}: {fields}"[:300]
    return str(schema)[:300]


def decoder(schema: Any) -> Callable[[bytes], Any]:
    """Return a decoder of values. It raises ValueError if bytes do not match the schema, or are left over."""
    # fastavro's reader in C has no limit of depth: a deeply nested value ends the process. The one in Python
    # raises RecursionError.
    in_c = not holds_itself(schema)

    def decode(data: bytes) -> Any:
        if in_c:
            from fastavro import schemaless_reader
        else:
            from fastavro._read_py import schemaless_reader

        stream = io.BytesIO(data)
        try:
            value = schemaless_reader(stream, schema, None)
        except Exception as error:  # noqa: BLE001 - hostile bytes may raise anything
            raise ValueError(f"does not match this Avro schema: {type(error).__name__}") from None
        if stream.tell() != len(data):
            raise ValueError("does not match this Avro schema: bytes remain")
        return value

    return decode
