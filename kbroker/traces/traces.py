"""The broker's part of tracing: passes measurements of requests to a process that creates and exports the spans.

Owns the queue for that process, and the process's start and end. The broker's own process creates no spans. A span
takes ten times as long as its measurement. A thread that creates spans would block the interpreter when the event loop
needs it. Never waits in the loop: if the queue is full, the newest measurement is dropped.
"""

from __future__ import annotations

import contextlib
import json
import logging
import marshal
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import IO, Final

from kbroker.network.request_log import Measured

log = logging.getLogger(__name__)

MOST_WAITING: Final = 4_096
"""The maximum number of measurements that wait for the writing thread."""
AT_ONCE: Final = 256
"""The maximum number of measurements in one write, which blocks the interpreter for 0.2 ms."""
_ROOT: Final = os.path.abspath(f"{os.path.dirname(__file__)}/../..")  # the folder of this package
_EVERY_S: Final = 0.2
_STOP_S: Final = 7.0
"""The time in seconds to wait for the process's end. It is longer than the limit for the last spans (spans.py)."""
_LONGEST_LINE: Final = 2_000


def exporting_to(url: str, about: Mapping[str, str]) -> list[str]:
    """Return the command of the process that exports to a URL. `about` describes the broker."""
    return [sys.executable, "-P", "-m", "kbroker.traces.process", url, json.dumps(dict(about))]


class Traces:
    """Passes measurements of requests to a process, until it is closed."""

    def __init__(self, command: Sequence[str]) -> None:
        """Start the process. Raises OSError if it cannot be started. Do not call this in the event loop."""
        self._waiting: deque[tuple[int, Measured]] = deque()
        self.dropped = 0
        """The number of requests without a span, because too many measurements waited."""
        paths = [_ROOT, os.environ.get("PYTHONPATH", "")]
        # Use a separate session, so that Ctrl-C in the terminal reaches only the broker.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)},
            start_new_session=True,
        )
        self._ending = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, name="kbroker-traces", daemon=True),
            threading.Thread(target=self._listen, name="kbroker-traces-log", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def note(self, measured: Measured) -> None:
        """Queue the measurement of a request that has just been answered. Call this in the event loop."""
        if len(self._waiting) >= MOST_WAITING:
            self.dropped += 1
            return
        self._waiting.append((time.time_ns(), measured))

    def close(self) -> None:
        """Wait at most a few seconds until the queued measurements are exported. Do not call this in the event loop."""
        self._ending.set()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            log.warning("the process that exports spans did not end within %.0f s", _STOP_S)
            self._process.kill()
            self._process.wait()
        for thread in self._threads:
            thread.join()
        if self.dropped:
            log.warning("%d requests have no span, because too many spans were waiting", self.dropped)

    def _run(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError), self._process.stdin as pipe:  # the process has ended; `_listen` logs it
            while not self._ending.wait(_EVERY_S):
                self._write_all(pipe)
            self._write_all(pipe)

    def _write_all(self, pipe: IO[bytes]) -> None:
        while self._waiting:
            count = min(len(self._waiting), AT_ONCE)
            taken = [self._waiting.popleft() for _ in range(count)]
            pipe.write(marshal.dumps([(ended_ns, tuple(measured)) for ended_ns, measured in taken]))
            pipe.flush()

    def _listen(self) -> None:
        """Log the messages of the process, and its unexpected end."""
        assert self._process.stderr is not None
        with self._process.stderr as pipe:
            while line := pipe.readline(_LONGEST_LINE):
                log.warning("%s", line.decode("utf-8", "replace").rstrip())
        if not self._ending.is_set():
            log.error("the process that exports spans has ended: requests have no spans from now on")
