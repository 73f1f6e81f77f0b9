"""The broker's values as JSON.

Owns the form of bytes ({"text": ...} for UTF-8, else {"base64": ...}) and of Kafka's messages. Cuts a message at a
limit, because a request or a response may have megabytes. Never writes JSON in one call, because such a call would
block all other threads, including the broker's.
"""

from __future__ import annotations

import base64
import json
from typing import Any, Final

from kbroker.protocol.schema import Scalar
from kbroker.testing.requests import Request
from kbroker.testing.topics import StoredRecord

VALUES: Final = 5_000
"""The maximum number of values of one message, including the elements of its lists."""
BYTES: Final = 256 * 1024
"""The maximum size in bytes of all strings and data in one message."""
_ENCODER: Final = json.JSONEncoder(separators=(",", ":"))


def json_bytes(value: Any) -> bytes:
    """Encode JSON piece by piece, because one call of `json.dumps` would keep the interpreter's lock all the time."""
    return "".join(_ENCODER.iterencode(value)).encode()


def data_json(data: bytes | None) -> dict[str, str] | None:
    """Return bytes as JSON: as text if they are UTF-8."""
    if data is None:
        return None
    try:
        return {"text": bytes(data).decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def record_json(record: StoredRecord) -> dict[str, Any]:
    """Return a stored record as JSON."""
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": data_json(record.key),
        "value": data_json(record.value),
        "headers": [{"key": key, "value": data_json(value)} for key, value in record.headers],
        "producer_id": record.producer_id,
        "transaction": record.transaction,
    }


def request_json(request: Request) -> dict[str, Any]:
    """Return a request and its answer as JSON."""
    seen, sent, answered = request.seen, _Message(), _Message()
    answer = request.answer
    return {
        "number": request.number or None,
        "api": seen.api,
        "version": seen.version,
        "client_id": seen.client_id,
        "principal": seen.principal,
        "listener": seen.listener,
        "time_ms": request.time_ms,
        "duration_ms": request.duration_ms,
        "fault": request.fault,
        "topics": {name: sorted(partitions) for name, partitions in seen.topics.items()},
        "groups": sorted(seen.groups),
        "transactional_ids": sorted(seen.transactional_ids),
        "request": sent.as_json(seen.request),
        "answer": answered.as_json(answer),
        "cut": sent.is_cut or answered.is_cut,
    }


class _Message:
    """Converts one of Kafka's messages to JSON. The fields have Kafka's names in snake_case."""

    def __init__(self) -> None:
        self._values = VALUES
        self._bytes = BYTES
        self.is_cut = False
        """Whether the message was cut because it was too long."""

    def as_json(self, message: Any) -> Any:
        """Return a struct as JSON. Return None for None."""
        if message is None:
            return None
        return {spec.name: self._field(spec, getattr(message, spec.name)) for spec in type(message).SPECS}

    def _field(self, spec: Any, value: Any) -> Any:
        if not spec.array or value is None:
            return self._value(spec.kind, value)
        items = []
        for each in value:
            if self._values <= 0 or self._bytes <= 0:
                self.is_cut = True
                break
            items.append(self._value(spec.kind, each))
        return items

    def _value(self, kind: Any, value: Any) -> Any:
        self._values -= 1
        if value is None or isinstance(value, bool | int | float):
            return value
        if not isinstance(kind, Scalar):
            return self.as_json(value)
        if isinstance(value, str):
            self._bytes -= len(value)
            return value
        if kind.name == "uuid":
            return base64.urlsafe_b64encode(value).decode().rstrip("=")
        if hasattr(value, "view"):
            value = value.view()
        return self._data(value)

    def _data(self, value: Any) -> Any:
        if len(value) > self._bytes:
            self.is_cut = True
            return {"length": len(value)}
        self._bytes -= len(value)
        return data_json(bytes(value))
