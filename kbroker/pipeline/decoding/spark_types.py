"""The types of decoded columns, as Spark's JSON has them, and the values that Spark's tasks take for them.

Owns the bounds of a type that follows from a schema of others. A type is made without Spark. A value is what Spark's
JVM takes from a Python task as it is: a tuple for a struct, days since 1970 for a date, microseconds since 1970 for a
timestamp. So dates beyond the year 9999 and decimals stay exact. Whatever has no type here becomes JSON text.
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
"""Makes a value for Spark of a value of a format; raises InvalidValue."""

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
"""The most digits of Spark's decimals."""
MOST_FIELDS: Final = 3_000
"""The most fields of a column's type, with all fields within: schemas may name a type in many places."""
DEEPEST: Final = 30
"""The most levels of structs, arrays and maps within each other."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a column: its type, and what makes values of it."""

    type: SparkType
    convert: Convert


class Budget:
    """Counts the fields of one column's type."""

    def __init__(self) -> None:
        self._left = MOST_FIELDS

    def allows(self, names: Sequence[str], depth: int) -> bool:
        """Take a struct's fields; False if they are too many, too deep, or have names that Spark cannot tell apart."""
        folded = {name.casefold() for name in names}
        if not names or len(folded) < len(names) or "" in folded or depth >= DEEPEST or len(names) > self._left:
            return False
        self._left -= len(names)
        return True


def decimal_type(precision: int, scale: int) -> SparkType:
    """Return the type of decimals; of text for those with more digits than Spark has."""
    return f"decimal({precision},{scale})" if precision <= MOST_DIGITS else STRING


def struct_type(fields: Sequence[tuple[str, SparkType]]) -> SparkType:
    """Return the type of a struct; each field may be null."""
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
    """Return a short text that differs for types that differ."""
    return hashlib.sha256(json.dumps(kind, sort_keys=True).encode()).hexdigest()[:12]


_LONGS: Final = range(-(1 << 63), 1 << 63)


def whole_number(value: int) -> int:
    """Return a number that fits a long; raises InvalidValue."""
    if value not in _LONGS:
        raise InvalidValue("a number has more than 64 bits")
    return value


@lru_cache(maxsize=64)
def power_of_ten(exponent: int) -> int:
    """Return a power of ten, kept: large ones take a while."""
    return int(10**exponent)


def rescaled(unscaled: int, before: int, scale: int) -> int:
    """Return the same number with another count of digits behind the point; raises InvalidValue if it has more."""
    if scale >= before:
        return unscaled * power_of_ten(scale - before)
    found, rest = divmod(unscaled, power_of_ten(before - scale))
    if rest:
        raise InvalidValue(f"a decimal has more than {scale} digits behind the point")
    return found


_EXACT: Final = Context(prec=2_000_000)


def from_unscaled(unscaled: int, precision: int, scale: int) -> Decimal:
    """Return a decimal; raises InvalidValue if it has more digits than its type."""
    if abs(unscaled) >= power_of_ten(precision):
        raise InvalidValue(f"a decimal has more than {precision} digits")
    return Decimal(unscaled).scaleb(-scale, _EXACT)


def text(value: str) -> str:
    """Return a text that is valid Unicode; raises InvalidValue."""
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InvalidValue("a text has half a character") from None
    return value


def json_text(value: Any) -> str:
    """Return a value as compact JSON; raises InvalidValue."""
    try:
        return text(json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain))
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidValue(f"has no JSON: {error}") from None


def _plain(value: object) -> object:
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode("latin-1")  # as in Avro's JSON
    return str(value)


def as_text(kind: SparkType, value: Any) -> str | None:
    """Return a value of a type as Spark's reader of JSON would give it as a string; a timestamp in ms since 1970."""
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
"""In days: beyond, Python has no date."""


def _named(kind: SparkType, value: Any) -> Any:
    """Return a value with the names of its fields."""
    if value is None or isinstance(kind, str):
        return value
    if kind["type"] == "struct":
        return {field["name"]: _named(field["type"], each) for field, each in zip(kind["fields"], value, strict=True)}
    if kind["type"] == "array":
        return [_named(kind["elementType"], each) for each in value]
    return {str(key): _named(kind["valueType"], each) for key, each in value.items()}
