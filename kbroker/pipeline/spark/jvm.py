"""The process of Spark's JVM. pyspark starts the process, but exposes it only when it is connected.

Finds the process, and ends it if necessary. Never communicates with it.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from typing import Any, Final

_ORDERLY_S: Final = 5.0


class Jvm:
    """The JVM that pyspark starts within `noted`. The object is empty if a JVM already runs."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[Any] | None = None

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Record the process that pyspark starts within the `with` block, as soon as the process exists."""
        import pyspark.java_gateway

        gateway: Any = pyspark.java_gateway
        start = gateway.Popen

        def starting(*arguments: Any, **options: Any) -> subprocess.Popen[Any]:
            process: subprocess.Popen[Any] = start(*arguments, **options)
            self._process = process
            return process

        gateway.Popen = starting
        try:
            yield
        finally:
            gateway.Popen = start

    def terminate(self) -> None:
        """Send SIGTERM to the JVM, so that it removes its folders and ends."""
        if self._process is not None:
            self._process.terminate()

    def end(self) -> None:
        """End the JVM, within seconds."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_ORDERLY_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def status(self, within_s: float = 0.0) -> int | None:
        """Return the JVM's exit status (-9 for signal 9), after a short wait. Return None while the JVM runs."""
        if self._process is None:
            return None
        try:
            return self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            return None
