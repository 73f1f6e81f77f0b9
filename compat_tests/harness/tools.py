"""Kafka's tools in JVMs that stay: only the first tool of a JVM waits for its start and for Kafka's classes.

Owns these JVMs (Tools.java), one for each set of jars and for each tool that runs at the same time; they end with this
process. Never judges how a tool ended. KBROKER_TESTS=long, of `make torture`, gives each tool a JVM of its own.
"""

from __future__ import annotations

import atexit
import base64
import select
import subprocess
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).with_name("Tools.java")
_END_S: Final = 20
_LOCK: Final = threading.Lock()
_IDLE: Final[dict[Path, list[ToolsJvm]]] = {}


class ToolsJvm:
    """One JVM, started with `command`, which runs one tool at a time; `ended` is called when it has ended."""

    def __init__(self, command: list[str], ended: Callable[[], None]) -> None:
        self._ended = ended
        self._process = subprocess.Popen([*command, str(SOURCE)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n", "the JVM of Kafka's tools ended at its start"

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def run(self, arguments: tuple[str, ...], stdin: str, timeout_s: float) -> tuple[int, str, str]:
        """Run a class with its arguments; return its exit status, stdout and stderr.

        Raises subprocess.TimeoutExpired; the JVM has been killed then.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with tempfile.TemporaryDirectory(prefix="tool-") as folder:
            files = [Path(folder) / name for name in ("in", "out", "err")]
            files[0].write_bytes(stdin.encode())
            words = (*map(str, files), *arguments)
            line = " ".join("=" + base64.b64encode(word.encode()).decode() for word in words)
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
            if not select.select([self._process.stdout], [], [], timeout_s)[0]:
                self.kill()
                raise subprocess.TimeoutExpired(list(arguments), timeout_s)
            answer = self._process.stdout.readline().split()
            if len(answer) != 1:
                self._process.wait(_END_S)
            status = int(answer[0]) if answer else self._process.returncode
            out, err = (file.read_bytes().decode() if file.exists() else "" for file in files[1:])
        return status, out, err

    def kill(self) -> None:
        self._process.kill()
        self._closed()

    def end(self) -> None:
        """Let the JVM end by itself, which keeps what it has learnt about its classes."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._closed()

    def _closed(self) -> None:
        self._process.wait(_END_S)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._ended()


def idle(libs: Path) -> ToolsJvm | None:
    """Return a JVM with these jars that nobody uses, which from now on somebody uses."""
    with _LOCK:
        known = _IDLE.get(libs, [])
        while known:
            jvm = known.pop()
            if jvm.running:
                return jvm
            jvm.end()
    return None


def give_back(libs: Path, jvm: ToolsJvm) -> None:
    """Keep a JVM for the next tool."""
    with _LOCK:
        _IDLE.setdefault(libs, []).append(jvm)


def end_all() -> None:
    """End the JVMs that nobody uses."""
    with _LOCK:
        jvms = [jvm for known in _IDLE.values() for jvm in known]
        _IDLE.clear()
    for jvm in jvms:
        jvm.end()


atexit.register(end_all)
