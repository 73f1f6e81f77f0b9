"""The facts about an answered request (request_log.py measures it): only their form, for those that receive them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Told(NamedTuple):
    """The measurements of one request. Sizes are in bytes, times in ms."""

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
    """From the loop's first work on it to its response."""
    local_ms: float
    """The part of it that the loop worked on the request."""
    throttle_ms: int
    error_code: int
    """The code of the whole request, or 0 if there is none, or if each part of a response has its own."""


Sink = Callable[[Told], None]
