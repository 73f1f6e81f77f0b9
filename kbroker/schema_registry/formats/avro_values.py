"""Values of an Avro schema from JSON, in the form that fastavro writes.

Owns the two accepted forms. In Avro's JSON encoding, a value of a union names its branch. In plain JSON, a value of a
union belongs to the first branch that it fits. Missing fields get their defaults. Bytes are given as strings of
characters up to U+00FF. A value of a logical type is given in its stored form.
"""

from __future__ import annotations

from typing import Any

from kbroker.schema_registry.formats.avro_model import Field, Type, plain_numbers, whole
from kbroker.schema_registry.formats.common import InvalidValue


def from_json(kind: Type, value: Any, place: str = "value") -> Any:
    """Return a value for fastavro. Raises InvalidValue, which names the place in the value that does not match."""
    kind = kind.named or kind
    if kind.kind == "union":
        return _in_union(kind, value, place)
    if kind.kind in ("record", "error") and isinstance(value, dict):
        return _record(kind, value, place)
    if kind.kind == "array" and isinstance(value, list):
        return [from_json(kind.inner[0], each, f"{place}[{index}]") for index, each in enumerate(value)]
    if kind.kind == "map" and isinstance(value, dict):
        return {name: from_json(kind.inner[0], each, f"{place}.{name}") for name, each in value.items()}
    if kind.kind in ("bytes", "fixed") and isinstance(value, str):
        return _bytes(kind, value, place)
    if _is_simple(kind, value):
        return float(value) if kind.kind in ("float", "double") else value
    raise InvalidValue(f"{place} is no {kind.full or kind.kind}")


def _is_simple(kind: Type, value: Any) -> bool:
    if kind.kind == "null":
        return value is None
    if kind.kind == "boolean":
        return isinstance(value, bool)
    if kind.kind in ("int", "long"):
        bits = 31 if kind.kind == "int" else 63
        return isinstance(value, int) and not isinstance(value, bool) and -(1 << bits) <= value < 1 << bits
    if kind.kind in ("float", "double"):
        return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1 << 1023
    if kind.kind == "enum":
        return value in kind.symbols
    return kind.kind == "string" and isinstance(value, str)


def _bytes(kind: Type, value: str, place: str) -> bytes:
    try:
        data = value.encode("latin-1")
    except UnicodeEncodeError:
        raise InvalidValue(f"{place} is bytes, but has a character beyond U+00FF") from None
    if kind.kind == "fixed" and len(data) != kind.size:
        raise InvalidValue(f"{place} has {len(data)} bytes, and {kind.full} has {kind.size}")
    return data


def _record(kind: Type, value: dict[str, Any], place: str) -> dict[str, Any]:
    unknown = value.keys() - {each.name for each in kind.fields}
    if unknown:
        raise InvalidValue(f"{place} has a field {min(unknown)}, and {kind.full} has none of this name")
    return {each.name: _field(each, value, f"{place}.{each.name}") for each in kind.fields}


def _field(field: Field, value: dict[str, Any], place: str) -> Any:
    if field.name in value:
        return from_json(field.type, value[field.name], place)
    if not field.has_default:
        raise InvalidValue(f"{place} is missing")
    return from_json(field.type, plain_numbers(field.default), place)


def _in_union(kind: Type, value: Any, place: str) -> Any:
    if isinstance(value, dict) and len(value) == 1:
        ((name, inner),) = value.items()
        for branch in kind.inner:
            if name in (branch.full or branch.kind, branch.full.rpartition(".")[2]):
                try:
                    return _of_branch(branch, inner, f"{place}.{name}")
                except InvalidValue:
                    break  # a map, or a record with a field of this name
    reason = None
    for branch in kind.inner:
        try:
            return _of_branch(branch, value, place)
        except InvalidValue as error:
            reason = error if reason is None or branch.kind == "record" else reason
    raise reason or InvalidValue(f"{place} fits no branch of an empty union")


def _of_branch(branch: Type, value: Any, place: str) -> tuple[str, Any]:
    """Return the branch's name and the value, so that fastavro does not guess the branch."""
    return (whole(branch.full) if branch.full else branch.kind), from_json(branch, value, place)
