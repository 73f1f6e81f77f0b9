"""The exceptions for failures, each with one line of text for people, and the texts of Kafka's error codes.

Never prints. Imports kafka-python only when needed, because the command line imports this module at every start.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class AdminError(Exception):
    """A request failed; the text names the failure and its reason."""


class Unreachable(AdminError):  # noqa: N818 - an outcome
    """The cluster or the registry cannot be reached, or a file that the connection needs cannot be read."""


class WrongInput(AdminError):  # noqa: N818 - an outcome
    """The input is wrong, and no request was sent."""


class NotThere(WrongInput):
    """A page of the console names an entity that does not exist, or no longer exists.

    Verbs raise AdminError in this case.
    """


class Failures(AdminError):  # noqa: N818 - an outcome
    """Several failures, one per line."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("\nkbroker: ".join(lines))


def check_code(code: int, failure: str, message: str | None = None, hint: str = "") -> None:
    """Raise AdminError for an error code; its text is `failure`, the reason (with the broker's message) and a hint."""
    error = code_error(code)
    if error is not None:
        raise AdminError(f"{failure}: {error_text(error, message)}{hint}")


class Refusal(NamedTuple):
    """The reason why a change was not made: Kafka's name of the error, and a line for people."""

    name: str
    text: str


def raise_any(failures: Sequence[str]) -> None:
    """Raise Failures with these lines; return if there are no lines."""
    if failures:
        raise Failures(failures)


def error_text(error: Any, message: str | None = None) -> str:
    """Return Kafka's name of an error (a class or an instance) and the broker's message about it, if any."""
    text = message or getattr(error, "description", None)
    name = getattr(error, "message", None) or f"error {getattr(error, 'errno', '?')}"
    return f"{text} ({name})" if text else str(name)


def code_error(code: int) -> Any | None:
    """Return the client's exception class for an error code; None if the code means success."""
    from kafka.errors import NoError, for_code

    error = for_code(code)
    return None if error is NoError else error
