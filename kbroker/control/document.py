"""The operations as an OpenAPI document, and as an HTML page without scripts and external resources.

Owns the schemas of answers. The parameters are declared with the operations.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from importlib.metadata import version
from typing import Any, Final

from kbroker.control.known_faults import FIELDS as FAULT_FIELDS
from kbroker.control.operations import Operation
from kbroker.fields import Field

ABOUT: Final = (
    "Faults, time, requests, records and reset of a kbroker, for tests in any language. Bytes are told as "
    '{"text": ...} where they are UTF-8, else as {"base64": ...}; times are in ms since 1970 by the broker\'s clock. '
    'An answer that is no success has {"error": "one line"}, and {"code": "..."} where Kafka has a name for it. '
    "What `where` does in Python, a function as a filter, cannot be had over HTTP."
)
_STRING: Final = {"type": "string"}
_INTEGER: Final = {"type": "integer", "format": "int64"}
_NUMBER: Final = {"type": "number"}
_BOOLEAN: Final = {"type": "boolean"}
_STRINGS: Final = {"type": "array", "items": _STRING}
_DATA: Final = {
    "type": ["object", "null"],
    "description": "Bytes: UTF-8 as text, other bytes as base64; null if there are none.",
    "properties": {"text": _STRING, "base64": _STRING},
}
_GIVEN_DATA: Final = {
    "description": "Bytes: a string is text in UTF-8.",
    "oneOf": [_STRING, {"type": "null"}, {"type": "object", "properties": {"text": _STRING, "base64": _STRING}}],
}


def _reference(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def _list(name: str) -> dict[str, Any]:
    return {"type": "array", "items": _reference(name)}


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def _headers(data: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": _object(key=_STRING, value=data)}


_OF_KINDS: Final[dict[str, dict[str, Any]]] = {
    "string": _STRING,
    "integer": _INTEGER,
    "number": _NUMBER,
    "boolean": _BOOLEAN,
    "names": {"oneOf": [_STRING, _STRINGS]},
    "strings": {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}},
    "data": _GIVEN_DATA,
    "headers": _headers(_GIVEN_DATA),
}
_PLACE: Final = _object(topic=_STRING, partition=_INTEGER)
_MESSAGE: Final = {"type": ["object", "null"], "description": "Fields are Kafka's, in snake_case."}


def _schema(field: Field) -> dict[str, Any]:
    schema = {**_OF_KINDS[field.kind], "description": field.meaning}
    if field.choices:
        schema["enum"] = list(field.choices)
    if field.least is not None:
        schema["minimum"] = field.least
    if field.most is not None:
        schema["maximum"] = field.most
    return schema


def _schemas() -> dict[str, Any]:
    return {
        "Error": _object(error=_STRING, code=_STRING),
        "Broker": _object(bootstrap_servers=_STRING, cluster_id=_STRING, version=_STRING, apis=_STRINGS),
        "Fault": _object(
            id=_INTEGER, **{each.name: _schema(each) for each in FAULT_FIELDS}, active=_BOOLEAN, hits=_INTEGER
        ),
        "Faults": _object(faults=_list("Fault")),
        "Clock": _object(now={"type": "string", "format": "date-time"}, now_ms=_INTEGER, ahead_ms=_INTEGER),
        "Changed": _object(name=_STRING),
        "Reset": _object(reset=_BOOLEAN),
        "Recording": _object(recording=_BOOLEAN),
        "Snapshot": _object(id=_INTEGER),
        "Snapshots": _object(snapshots=_list("Snapshot")),
        "Request": _object(
            number={"type": ["integer", "null"], "description": "Its place among the answered; null until then."},
            api=_STRING,
            version=_INTEGER,
            client_id={"type": ["string", "null"]},
            principal=_STRING,
            listener=_STRING,
            time_ms=_INTEGER,
            duration_ms={"type": ["number", "null"]},
            fault={"type": ["string", "null"], "description": "What it met of faults."},
            topics={"type": "object", "additionalProperties": {"type": "array", "items": _INTEGER}},
            groups=_STRINGS,
            transactional_ids=_STRINGS,
            request=_MESSAGE,
            answer=_MESSAGE,
            cut={"type": "boolean", "description": "Whether request or answer are too long to be told whole."},
        ),
        "Requests": _object(requests=_list("Request"), left_out=_INTEGER),
        "Topic": _object(
            name=_STRING, partitions=_INTEGER, configs={"type": "object", "additionalProperties": _STRING}
        ),
        "Topics": _object(topics=_list("Topic")),
        "Record": _object(
            topic=_STRING,
            partition=_INTEGER,
            offset=_INTEGER,
            timestamp=_INTEGER,
            key=_DATA,
            value=_DATA,
            headers=_headers(_DATA),
            producer_id=_INTEGER,
            transaction={"type": ["string", "null"], "enum": ["open", "committed", "aborted", None]},
        ),
        "Records": _object(
            records=_list("Record"),
            next={"type": ["object", "null"], "properties": {"partition": _INTEGER, "start": _INTEGER}},
        ),
        "Group": _object(
            id=_STRING,
            state=_STRING,
            members={
                "type": "array",
                "items": _object(
                    id=_STRING,
                    client_id=_STRING,
                    host=_STRING,
                    instance_id={"type": ["string", "null"]},
                    assigned={"type": "array", "items": _PLACE},
                ),
            },
            offsets={"type": "array", "items": _object(topic=_STRING, partition=_INTEGER, offset=_INTEGER)},
            lag=_INTEGER,
        ),
        "InFlight": _object(
            in_flight={
                "type": "array",
                "items": _object(
                    topic=_STRING,
                    partition=_INTEGER,
                    first_offset=_INTEGER,
                    last_offset=_INTEGER,
                    state={
                        "type": "string",
                        "enum": ["available", "acquired", "acknowledged", "archiving", "archived", "delayed"],
                    },
                    deliveries=_INTEGER,
                    member={"type": ["string", "null"], "description": "Who holds the records; null for nobody."},
                    deadline_ms={"type": ["integer", "null"], "description": "When that ends, or a delay."},
                    is_stored={"type": "boolean", "description": "Whether the state is stored already."},
                ),
            },
            more={"type": "boolean", "description": "Whether there are more than are told."},
        ),
        "Groups": _object(groups={"type": "array", "items": _object(id=_STRING, state=_STRING)}),
    }


def shown(path: str) -> str:
    """Return a path in OpenAPI's form, in which the names have no types."""
    return re.sub(r"{(\w+):\w+}", r"{\1}", path)


