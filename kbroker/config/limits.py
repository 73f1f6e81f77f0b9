"""The limits of keys on single values, with Kafka's messages for violations.

Owns the validators. Never parses text: a validator receives the typed value.
"""

from __future__ import annotations

import re
from decimal import Decimal
from functools import partial

from kbroker.config.model import InvalidConfig, Validator, Value

_THROTTLED = re.compile(r"([0-9]+:[0-9]+)?", re.ASCII)
_DURATION = re.compile(
    r"(?P<sign>[-+]?)P(?:([-+]?\d+)D)?(?:T(?=[-+\d])(?:([-+]?\d+)H)?(?:([-+]?\d+)M)?(?:([-+]?\d+(?:[.,]\d{0,9})?)S)?)?",
    re.ASCII | re.IGNORECASE,
)
_HEADER_NAME = re.compile(r"[!-~]{1,249}")
_MOST_HEADERS = 8
_UNITS_S = (86_400, 3_600, 60, 1)


def duration_ms(text: str) -> int:
    """Return the ms of an ISO-8601 duration of days, hours, minutes and seconds, with the rules of Java's Duration."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no duration")
    numbers = [float((number or "0").replace(",", ".")) for number in found.groups()[1:]]
    seconds = sum(number * unit for number, unit in zip(numbers, _UNITS_S, strict=True))
    return int(seconds * 1000) * (-1 if found["sign"] == "-" else 1)


def java_text(value: Value) -> str:
    """Return `value` as Java prints it in a message: null, true, [a, b]."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return f"[{', '.join(value)}]"
    if isinstance(value, float):
        return java_double(value)
    return str(value)


def java_double(number: float) -> str:
    """Return a double as Java's Double.toString writes it: 0.5, 1.0E-5, 1.7976931348623157E308."""
    if number != number:
        return "NaN"
    if number in (float("inf"), float("-inf")):
        return "Infinity" if number > 0 else "-Infinity"
    if number == 0 or 1e-3 <= abs(number) < 1e7:
        # Inside this range, Python's repr never uses an exponent.
        return repr(float(number))
    # Java and Python print the same digits: the minimum number that identifies the value. Only their exponents differ.
    sign, digits, exponent = Decimal(repr(float(number))).as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits)).rstrip("0")
    return f"{'-' if sign else ''}{text[0]}.{text[1:] or '0'}E{exponent + len(digits) - 1}"


def invalid(name: str, value: Value, message: str) -> InvalidConfig:
    """Return the error for `value` of key `name`, with Kafka's message."""
    return InvalidConfig(f"Invalid value {java_text(value)} for configuration {name}: {message}")


def _check_range(low: float | None, high: float | None, name: str, value: Value) -> None:
    if value is None or isinstance(value, (str, tuple)):
        raise invalid(name, None, "Value must be non-null")
    if low is not None and value < low:
        raise invalid(name, value, f"Value must be at least {low}")
    if high is not None and value > high:
        raise invalid(name, value, f"Value must be no more than {high}")


def at_least(low: int) -> Validator:
    """Allow numbers from `low`, inclusive."""
    return Validator(f"[{low},...]", partial(_check_range, low, None))


def between(low: float, high: float) -> Validator:
    """Allow numbers from `low` to `high`, both inclusive."""
    return Validator(f"[{low},...,{high}]", partial(_check_range, low, high))


def one_of(*allowed: str) -> Validator:
    """Allow only these strings."""

    def check(name: str, value: Value) -> None:
        if value not in allowed:
            raise invalid(name, value, f"String must be one of: {', '.join(allowed)}")

    return Validator(f"[{', '.join(allowed)}]", check)


def one_of_any_case(*allowed: str) -> Validator:
    """Allow these strings in upper, lower or mixed case."""

    def check(name: str, value: Value) -> None:
        if not isinstance(value, str) or value.upper() not in allowed:
            raise invalid(name, value, f"String must be one of (case insensitive): {', '.join(allowed)}")

    return Validator(f"(case insensitive) [{', '.join(allowed)}]", check)


def list_of(*allowed: str, empty: bool = True, null: bool = False) -> Validator:
    """Allow lists of these strings. Without arguments, allow lists of any non-empty strings."""

    def check(name: str, value: Value) -> None:
        if value is None:
            if not null:
                raise InvalidConfig(f"Configuration '{name}' values must not be null.")
            return
        if not isinstance(value, tuple):
            raise invalid(name, value, "Expected a comma separated list.")
        if not value and not empty:
            valid = f"[{', '.join(allowed)}]" if allowed else "any non-empty value"
            raise InvalidConfig(f"Configuration '{name}' must not be empty. Valid values include: {valid}")
        for item in value:
            if not item:
                raise InvalidConfig(f"Configuration '{name}' values must not be empty.")
            if allowed and item not in allowed:
                raise invalid(name, item, f"String must be one of: {', '.join(allowed)}")

    return Validator(f"[{', '.join(allowed)}]" if allowed else "", check)


def _check_not_null(name: str, value: Value) -> None:
    if value is None:
        raise invalid(name, "null", "entry must be non null")


def _check_not_empty(name: str, value: Value) -> None:
    if value == "":
        raise invalid(name, value, "String must be non-empty")


def _check_gzip_level(name: str, value: Value) -> None:
    if not isinstance(value, int):
        raise invalid(name, None, "Value must be non-null")
    if value != -1 and not 1 <= value <= 9:
        raise invalid(name, value, "Value must be between 1 and 9 or equal to -1")


def _check_throttled_replicas(name: str, value: Value) -> None:
    items = [item.strip() for item in value] if isinstance(value, tuple) else []
    if not (all(_THROTTLED.fullmatch(item) for item in items) or "".join(items) == "*"):
        form = "[partitionId]:[brokerId],[partitionId]:[brokerId],..."
        text = f"{name} must be the literal '*' or a list of replicas in the following format: {form}"
        raise invalid(name, value, text)


def _check_header_names(name: str, value: Value) -> None:
    items = value if isinstance(value, tuple) else ()
    if len(items) > _MOST_HEADERS or not all(_HEADER_NAME.fullmatch(item) for item in items):
        text = f"Expected at most {_MOST_HEADERS} names of headers, each of 1 to 249 visible ASCII characters"
        raise invalid(name, value, text)


def _check_share_reset(name: str, value: Value) -> None:
    text = value if isinstance(value, str) else ""
    if text in ("latest", "earliest"):
        return
    if text.lower().startswith("by_duration:"):
        duration = _DURATION.fullmatch(text.partition(":")[2])
        if duration and duration.group().upper() not in ("P", "PT") and duration["sign"] != "-":
            return
    allowed = "either 'earliest', 'latest' or of the format 'by_duration:<PnDTnHnMn.nS>'"
    message = f"Invalid value `{text}` for configuration {name}. The value must be {allowed}."
    raise invalid(name, value, message)


NOT_NULL = Validator("non-null string", _check_not_null)
NOT_EMPTY = Validator("non-empty string", _check_not_empty)
GZIP_LEVEL = Validator("[1,...,9] or -1", _check_gzip_level)
THROTTLED_REPLICAS = Validator("[partitionId]:[brokerId],[partitionId]:[brokerId],...", _check_throttled_replicas)
HEADER_NAMES = Validator("names of headers", _check_header_names)
SHARE_RESET = Validator("[latest, earliest, by_duration:PnDTnHnMn.nS]", _check_share_reset)
