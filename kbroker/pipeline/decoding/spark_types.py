"""The types of decoded columns, in Spark's JSON form, and the values that Spark's tasks return for them.

Owns the limits of a type that results from a foreign schema. Types are created without Spark. Values have the form that
Spark's JVM accepts from a Python task without conversion: a tuple for a struct, days since 1970 for a date,
microseconds since 1970 for a timestamp. So dates beyond the year 9999 and decimals stay exact. A value without a type
here becomes JSON text.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from functools import lru_cache
from typing import Any, Final

from kbroker.schema_registry.formats.common import InvalidValue

SparkType = str | dict[str, Any]
Convert = Callable[[Any], Any]
"""Converts a value of a format to a value for Spark. Raises InvalidValue."""

BOOLEAN: Final = "boolean"
INT: Final = "integer"
LONG: Final = "long"
FLOAT: Final = "float"
DOUBLE: Final = "double"
STRING: Final = "string"
BINARY: Final = "binary"
DATE: Final = "date"
TIMESTAMP: Final = "timestamp"
LOCAL_TIMESTAMP: Final = "timestamp_ntz"
MOST_DIGITS: Final = 38
"""The maximum number of digits that Spark's decimals can have."""
MOST_FIELDS: Final = 3_000
"""The maximum number of fields of a column's type, with inner fields: a schema may name one type in many places."""
DEEPEST: Final = 30
"""The maximum number of levels of nested structs, arrays and maps."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a column: its type, and the conversion to values of the type."""

    type: SparkType
    convert: Convert


class Budget:
    """Counts the fields of one column's type."""

    def __init__(self) -> None:
        self._left = MOST_FIELDS

    def allows(self, names: Sequence[str], depth: int) -> bool:
        """Count a struct's fields. Return False if there are too many, or too many levels, or ambiguous names."""
        folded = {name.casefold() for name in names}
        if not names or len(folded) < len(names) or "" in folded or depth >= DEEPEST or len(names) > self._left:
            return False
        self._left -= len(names)
        return True


def decimal_type(precision: int, scale: int) -> SparkType:
    """Return the type for decimals. This is the type of texts if the decimals have more digits than Spark supports."""
    return f"decimal({precision},{scale})" if precision <= MOST_DIGITS else STRING


def struct_type(fields: Sequence[tuple[str, SparkType]]) -> SparkType:
    """Return the type of a struct in which each field may be null."""
    return {
        "type": "struct",
        "fields": [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in fields],
    }


def array_type(items: SparkType) -> SparkType:
    """Return the type of an array."""
    return {"type": "array", "elementType": items, "containsNull": True}


def map_type(values: SparkType, keys: SparkType = STRING) -> SparkType:
    """Return the type of a map."""
    return {"type": "map", "keyType": keys, "valueType": values, "valueContainsNull": True}


def array_of(items: Part) -> Part:
    """Return an array of parts."""
    convert = items.convert
    return Part(array_type(items.type), lambda values: [convert(each) for each in values])


def fingerprint(kind: SparkType) -> str:
    """Return a short text that is different for different types."""
    return hashlib.sha256(json.dumps(kind, sort_keys=True).encode()).hexdigest()[:12]


_LONGS: Final = range(-(1 << 63), 1 << 63)


def whole_number(value: int) -> int:
    """Return a number that fits into a long. Raises InvalidValue."""
    if value not in _LONGS:
        raise InvalidValue("a number has more than 64 bits")
    return value


@lru_cache(maxsize=64)
def power_of_ten(exponent: int) -> int:
    """Return a power of ten. It is cached, because large powers take long to compute."""
    return int(10**exponent)


def rescaled(unscaled: int, before: int, scale: int) -> int:
    """Return the same number with another number of decimal places. Raises InvalidValue if the number needs more."""
    if scale >= before:
        return unscaled * power_of_ten(scale - before)
    found, rest = divmod(unscaled, power_of_ten(before - scale))
    if rest:
        raise InvalidValue(f"a decimal has more than {scale} digits after the point")
    return found


_EXACT: Final = Context(prec=2_000_000)


def from_unscaled(unscaled: int, precision: int, scale: int) -> Decimal:
    """Return a decimal. Raises InvalidValue if it has more digits than its type allows."""
    if abs(unscaled) >= power_of_ten(precision):
        raise InvalidValue(f"a decimal has more than {precision} digits")
    return Decimal(unscaled).scaleb(-scale, _EXACT)


def text(value: str) -> str:
    """Return a text that is valid Unicode. Raises InvalidValue."""
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InvalidValue("a text has half a character") from None
    return value


def json_text(value: Any) -> str:
    """Return a value as compact JSON. Raises InvalidValue."""
    try:
        return text(json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain))
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidValue(f"has no JSON: {error}") from None


def _plain(value: object) -> object:
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode("latin-1")  # as in Avro's JSON
    return str(value)


def as_text(kind: SparkType, value: Any) -> str | None:
    """Return a value as the string that Spark's JSON reader would return. A timestamp is in ms since 1970."""
    if value is None:
        return None
    if isinstance(kind, dict):
        return json_text(_named(kind, value))
    if kind in (TIMESTAMP, LOCAL_TIMESTAMP):
        return str(value // 1000)
    if kind == DATE:
        return str(_EPOCH + datetime.timedelta(days=value)) if abs(value) < _FAR else None
    if kind == BOOLEAN:
        return "true" if value else "false"
    if kind == BINARY:
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            raise InvalidValue("bytes where a text is needed") from None
    return f"{value:f}" if isinstance(value, Decimal) else str(value)


_EPOCH: Final = datetime.date(1970, 1, 1)
_FAR: Final = 700_000
"""The greatest distance of a date from 1970, in days. Beyond this limit, Python might not support the date."""


def _named(kind: SparkType, value: Any) -> Any:
    """Return a value as a mapping with the names of its fields."""
    if value is None or isinstance(kind, str):
        return value
    if kind["type"] == "struct":
        return {field["name"]: _named(field["type"], each) for field, each in zip(kind["fields"], value, strict=True)}
    if kind["type"] == "array":
        return [_named(kind["elementType"], each) for each in value]
    return {str(key): _named(kind["valueType"], each) for key, each in value.items()}
