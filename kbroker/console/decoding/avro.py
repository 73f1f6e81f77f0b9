"""Decodes values with an Avro schema, using fastavro.

Owns the choice of accepted schemas. Decodes a value completely or not at all. Never resolves schemas.

Three checks find schemas with which a few bytes can do harm. The first finds lists whose items take no bytes, because
five bytes can claim a billion items. The second finds nested records with many fields that take no bytes, because no
bytes at all decode to a large value. The third finds a type that contains itself, because each byte can add a level of
nesting.
"""

from __future__ import annotations

import importlib.util
import io
import json
from collections.abc import Callable
from typing import Any, Final

from kbroker.admin.errors import WrongInput
from kbroker.extras import how_to_install


def parsed(text: str) -> Any:
    """Parse a schema. Raises WrongInput."""
    if importlib.util.find_spec("fastavro") is None:
        raise WrongInput(f"Avro needs fastavro: {how_to_install('schemas')}")
    from fastavro.schema import SchemaParseException, UnknownType, parse_schema

    try:
        schema = json.loads(text)
        # fastavro must not add its hints to the schema, because the schema is checked and shown below.
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
    """Return a decoder of values. The decoder raises ValueError if bytes do not match the schema or remain unread."""
    # fastavro's reader in C has no limit of depth, so a deeply nested value would crash the process. Its reader in
    # Python raises RecursionError instead.
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


_DEEPEST: Final = 100
_MOST_FREE: Final = 16
"""The maximum number of fields without bytes in a record, at any depth."""


def has_free_items(schema: Any) -> bool:
    """Whether a list in a parsed schema, at any depth, has items that take no bytes."""
    return _FreeItems(_names(schema, {}, 0)).in_(schema, 0, ())


def has_many_free(schema: Any) -> bool:
    """Whether a record type in a parsed schema has too many fields whose values take no bytes.

    Each decoded value contains all of these fields, however few bytes were sent.
    """
    names = _names(schema, {}, 0)
    known: dict[str, int] = {}
    return any(_free_within(each, names, known) > _MOST_FREE for each in names.values())


def _free_within(schema: Any, names: dict[str, Any], known: dict[str, int]) -> int:
    """Return the number of fields of a type that take no bytes in an encoded value. Lists and unions take bytes."""
    if isinstance(schema, str):
        return int(schema == "null") if schema not in names else _free_within(names[schema], names, known)
    if not isinstance(schema, dict):
        return 0
    if isinstance(schema["type"], dict):
        return _free_within(schema["type"], names, known)
    if schema["type"] not in ("record", "error"):
        return int(schema["type"] == "null")
    name = schema["name"]
    if name not in known:
        known[name] = 0  # a record that contains itself without a union has no finite value
        fields = schema["fields"]
        known[name] = sum(_free_within(each["type"], names, known) for each in fields) if fields else 1
    return known[name]


def holds_itself(schema: Any) -> bool:
    """Whether values of a parsed schema may be nested without limit."""
    names = _names(schema, {}, 0)
    return any(_reaches(each, name, names, set()) for name, each in names.items())


def _reaches(schema: Any, wanted: str, names: dict[str, Any], seen: set[str]) -> bool:
    """Whether a type occurs within a schema, or is the schema itself."""
    for each in _inner(schema):
        if isinstance(each, str):
            if each == wanted:
                return True
            if each in names and each not in seen:
                seen.add(each)
                if _reaches(names[each], wanted, names, seen):
                    return True
        elif (isinstance(each, dict) and each.get("name") == wanted) or _reaches(each, wanted, names, seen):
            return True
    return False


def _inner(schema: Any) -> list[Any]:
    """Return the types directly within a type."""
    if isinstance(schema, list):
        return schema
    if not isinstance(schema, dict):
        return []
    inner = [field["type"] for field in schema.get("fields", ())]
    inner += [schema[key] for key in ("items", "values") if key in schema]
    return inner + ([schema["type"]] if isinstance(schema.get("type"), (dict, list)) else [])


def _names(schema: Any, found: dict[str, Any], depth: int) -> dict[str, Any]:
    """Return the named types of a schema."""
    if depth > _DEEPEST:
        return found
    if isinstance(schema, list):
        for each in schema:
            _names(each, found, depth + 1)
    elif isinstance(schema, dict):
        if "name" in schema and schema.get("type") in ("record", "error", "fixed", "enum"):
            found[schema["name"]] = schema
        for each in _inner(schema):
            _names(each, found, depth + 1)
    return found


class _FreeItems:
    def __init__(self, names: dict[str, Any]) -> None:
        self._names = names

    def in_(self, schema: Any, depth: int, within: tuple[str, ...]) -> bool:
        if depth > _DEEPEST:
            return True  # no useful schema has this depth
        if isinstance(schema, list):
            return any(self.in_(each, depth + 1, within) for each in schema)
        if isinstance(schema, str):
            if schema in within or schema not in self._names:
                return False
            return self.in_(self._names[schema], depth + 1, (*within, schema))
        kind = schema["type"]
        if kind == "array" and self._free(schema["items"], depth + 1, ()):
            return True
        name = str(schema.get("name", ""))
        if name and name in within:
            return False
        return any(self.in_(each, depth + 1, (*within, name) if name else within) for each in _inner(schema))

    def _free(self, schema: Any, depth: int, within: tuple[str, ...]) -> bool:
        """Whether a type takes no bytes."""
        if isinstance(schema, list):
            return False  # a union begins with an index
        if isinstance(schema, str):
            if schema == "null":
                return True
            return schema in self._names and schema not in within and self._free(self._names[schema], depth, within)
        kind = schema["type"]
        if isinstance(kind, (dict, list)):
            return self._free(kind, depth, within)
        if kind in ("record", "error"):
            name = str(schema.get("name", ""))
            if name in within or depth > _DEEPEST:
                return True
            return all(self._free(each["type"], depth + 1, (*within, name)) for each in schema["fields"])
        return kind == "null" or (kind == "fixed" and int(schema["size"]) == 0)
