"""Error codes of answers: what the client here has for them, and how they read. Never prints."""

from __future__ import annotations

from typing import Any

from kafka.errors import NoError, for_code


def error_text(error: Any, said: str | None = None) -> str:
    """Return Kafka's name of an error (a class or an instance) and what the broker said about it, if anything."""
    what = said or getattr(error, "description", None)
    name = getattr(error, "message", None) or f"error {getattr(error, 'errno', '?')}"
    return f"{what} ({name})" if what else str(name)


def code_error(code: int) -> Any | None:
    """Return the class of an error code; None for no error."""
    error = for_code(code)
    return None if error is NoError else error
