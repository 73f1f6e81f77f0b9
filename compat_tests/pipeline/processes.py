"""Drivers as processes: the verbs of the command line, and modules that run several jobs in one Spark.

Owns their start, their output, and their end. Never checks the result of a job.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

from compat_tests.pipeline.cluster import BRIEF_JVM
from compat_tests.spark.session import INTERPRETED, connector_jars, s3_jars, table_jars

WAIT_S: Final = 300
_ROOT: Final = Path(__file__).parents[2]


def start_verb(
    *arguments: str,
    stderr: Any,
    environment: Mapping[str, str],
    compiled: bool = False,
    tables: bool = False,
    s3: bool = False,
) -> subprocess.Popen[str]:
    """Start a verb of `kbroker pipeline` in its own process group, as a shell does, with Spark on this machine.

    Spark compiles its plans, as it does by default, only if they are to be `compiled`. With `tables` it has the jars
    for Iceberg and Delta, with `s3` those for S3.
    """
    command = [sys.executable, "-m", "kbroker", "pipeline", *arguments, "--master", "local[2]"]
    jars = [*connector_jars(), *(table_jars() if tables else []), *(s3_jars() if s3 else [])]
    command += ["--jars", ",".join(jars), "--conf", "spark.driver.memory=700m"]
    for key, value in ({} if compiled else INTERPRETED).items():
        command += ["--conf", f"{key}={value}"]
    environment = {**os.environ, **environment}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment, start_new_session=True
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Wait for a verb's end; returns its status and its standard error."""
    try:
        _, errors = process.communicate(timeout=WAIT_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, errors


class Driver:
    """A Python module in its own process group, which prints lines of JSON; a context manager that ends it."""

    def __init__(self, *arguments: str, cwd: Path) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed at the end
        self._process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=cwd,
            env={**os.environ, **BRIEF_JVM, "PYTHONPATH": str(_ROOT)},
            start_new_session=True,
        )
        self._lines: list[str] = []
        self._changed = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        atexit.register(self._kill)  # a scenario that takes too long is left, and its thread never ends

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                self._lines.append(line)
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def line(self, number: int) -> Any:
        """Wait for the line with this number, counted from 0, and return its contents."""
        with self._changed:
            there = self._changed.wait_for(lambda: self._ended or len(self._lines) > number, WAIT_S)
            lines = list(self._lines)
        assert there, f"line {number} did not come within {WAIT_S} s"
        assert len(lines) > number, f"it ended before line {number}: {self.said()}"
        return json.loads(lines[number])

    def wait(self) -> tuple[int, list[Any], str]:
        """Wait until the module ends by itself; returns its status, its lines, and its standard error."""
        status = self._process.wait(WAIT_S)
        self._reader.join(WAIT_S)
        return status, [json.loads(line) for line in self._lines], self.said()

    def said(self) -> str:
        """Return standard error so far."""
        return os.pread(self._errors.fileno(), 1 << 20, 0).decode(errors="replace")

    def __enter__(self) -> Self:
        return self

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def __exit__(self, *exc: object) -> None:
        self._kill()
        atexit.unregister(self._kill)
        self._process.wait(WAIT_S)
        self._reader.join(WAIT_S)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.close()
