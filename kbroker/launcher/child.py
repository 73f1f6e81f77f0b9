"""A program that runs as a child of the launcher: started, watched, stopped, killed.

Owns the process and its log file. Each child has a session of its own, so that Ctrl-C at a terminal reaches only the
launcher, which then stops its children in order. tied.py ensures that no child outlives the launcher.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from kbroker.launcher import tied

Pause = Callable[[float], None]
"""A function that waits for some seconds. It may raise an exception to end the wait."""

_CHECK_S: Final = 0.05
_TAIL_BYTES: Final = 16 * 1024
_MOST_WORDS: Final = 500


class LauncherError(Exception):
    """Raised if a program cannot be started, or a request cannot be carried out. The text is one line for people."""


class Child:
    """One program. It can be started any number of times, but only one process of the program runs at a time.

    The thread that calls `start` must live as long as the program.
    """

    def __init__(self, name: str, log_file: Path) -> None:
        self.name = name
        self.log_file = log_file
        self._log_begin = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._killed: str | None = None
        """The reason why this object killed the last run; None if this object did not kill it."""

    def start(self, command: Sequence[str]) -> None:
        """Start the program. Its output is appended to the log file."""
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        whole = [sys.executable, "-IS", tied.__file__, str(os.getpid()), *command]
        with open(self.log_file, "ab") as log:
            self._log_begin = log.tell()
            self._killed = None
            self._process = subprocess.Popen(
                whole, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    @property
    def pid(self) -> int | None:
        """The process id; None if the program does not run."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    @property
    def running(self) -> bool:
        return self.pid is not None

    @property
    def ran(self) -> bool:
        """Whether the program has been started at least once."""
        return self._process is not None

    @property
    def ended(self) -> int | None:
        """The exit status of the last run, negative for a signal.

        None while the program runs, and before the first run.
        """
        return None if self._process is None else self._process.poll()

    def how_ended(self) -> str:
        """Return a text about the end of the last run."""
        status = self.ended
        if status is None:
            return "it runs"
        return f"signal {-status}" if status < 0 else f"exit status {status}"

    def describe_end(self) -> str:
        """Return a text about the end of the last run, with the last output if the run was not killed."""
        if self.ended == -signal.SIGKILL:
            return self._killed or "killed (signal 9): by somebody, or for want of memory"
        return f"{self.how_ended()}; it printed last: {self.last_words()}"

    def stop(self, timeout_s: float, pause: Pause = time.sleep) -> bool:
        """Send SIGTERM to the program, and kill it after `timeout_s`. Return whether it ended without being killed."""
        if not self.running:
            return True
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)  # a paused process would not handle SIGTERM
        if wait_until(lambda: not self.running, timeout_s, pause):
            return True
        self.kill(f"killed: told to stop, it had not done so after {timeout_s:g} s")
        return False

    def kill(self, why: str = "killed by order") -> None:
        """Kill the program. `why` is the reason to report."""
        if self._process is not None:
            if self.running:
                self._killed = why
            self._process.kill()
            self._process.wait()

    def pause(self) -> None:
        """Freeze the program."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue a frozen program."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is None:
            raise LauncherError(f"{self.name} does not run")
        self._process.send_signal(number)  # this does nothing if the process has ended

    def last_words(self) -> str:
        """Return the last line of this run's output, shortened, with "?" for unprintable characters."""
        line = next(reversed(self.tail(1)), "it has printed nothing")
        return "".join(char if char.isprintable() else "?" for char in line[:_MOST_WORDS])

    def tail(self, lines: int) -> list[str]:
        """Return the last lines of this run's output, without empty lines."""
        try:
            with open(self.log_file, "rb") as log:
                end = log.seek(0, os.SEEK_END)
                log.seek(max(self._log_begin, end - _TAIL_BYTES))
                text = log.read().decode(errors="replace")
        except OSError:
            return []
        return [line.strip() for line in text.splitlines() if line.strip()][-lines:]


def wait_until(condition: Callable[[], bool], timeout_s: float, pause: Pause = time.sleep) -> bool:
    """Wait until `condition` is true. Return whether it was true within `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        pause(_CHECK_S)
    return True
