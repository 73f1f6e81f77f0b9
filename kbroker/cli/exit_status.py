"""With what status a verb's process ends: 0, 1 for what failed, 2 for wrong usage, 130 and 143 for signals.

Owns these numbers, but for those of verbs that say more with theirs. Never prints.
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
"""What the manual pages say of them."""


def of_signal(number: int) -> int:
    """Return the status of a process that a signal ends, as shells tell it."""
    return 128 + number


def exit_status(error: BaseException) -> int:
    """Return the status of a process that an error ends."""
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, click.UsageError):
        return 2
    return 130 if isinstance(error, click.Abort | KeyboardInterrupt) else 1