def document(operations: Iterable[Operation]) -> dict[str, Any]:
    """Return the OpenAPI document."""
    paths: dict[str, dict[str, Any]] = {}
    for each in operations:
        paths.setdefault(shown(each.path), {})[each.method.lower()] = _described(each)
    return {
        "openapi": "3.1.0",
        "info": {"title": "kbroker control", "version": version("kbroker"), "description": ABOUT},
        "paths": paths,
        "components": {"schemas": _schemas()},
    }


def _described(operation: Operation) -> dict[str, Any]:
    media = "application/json" if operation.lines is None else "application/x-ndjson"
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": [
            *(
                {
                    "name": name,
                    "in": "path",
                    "required": True,
                    "schema": _INTEGER if f"{{{name}:int}}" in operation.path else _STRING,
                }
                for name in operation.places
            ),
            *(
                {"name": each.name, "in": "query", "required": each.required, "schema": _schema(each)}
                for each in operation.query
            ),
        ],
        "responses": {
            str(operation.status): {
                "description": "Done.",
                "content": {media: {"schema": _reference(operation.answer)}},
            },
            "default": {
                "description": "Not done.",
                "content": {"application/json": {"schema": _reference("Error")}},
            },
        },
    }
    if operation.body is not None:
        schema: dict[str, Any] = {
            "type": "object",
            "properties": {each.name: _schema(each) for each in operation.body},
            "additionalProperties": False,
        }
        required = [each.name for each in operation.body if each.required]
        if required:
            schema["required"] = required
        described["requestBody"] = {"required": bool(required), "content": {"application/json": {"schema": schema}}}
    return described


_STYLE: Final = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "code{font-family:ui-monospace,monospace}h2{margin:2rem 0 0;font-size:1rem}"
    "td,th{text-align:left;vertical-align:top;padding:.1rem 1rem .1rem 0}p{margin:.2rem 0 .5rem}"
    "@media(prefers-color-scheme:dark){body{background:#111;color:#ddd}a{color:#8bf}}"
)


def page(operations: Iterable[Operation]) -> str:
    """Return the HTML page, without scripts."""
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><title>kbroker control</title>",
        f"<style>{_STYLE}</style><h1>kbroker control</h1><p>{html.escape(ABOUT)}</p>",
        '<p>The same for programs: <a href="/openapi.json">/openapi.json</a></p>',
    ]
    for each in operations:
        parts.append(f"<h2><code>{each.method} {html.escape(shown(each.path))}</code></h2>")
        parts.append(f"<p>{html.escape(each.summary)}</p>")
        fields = [*each.query, *(each.body or ())]
        if fields:
            where = "in the query" if each.query else "in the body"
            rows = "".join(
                f"<tr><td><code>{field.name}</code><td>{field.kind}{' (required)' if field.required else ''}"
                f"<td>{html.escape(field.meaning)}"
                for field in fields
            )
            parts.append(f"<table><tr><th>{where}<th>is<th>meaning{rows}</table>")
    return "\n".join(parts) + "\n"
