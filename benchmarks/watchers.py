"""Processes that watch a broker while it works: a scraper of its metrics, like Prometheus, and an open console.

    python -m benchmarks.watchers URL...    requests each URL every five seconds, until it is ended

Owns those processes. Never sends requests more often than people and Prometheus do.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from compat_tests.harness.brokers import KBroker, free_port

EVERY_S = 5.0
_PATIENCE_S = 60.0


class Seen(KBroker):
    """kbroker with a metrics listener."""

    def _command(self) -> list[str]:
        return [*super()._command(), "--metrics", "127.0.0.1:0"]

    @property
    def metrics(self) -> str:
        """The URL of its metrics."""
        return f"{json.loads(Path(self.ready_file).read_text())['metrics']}/metrics"


@contextmanager
def _process(*arguments: str) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-m", *arguments], stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(_PATIENCE_S)


@contextmanager
def watched(broker: Seen) -> Iterator[None]:
    """Let a scraper and a console watch a broker; the console's overview is requested, as an open page does."""
    console = f"127.0.0.1:{free_port()}"
    with ExitStack() as up:
        up.enter_context(_process("kbroker", "console", "--bootstrap", broker.bootstrap, "--listen", console))
        _wait_for(f"http://{console}/")
        up.enter_context(_process("benchmarks.watchers", broker.metrics, f"http://{console}/"))
        yield


def _wait_for(url: str) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=10):
            return
        time.sleep(0.1)
    raise TimeoutError(url)


def main() -> None:
    while True:
        for url in sys.argv[1:]:
            with urllib.request.urlopen(url, timeout=30) as answer:
                answer.read()
        time.sleep(EVERY_S)


if __name__ == "__main__":
    main()
