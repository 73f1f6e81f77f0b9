"""What is told of a request that was answered (request_log.py measures it): the shape alone, for who takes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Told(NamedTuple):
    """What was measured of one request. Sizes are in bytes, times in ms."""

    api: str
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    client_host: str
    listener: str
    principal: str | None
    request_bytes: int
    response_bytes: int
    total_ms: float
    """From when the loop began with it to its answer."""
    local_ms: float
    """Of these, what the loop gave to it."""
    throttle_ms: int
    error_code: int
    """Of the whole request, 0 where there is none, or where each part of an answer has its own."""


Sink = Callable[[Told], None]
