"""SIGINT and SIGTERM: after a signal a job ends soon, prints nothing, and exits with 128 + the signal's number.

Owns the handlers while Spark runs. If a handler raised an exception in the middle of the main thread's exchange with
the JVM, later calls would read the answers to earlier calls. The process would hang, or end with pages of errors.

So another thread starts Spark, while the main thread waits for that thread or for a signal; a signal then ends the JVM.
After the start, a signal does not interrupt a main thread that waits for the JVM: another thread stops streams and
cancels jobs, which ends the waiting call. A main thread that does anything else ends immediately, as after any error.
If this takes too long, the JVM and the process are killed. A signal that was ignored before (nohup, a script's
background) stays ignored.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Final, Self

from kbroker.pipeline.spark.jvm import Jvm

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_AGAIN_S: Final = 0.2
_PATIENCE_S: Final = 15.0


class Ending:
    """The handling of signals within a `with` block. It has no effect outside the main thread."""

    def __init__(self, jvm: Jvm) -> None:
        self._jvm = jvm
        self._session: Any = None
        self._starting = False
        self._over = threading.Event()
        self._last = threading.Timer(_PATIENCE_S, self._leave)
        self._last.daemon = True
        self._before: dict[int, Any] = {}
        self.scratch: Path | None = None
        """A folder that is deleted even if the process must end immediately."""
        self.number = 0
        """The number of the received signal; 0 for none."""

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            handlers = {number: signal.getsignal(number) for number in _SIGNALS}
            self._before = {n: each for n, each in handlers.items() if each not in (None, signal.SIG_IGN)}
            for number in self._before:
                signal.signal(number, self._on_signal)
        return self

    def start(self, begin: Callable[[], Any]) -> Any:
        """Return the session that `begin` creates in another thread. A signal ends the JVM and this process."""
        made: list[Any] = []
        errors: list[BaseException] = []

        def run() -> None:
            try:
                made.append(begin())
            except BaseException as err:  # noqa: BLE001 - raised in the thread that waits for the session
                errors.append(err)

        # pyspark handles SIGINT itself if the main thread starts it.
        thread = threading.Thread(target=run, daemon=True)
        self._starting = True
        try:
            thread.start()
            while thread.is_alive():
                thread.join(_AGAIN_S)
                if self.number:  # repeat this, because the JVM may be starting just now
                    self._jvm.terminate()
        finally:
            self._session = made[0] if made else None
            self._starting = False
        if self.number:
            self._jvm.end()
            raise SystemExit(128 + self.number)
        if errors:
            raise errors[0]
        return self._session

    def jobs_are_over(self) -> None:
        """Record that no job is left to cancel, so that a signal does not interrupt the remaining work."""
        self._over.set()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._over.set()
        self._last.cancel()
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self.number:
            raise SystemExit(128 + self.number) from None

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.number:
            return  # only the first signal counts
        self.number = number
        self._last.start()
        if self._starting or self._over.is_set():
            return
        if self._session is None or not _talks_to_the_jvm(frame):
            raise SystemExit(128 + number)
        threading.Thread(target=self._cancel, daemon=True).start()

    def _cancel(self) -> None:
        """Stop streams and cancel jobs until `jobs_are_over`.

        This is repeated, because the main thread may begin further streams and jobs.
        """
        while not self._over.wait(_AGAIN_S):
            with contextlib.suppress(Exception):  # an error here means that Spark is ending anyway
                for query in self._session.streams.active:
                    query.stop()
                self._session.sparkContext.cancelAllJobs()

    def _leave(self) -> None:
        try:
            self._jvm.end()
            if self.scratch is not None:
                shutil.rmtree(self.scratch, ignore_errors=True)
        finally:
            os._exit(128 + self.number)


def _talks_to_the_jvm(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("py4j."):
            return True
        frame = frame.f_back
    return False
