"""The exceptions for failures, whose text is a line for people.

Never prints, and imports nothing: every start of the command line loads it.
"""

from __future__ import annotations

from collections.abc import Sequence


class AdminError(Exception):
    """A request failed; the text says what and why."""


class Unreachable(AdminError):  # noqa: N818 - what happened
    """No address of the cluster accepts a connection, or a requirement of the connection is missing."""


class WrongInput(AdminError):  # noqa: N818 - what happened
    """The input makes no sense, and was not sent."""


class NotThere(WrongInput):
    """The requested entity does not exist, or no longer."""


class Failures(AdminError):  # noqa: N818 - what happened
    """Several failures, with a line each."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("\nkbroker: ".join(lines))
