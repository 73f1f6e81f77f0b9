"""Error codes of answers: the client's classes for them, and their texts. Never prints."""

from __future__ import annotations

from typing import Any

from kafka.errors import NoError, for_code


def error_text(error: Any, said: str | None = None) -> str:
    """Return Kafka's name of an error (a class or an instance) and the broker's message about it, if any."""
    what = said or getattr(error, "description", None)
    name = getattr(error, "message", None) or f"error {getattr(error, 'errno', '?')}"
    return f"{what} ({name})" if what else str(name)


def code_error(code: int) -> Any | None:
    """Return the class of an error code; None for no error."""
    error = for_code(code)
    return None if error is NoError else error
