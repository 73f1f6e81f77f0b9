"""Ctrl-C and SIGTERM during a measurement: it ends at its next step, so that its results are still shown.

Owns the signals while one runs. The first raises nothing, because an exception cannot interrupt confluent-kafka. A
second one has its usual effect.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from kbroker.cli.main import of_signal


class Stop:
    """Whether a measurement is to end."""

    def __init__(self) -> None:
        self.number = 0

    def __bool__(self) -> bool:
        return self.number != 0

    @property
    def status(self) -> int:
        """The exit status after a stop."""
        return of_signal(self.number)


@contextmanager
def stopping() -> Iterator[Stop]:
    """Yield an object that becomes true at the first signal."""
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
