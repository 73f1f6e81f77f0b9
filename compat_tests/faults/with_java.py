"""The Java producer and consumer: one JVM that executes commands, see Clients.java."""

from __future__ import annotations

import itertools
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from compat_tests.faults.client import BACKOFF_MS, DELIVERY_MS, READ_MS, REQUEST_MS, SESSION_MS
from compat_tests.harness.jvm import BRIEF

_HERE: Final = Path(__file__).parent
_PATIENCE_S: Final = 60.0


class WithJava:
    name = "Java"

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._numbers = itertools.count()
        self._asked: dict[int, Future[str]] = {}
        self._lock = threading.Lock()
        self._ready = threading.Event()
        threading.Thread(target=self._listen, name="answers of the JVM", daemon=True).start()

    def produce(self, bootstrap: str, topic: str, count: int, *, idempotent: bool) -> str:
        return self._ask("produce", bootstrap, topic, str(count), str(idempotent).lower())

    def consume(self, bootstrap: str, topic: str) -> str:
        return self._ask("consume", bootstrap, topic)

    def consume_in_group(
        self, bootstrap: str, topic: str, group: str, pause_ms: int = 0, session_ms: int = SESSION_MS
    ) -> str:
        return self._ask("group", bootstrap, topic, group, str(pause_ms), str(session_ms))

    def transact(self, bootstrap: str, topic: str, name: str, pause_ms: int = 0, timeout_ms: int = DELIVERY_MS) -> str:
        return self._ask("transact", bootstrap, topic, name, str(pause_ms), str(timeout_ms))

    def wait(self) -> None:
        """Wait until the JVM accepts commands."""
        assert self._ready.wait(_PATIENCE_S), "the JVM with the clients did not come up"

    def _ask(self, *words: str) -> str:
        assert self._process.stdin is not None
        with self._lock:
            number = next(self._numbers)
            answer = self._asked[number] = Future()
            self._process.stdin.write("\t".join([str(number), *words]) + "\n")
            self._process.stdin.flush()
        return answer.result(_PATIENCE_S)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            number, _, result = line.strip().partition(" ")
            if number == "ready":
                self._ready.set()
            elif number.isdecimal():
                self._asked.pop(int(number)).set_result(result)
        for each in self._asked.values():
            each.set_exception(AssertionError("the JVM with the clients has ended"))


@contextmanager
def java_clients(libs: Path) -> Iterator[WithJava]:
    """Run the JVM."""
    command = [
        *("java", "-Xmx200M", *BRIEF),
        f"-Dlog4j2.configurationFile={_HERE.parent / 'harness' / 'tools-log4j2.properties'}",
        *("-cp", f"{libs}/*", str(_HERE / "Clients.java")),
        *map(str, (REQUEST_MS, DELIVERY_MS, READ_MS, BACKOFF_MS)),
    ]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            clients = WithJava(process)
            clients.wait()
            yield clients
        finally:
            process.kill()
