"""The exit status of a verb's process: 0, 1 for a failure, 2 for wrong usage, 130 and 143 for signals.

Owns these numbers, except those of verbs with more of them. Never prints.
"""

from __future__ import annotations

from typing import Final

import click

EXITS: Final = (
    ("0", "All is done."),
    ("1", "Something failed; a line on standard error says what, and what to do where that is known."),
    ("2", "The command line is wrong."),
    ("130", "It was interrupted."),
)
"""The texts for the manual pages."""


def of_signal(number: int) -> int:
    """Return the status of a process that a signal ends, as in shells."""
    return 128 + number


def exit_status(error: BaseException) -> int:
    """Return the status of a process that an error ends."""
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, click.UsageError):
        return 2
    return 130 if isinstance(error, click.Abort | KeyboardInterrupt) else 1
