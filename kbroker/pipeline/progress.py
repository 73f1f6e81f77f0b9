"""The progress of a long job: a bar on a terminal, or otherwise one line of JSON per step.

Owns the output of a running job. The bar goes to standard error, the lines go to standard output.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, Self


class Progress(Protocol):
    """Receives a job's progress."""

    def step(self, records: int, left: int | None, **facts: Any) -> None:
        """Report the number of newly processed records, and the number of remaining records (None if unknown)."""


class Lines:
    """Writes one line of JSON per step: the processed records, records per second, and the records that are left."""

    def __init__(self, job: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._job = job
        self._clock = clock
        self._last = clock()
        self._done = 0

    def step(self, records: int, left: int | None, **facts: Any) -> None:
        now = self._clock()
        rate = records / (now - self._last) if now > self._last else 0.0
        self._last = now
        self._done += records
        line = {"job": self._job, **facts, "records": records, "total": self._done, "rate": round(rate), "lag": left}
        print(json.dumps(line), flush=True)


class Bar:
    """Shows a bar with the processed records, their rate, and the records that are left."""

    def __init__(self, job: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:,.0f} records  {task.fields[rate]:,.0f}/s  lag {task.fields[lag]:,}"),
            TimeElapsedColumn(),
        )
        self._bar = RichProgress(*columns, console=Console(stderr=True))
        self._task = self._bar.add_task(job, total=None, rate=0.0, lag=0)
        self._done = 0
        self._left = 0
        self._started = time.monotonic()

    def step(self, records: int, left: int | None, **facts: Any) -> None:
        del facts
        self._done += records
        left = self._left = self._left if left is None else left
        rate = self._done / max(time.monotonic() - self._started, 1e-3)
        self._bar.update(self._task, completed=self._done, total=self._done + left, rate=rate, lag=left)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._bar.stop()


@contextmanager
def shown(job: str) -> Iterator[Progress]:
    """Yield the receiver of a job's progress: a bar on a terminal, or lines otherwise."""
    if sys.stdout.isatty() and sys.stderr.isatty():
        with Bar(job) as bar:
            yield bar
    else:
        yield Lines(job)
