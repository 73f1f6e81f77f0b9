"""The content of requests and answers of Confluent's REST API.

Owns the form of parameters, bodies and answers, and the limits of a body. Never decides. Like Confluent's registry,
answers leave out empty parts.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from starlette.requests import Request
from starlette.types import Scope

from kbroker.schema_registry.drafts import ADDITIONS
from kbroker.schema_registry.drafts import Request as SchemaRequest
from kbroker.schema_registry.errors import Refusal
from kbroker.schema_registry.records import CONFIG_FIELDS, MOST, Json, Reference, Version, guid_of
from kbroker.schema_registry.shard import LATEST

MOST_BODY: Final = 2 * 1024 * 1024
"""The maximum size of a body in bytes: `_schemas` accepts records of 1 MiB, and a schema in JSON is escaped."""
MOST_BODIES: Final = 64 * 1024 * 1024
"""The maximum size in bytes of the bodies of all unanswered requests together."""
ALWAYS_TAKEN: Final = 64 * 1024
"""The number of bytes of a body that are always accepted, even if the other bodies are large."""
BODY_S: Final = 10.0
"""The seconds within which a body must arrive."""
NOTE: Final = "note"
"""The key in a request's scope for an optional list. Each tried endpoint adds its name to this list."""
MEDIA: Final = "application/vnd.schemaregistry.v1+json"
_TAKEN: Final = (
    "",
    MEDIA,
    "application/vnd.schemaregistry+json",
    "application/json",
    "application/octet-stream",
)
MOST_SCHEMAS: Final = 1_000
"""The largest and the default number of schemas in a list."""
MOST_VALUES: Final = 20_000
"""The maximum number of commas and colons in a body's JSON, outside of strings.

Their number limits the number of values of every kind.
"""
_TOKEN: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[,:]', re.DOTALL)
_INTEGER: Final = re.compile("[+-]?[0-9]{1,10}")
_HALF: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_SWITCHES: Final = ("normalize", "validateFields", "validateNewSchemas", "validateRules")


class Refused(Exception):  # noqa: N818 - an outcome
    """An HTTP request that does not conform to the API."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class Text(str):
    """A schema's text, which is the complete answer."""

    __slots__ = ()


# -- what requests contain


def first(request: Request, name: str, default: str = "") -> str:
    """Return the first query parameter of a name, or the default."""
    if not request.scope["query_string"]:
        return default
    return next(iter(request.query_params.getlist(name)), default)


def flag(request: Request, name: str) -> bool:
    """Return a query parameter that is true only if its value is "true"."""
    return first(request, name).lower() == "true"


def number(text: str, name: str) -> int:
    """Parse a number of 32 bits from a path or a query. Raises Refused."""
    found = int(text) if _INTEGER.fullmatch(text) else MOST + 1
    if not -MOST <= found <= MOST:
        raise Refused(404, f"HTTP 404 Not Found: {name} is no number of 32 bits")
    return found


def version_number(text: str) -> int:
    """Parse a version's number, or LATEST."""
    text = text.strip()
    if text.lower() == "latest":
        return LATEST
    found = int(text) if _INTEGER.fullmatch(text) else 0
    if found != LATEST and not 1 <= found <= MOST:
        raise Refusal.INVALID_VERSION(text)
    return found


def page(request: Request, found: list[Any], most: int = MOST) -> list[Any]:
    """Return the part of a list that `offset` and `limit` select."""
    begin, end = bounds(request, most)
    return found[begin:end]


def bounds(request: Request, most: int = MOST) -> tuple[int, int]:
    """Return the bounds of the part of a list that `offset` and `limit` select; `most` limits its length."""
    offset = max(number(first(request, "offset", "0"), "offset"), 0)
    limit = number(first(request, "limit", "-1"), "limit")
    return offset, offset + (limit if 0 < limit <= most else most)


class Bodies:
    """The bodies of all unanswered requests. Their total size has a limit."""

    def __init__(self) -> None:
        self._held = 0

    @contextmanager
    def __call__(self, scope: Scope) -> Iterator[None]:
        """Let `body` read a request's body; subtract its size from the total afterwards."""
        scope["bodies"], scope["body_size"] = self, 0
        try:
            yield
        finally:
            self._held -= scope["body_size"]

    def take(self, scope: Scope, size: int) -> None:
        """Add received bytes to the total; raises Refused beyond a limit."""
        scope["body_size"] += size
        self._held += size
        if scope["body_size"] > MOST_BODY:
            raise Refused(413, f"A body has at most {MOST_BODY} bytes")
        if self._held > MOST_BODIES and scope["body_size"] > ALWAYS_TAKEN:
            raise Refused(503, "Too many large bodies at once")


