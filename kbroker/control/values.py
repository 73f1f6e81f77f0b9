"""The values that a caller sends, in a JSON body or in a query, checked against their declaration.

Owns the types of fields, the messages for wrong values, and the fields that several operations share: the timeout, and
the filters for requests. The OpenAPI document and the command line use the same declarations.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from kbroker.fields import Field, WrongValue

Values = dict[str, Any]
_WORDS: Final = {
    "string": "a string",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "names": "a string, or a list of strings",
    "strings": "an object of strings, numbers and booleans",
    "data": 'a string, {"text": ...}, {"base64": ...} or null',
    "headers": 'a list of {"key": ..., "value": ...}',
}
_LONG: Final = 2**63 - 1


class Refused(Exception):  # noqa: N818 - an outcome
    """Raised to refuse a request. Contains the status of the answer, and a line with the reason."""

    def __init__(self, status: int, text: str, code: str | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.code = code
        """Kafka's name of the error; None if the error is not one of Kafka's."""


LONGEST_WAIT_MS: Final = 600_000
USUAL_LIMIT: Final = 100
ABOUT: Final = (
    Field("api", "string", 'Kafka\'s name of the requested API, such as "Produce".'),
    Field("topic", "string", "Requests that name this topic."),
    Field("group", "string", "Requests that name this group."),
    Field("transactional_id", "string", "Requests that name this transactional id."),
    Field("client_id", "string", "Requests of the client with this id."),
)
LIMIT: Final = Field(
    "limit",
    "integer",
    f"The maximum number of requests, the newest ones; the default is {USUAL_LIMIT}.",
    least=0,
    most=1000,
)
TIMEOUT: Final = Field(
    "timeout_ms",
    "integer",
    "The maximum time to wait, in ms; the default is ten seconds.",
    least=0,
    most=LONGEST_WAIT_MS,
)
"""The timeout of all operations that wait (the default of ten seconds is in operations.until)."""


def parsed(body: bytes) -> Any:
    """Parse JSON. Raises Refused."""
    try:
        return json.loads(body, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else " ".join(str(error).split())
        raise Refused(400, f"the body is not JSON: {why}") from None


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number")


def checked(fields: Iterable[Field], given: Any) -> dict[str, Any]:
    """Return a body's fields as Python values. Raises Refused with the error and the known fields."""
    if not isinstance(given, dict):
        raise Refused(400, "the body must be a JSON object")
    return _checked(list(fields), given)


def queried(fields: Iterable[Field], given: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Return a query's fields as `checked` does, with numbers parsed from text."""
    known = {field.name: field for field in fields}
    found: dict[str, Any] = {}
    for name, text in given:
        field = known.get(name)
        if name in found:
            raise Refused(400, f"{name} is there twice")
        found[name] = text if field is None or field.kind == "string" else _read(field, text)
    return _checked(list(known.values()), found)


def _read(field: Field, text: str) -> Any:
    try:
        return int(text) if field.kind == "integer" else float(text)
    except ValueError:
        raise Refused(400, f"{field.name} must be {_WORDS[field.kind]}, not {text[:100]!r}") from None


def _checked(fields: list[Field], given: Mapping[str, Any]) -> dict[str, Any]:
    known = {field.name: field for field in fields}
    for name in given:
        if name not in known:
            there = f"; there are {', '.join(known)}" if known else ""
            raise Refused(400, f"there is no {name[:100]!r} here{there}")
    for field in fields:
        if field.required and field.name not in given:
            raise Refused(400, f"{field.name} is missing: {field.meaning}")
    return {name: _value(known[name], value) for name, value in given.items()}


def _value(field: Field, value: Any) -> Any:
    if not _IS[field.kind](value):
        raise Refused(400, f"{field.name} must be {_WORDS[field.kind]}, not {json.dumps(value)[:100]}")
    try:
        field.check(value)
    except WrongValue as error:
        raise Refused(400, str(error)) from None
    return _MADE[field.kind](value) if field.kind in _MADE else value


def _is_string(value: Any) -> bool:
    """Whether a value is a text that can be encoded as UTF-8. A text in JSON may contain a lone surrogate."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -_LONG <= value <= _LONG


def _is_number(value: Any) -> bool:
    return _is_integer(value) or (isinstance(value, float) and math.isfinite(value))


def _is_data(value: Any) -> bool:
    if isinstance(value, dict):
        return len(value) == 1 and all(name in ("text", "base64") and _is_string(text) for name, text in value.items())
    return value is None or _is_string(value)


def _is_header(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() == {"key", "value"}
        and _is_string(value["key"])
        and _is_data(value["value"])
    )


_IS: Final[dict[str, Callable[[Any], object]]] = {
    "string": _is_string,
    "integer": _is_integer,
    "number": _is_number,
    "boolean": lambda value: isinstance(value, bool),
    "names": lambda value: _is_string(value) or (isinstance(value, list) and value and all(map(_is_string, value))),
    "strings": lambda value: (
        isinstance(value, dict)
        and all(_is_string(name) for name in value)
        and all(_is_string(each) or _is_number(each) or isinstance(each, bool) for each in value.values())
    ),
    "data": _is_data,
    "headers": lambda value: isinstance(value, list) and all(map(_is_header, value)),
}


def _data(value: Any) -> bytes | None:
    if value is None or isinstance(value, str):
        return None if value is None else value.encode()
    if "text" in value:
        return str(value["text"]).encode()
    try:
        return base64.b64decode(value["base64"], validate=True)
    except (binascii.Error, ValueError):
        raise Refused(400, f"this is not base64: {value['base64'][:100]!r}") from None


def _config(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


_MADE: Final[dict[str, Callable[[Any], Any]]] = {
    "names": lambda value: [value] if isinstance(value, str) else value,
    "strings": lambda value: {name: _config(each) for name, each in value.items()},
    "data": _data,
    "headers": lambda value: [(each["key"], _data(each["value"])) for each in value],
}
