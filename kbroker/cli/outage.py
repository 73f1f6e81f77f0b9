"""A broker that is gone while a verb waits for it: a line on standard error after seconds, and one when it is back.

Owns the look. The client itself tries again in silence, for minutes or for ever. Never ends a verb.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import click

_LOOK_S: Final = 3.0
_LOOK_AGAIN_S: Final = 1.0
SILENCE_S: Final = 2.0
"""Without an answer for so long, a verb may have lost its broker."""


class Outage:
    """What is told of a broker, look by look."""

    def __init__(self) -> None:
        self.failed = 0

    def after(self, reason: str | None) -> str | None:
        """Return what to tell after a look that found `reason` (None: it answers).

        An outage is what two looks in a row have seen, so a broker that is restarted at once causes no line.
        """
        before, self.failed = self.failed, self.failed + 1 if reason is not None else 0
        if reason is not None:
            return f"{reason}; trying on" if before == 1 else None
        return "the broker answers again" if before > 1 else None


@contextmanager
def told_of_outages(unreachable: Callable[[], str | None], waiting: Callable[[], bool]) -> Iterator[None]:
    """Look from a thread while `waiting()`: `unreachable()` says why no broker answers, or None.

    A look is a connection that is closed at once: every three seconds, and every second while none answers.
    """
    over = threading.Event()

    def look() -> None:
        outage = Outage()
        while not over.wait(_LOOK_AGAIN_S if outage.failed else _LOOK_S):
            line = outage.after(unreachable() if outage.failed or waiting() else None)
            if line is not None and not over.is_set():
                click.echo(f"kbroker: {line}", err=True)

    threading.Thread(target=look, name="outages", daemon=True).start()
    try:
        yield
    finally:
        over.set()
