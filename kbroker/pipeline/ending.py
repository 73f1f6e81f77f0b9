"""SIGINT and SIGTERM: a job ends soon, with exit status 128 + the signal's number, and prints nothing.

Owns the handlers while Spark runs. An exception raised by a handler would tear the main thread out of its talk with the
JVM, and the next words on that connection would be answers to the last ones: the process hung, or ended in pages of
errors. So a main thread that waits for the JVM is left alone, and another thread stops streams and cancels jobs, which
ends the call by itself. A main thread that does something else ends where it is, as at any error. If all that takes too
long, the process goes at once; the JVM follows, since it reads the end of its standard input.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import threading
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Final, Self

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_AGAIN_S: Final = 0.2
_PATIENCE_S: Final = 20.0


class Ending:
    """What a signal does between the begin and the end of a `with`; nothing where it is not the main thread's.

    `scratch` is a folder that goes, too, when the process has to end at once.
    """

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._session: Any = None
        self._over = threading.Event()
        self._last = threading.Timer(_PATIENCE_S, self._leave)
        self._before: dict[int, Any] = {}
        self.number = 0
        """The signal that came; 0 for none."""

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.getsignal(number) for number in _SIGNALS}
            self._take()
        return self

    def started(self, session: Any) -> None:
        """Say that Spark runs: it puts a handler of its own in place, which is replaced."""
        self._session = session
        if self._before:
            self._take()

    def jobs_are_over(self) -> None:
        """Say that nothing is left that could be cancelled."""
        self._over.set()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._over.set()
        self._last.cancel()
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self.number:
            raise SystemExit(128 + self.number) from None

    def _take(self) -> None:
        for number in _SIGNALS:
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.number:
            return  # the first one counts
        self.number = number
        self._last.daemon = True
        self._last.start()
        if self._session is None or not _talks_to_the_jvm(frame):
            raise SystemExit(128 + number)
        threading.Thread(target=self._cancel, daemon=True).start()

    def _cancel(self) -> None:
        """Stop streams and cancel jobs until the main thread has noticed: it may begin another one meanwhile."""
        while not self._over.wait(_AGAIN_S):
            with contextlib.suppress(Exception):  # what can be wrong here is that Spark ends
                for query in self._session.streams.active:
                    query.stop()
                self._session.sparkContext.cancelAllJobs()

    def _leave(self) -> None:
        shutil.rmtree(self._scratch, ignore_errors=True)
        os._exit(128 + self.number)


def _talks_to_the_jvm(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("py4j."):
            return True
        frame = frame.f_back
    return False
