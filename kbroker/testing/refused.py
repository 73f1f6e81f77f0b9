"""What the broker refuses a test that asks it without a client: Kafka's error, and of what it was said.

Owns the words. Never asks.
"""

from __future__ import annotations

from kbroker.protocol.errors import DEFAULT_MESSAGES, ApiError, ErrorCode


def check(code: int, about: str, message: str | None = None) -> None:
    """Raise ApiError for an error, told as "topic orders: ..."; nothing is raised for 0."""
    if code:
        error = ErrorCode(code)
        text = message or DEFAULT_MESSAGES.get(error)
        raise ApiError(error, f"{about}: {text}" if text else about)
