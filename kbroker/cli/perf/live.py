"""The progress of a measurement, as a bar on a terminal or a line at intervals, and the measurement's end by a signal.

Owns the intermediate output on standard error; the result goes to standard output. Each check costs the measurement one
comparison. After Ctrl-C or SIGTERM the measurement ends at its next step and shows its results. The first signal raises
no exception, because an exception cannot interrupt confluent-kafka. A second signal has its usual effect.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final, Protocol

import click

from kbroker.cli.main import of_signal
from kbroker.cli.perf.figures import MB

_CHECK_S: Final = 0.2


class Live(Protocol):
    """Receives the progress of a measurement."""

    due: float
    """The time of the next report, on the clock time.perf_counter."""

    def report(self, now: float, records: int, octets: int, note: str = "") -> None:
        """Report the work done so far."""


class _Lines:
    """Prints a line at intervals. Each line reports the work since the previous line."""

    def __init__(self, interval_s: float, total: int) -> None:
        self._interval_s = interval_s
        self._total = total
        self._last = time.perf_counter()
        self._records = self._octets = 0
        self.due = self._last + interval_s

    def report(self, now: float, records: int, octets: int, note: str = "") -> None:
        took = now - self._last
        if took > 0:
            rate, mb = (records - self._records) / took, (octets - self._octets) / MB / took
            tail = f", {note}" if note else ""
            click.echo(f"{records:,} of {self._total:,} records, {rate:,.0f} records/s, {mb:.2f} MB/s{tail}", err=True)
        self._last, self._records, self._octets = now, records, octets
        self.due = now + self._interval_s


class _Bar:
    """Shows a bar on a terminal, with the rate since the last update."""

    def __init__(self, bar: Any, task: Any) -> None:
        self._bar, self._task = bar, task
        self._last = time.perf_counter()
        self._records = self._octets = 0
        self.due = self._last + _CHECK_S

    def report(self, now: float, records: int, octets: int, note: str = "") -> None:
        took = max(now - self._last, 1e-9)
        rate, mb = (records - self._records) / took, (octets - self._octets) / MB / took
        self._bar.update(self._task, completed=records, rate=rate, mb=mb, note=note)
        self._last, self._records, self._octets = now, records, octets
        self.due = now + _CHECK_S


@contextmanager
def live(what: str, total: int, interval_ms: int) -> Iterator[Live]:
    """Yield an object that shows the progress of `total` records; on a terminal as a bar."""
    if not sys.stderr.isatty():
        yield _Lines(interval_ms / 1000, total)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f} records  {task.fields[rate]:,.0f}/s  {task.fields[mb]:,.2f} MB/s"),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        yield _Bar(bar, bar.add_task(what, total=total, rate=0.0, mb=0.0, note=""))


class Stop:
    """Whether a measurement must end."""

    def __init__(self) -> None:
        self.number = 0

    def __bool__(self) -> bool:
        return self.number != 0

    @property
    def status(self) -> int:
        """The exit status after a signal has stopped the measurement."""
        return of_signal(self.number)


@contextmanager
def stopping() -> Iterator[Stop]:
    """Yield an object whose truth value becomes true at the first signal."""
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
