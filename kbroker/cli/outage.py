"""Messages on standard error for a verb that waits for a broker: after some seconds, and when the broker answers again.

Owns the checks, because the client itself retries silently, for minutes or forever. The verb decides whether to end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import click

_CHECK_S: Final = 3.0
_CHECK_AGAIN_S: Final = 1.0
SILENCE_S: Final = 2.0
"""The seconds without an answer after which a verb checks whether its broker is reachable."""


class Outage:
    """The messages about a broker's availability after each check."""

    def __init__(self) -> None:
        self.failed = 0

    def after(self, reason: str | None) -> str | None:
        """Return the message after a check with this `reason` (None: the broker answers).

        An outage needs two failed checks in a row, so a broker that restarts immediately causes no message.
        """
        before, self.failed = self.failed, self.failed + 1 if reason is not None else 0
        if reason is not None:
            return reason if before == 1 else None
        return "the broker answers again" if before > 1 else None


@contextmanager
def outages_reported(
    unreachable: Callable[[], str | None],
    waiting: Callable[[], bool],
    gives_up: Callable[[str], bool] = lambda _reason: False,
) -> Iterator[None]:
    """Check the brokers in a thread within the `with` block, and report outages.

    `waiting()` returns whether the command waits. Checks are made only while the command waits, and during an outage.
    `unreachable()` returns the reason why no broker answers, or None. A check opens a connection and closes it
    immediately: every three seconds, and every second during an outage. If `gives_up` returns true for the reason, no
    further check follows.
    """
    over, printing = threading.Event(), threading.Lock()

    def check() -> None:
        outage = Outage()
        while not over.wait(_CHECK_AGAIN_S if outage.failed else _CHECK_S):
            reason = unreachable() if outage.failed or waiting() else None
            line = outage.after(reason)
            with printing:
                if line is None or over.is_set():
                    continue
                ends = reason is not None and gives_up(reason)
                click.echo(f"kbroker: {line}{'' if reason is None or ends else '; trying on'}", err=True)
            if ends:
                return

    threading.Thread(target=check, name="outages", daemon=True).start()
    try:
        yield
    finally:
        over.set()
        with printing:  # wait for the thread's message, so that it precedes the verb's last messages
            pass