async def body(request: Request) -> dict[str, Any]:
    """Return a body's JSON object."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() not in _TAKEN:
        raise Refused(415, "HTTP 415 Unsupported Media Type")
    bodies: Bodies = request.scope["bodies"]
    data = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for piece in request.stream():
                bodies.take(request.scope, len(piece))
                data += piece
    except TimeoutError:
        raise Refused(408, f"The body did not arrive within {BODY_S:g} s") from None
    found = _json(bytes(data)) if data.strip() else None
    if found is None:
        raise Refused(422, "The body may not be empty")
    if not isinstance(found, dict):
        raise Refused(400, "The body must be a JSON object")
    return found


def _json(data: bytes) -> Any:
    """Return the value of a JSON body; limit its number of values, so that Python's parser does not block for long."""
    if data.count(b",") + data.count(b":") > MOST_VALUES:
        values = 0
        for token in _TOKEN.finditer(data):
            values += token.group() in b",:"
            if values > MOST_VALUES:
                raise Refused(400, f"A body has at most {MOST_VALUES} values")
    try:
        found = json.loads(data, parse_constant=_no_constant)
        if _HALF.search(data):
            json.dumps(found, ensure_ascii=False).encode()  # raises UnicodeEncodeError for half of a surrogate pair
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"The body is no JSON: {str(error)[:200]}") from None
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def field(found: Json, name: str, kind: type, default: Any) -> Any:
    """Return a field of a body. The field may be missing or null."""
    value = found.get(name)
    if value is None:
        return default
    if not isinstance(value, kind) or isinstance(value, bool) is not (kind is bool):
        raise Refused(400, f"{name} has a value of another kind")
    if isinstance(value, int) and not -MOST - 1 <= value <= MOST:
        raise Refused(400, f"{name} is not a number of 32 bits")
    return value


def objects(found: Json, name: str) -> list[dict[str, Any]]:
    """Return a field that is a list of objects."""
    value = field(found, name, list, [])
    if not all(isinstance(each, dict) for each in value):
        raise Refused(400, f"{name} must be a list of objects")
    return list(value)


def texts(found: Json, name: str) -> list[str]:
    """Return a field that is a list of texts."""
    value = field(found, name, list, [])
    if not all(isinstance(each, str) for each in value):
        raise Refused(400, f"{name} must be a list of texts")
    return list(value)


def schema_in(found: Json) -> SchemaRequest:
    """Return the schema in a body. Raises RegistryError."""
    references = tuple(
        Reference(field(each, "name", str, ""), field(each, "subject", str, ""), field(each, "version", int, LATEST))
        for each in objects(found, "references")
    )
    return SchemaRequest(
        field(found, "schema", str, ""),
        field(found, "schemaType", str, "AVRO") or "AVRO",
        references,
        field(found, "metadata", dict, None),
        field(found, "ruleSet", dict, None),
        field(found, "version", int, 0),
        max(field(found, "id", int, -1), -1),
    )


def changes_in(found: Json) -> dict[str, Any]:
    """Return the changes of a config in a body: a null value removes a field."""
    given = dict(found)
    if "compatibility" in given:
        given["compatibilityLevel"] = given.pop("compatibility")
    changes: dict[str, Any] = {name: given[name] for name in CONFIG_FIELDS if name in given}
    for name in changes:
        kind = dict if name in ADDITIONS else bool if name in _SWITCHES else str
        changes[name] = field(changes, name, kind, None)
    return changes


# -- what answers contain


def of_version(version: Version, schema: str | None = None) -> dict[str, Any]:
    """Return a version in the form of a list; `schema` is its text in another form, if given."""
    content = version.content
    found: dict[str, Any] = {"subject": version.subject, "version": version.version, "id": version.id}
    found |= {"guid": guid_of(content.digest()), "schemaType": content.schema_type, **content.as_json()}
    if schema is not None:
        found["schema"] = schema
    if version.deleted:
        found["deleted"] = True
    return found


def of_config(config: Json, level: str = "compatibilityLevel") -> dict[str, Any]:
    """Return a config. The name of the compatibility level differs between the answers to a change and to a query."""
    return {level if name == "compatibilityLevel" else name: value for name, value in config.items()}
