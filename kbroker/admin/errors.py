"""How failures are told: exceptions whose text is a line for people.

Never prints, and loads nothing: every start of the command line knows them.
"""

from __future__ import annotations

from collections.abc import Sequence


class AdminError(Exception):
    """What was asked for failed; the text says what and why."""


class Unreachable(AdminError):  # noqa: N818 - what happened
    """Nobody takes a connection at the cluster's addresses, or what a connection needs is not there."""


class WrongInput(AdminError):  # noqa: N818 - what happened
    """What was asked for has no meaning, and was not sent."""


class NotThere(WrongInput):
    """What was asked for does not exist, or no more."""


class Failures(AdminError):  # noqa: N818 - what happened
    """Several things failed; each has its line."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("\nkbroker: ".join(lines))
