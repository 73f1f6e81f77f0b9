"""How Ctrl-C and SIGTERM end a measurement: at its next step, so that what was found is still shown.

Owns the signals while one runs. They raise nothing at first: confluent-kafka cannot be interrupted by an exception. A
second one does what it did before.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from kbroker.cli.exit_status import of_signal


class Stop:
    """Whether a measurement is to end."""

    def __init__(self) -> None:
        self.number = 0

    def __bool__(self) -> bool:
        return self.number != 0

    @property
    def status(self) -> int:
        """What the command exits with then."""
        return of_signal(self.number)


@contextmanager
def stopping() -> Iterator[Stop]:
    """Yield what becomes true at the first signal."""
    stop = Stop()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, _frame: FrameType | None) -> None:
        stop.number = number
        restore()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    for number in before:
        signal.signal(number, note)
    try:
        yield stop
    finally:
        restore()
