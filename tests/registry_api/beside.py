"""A registry beside any Kafka: in this process, or as a process that may be killed.

And clients of several registries.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from kbroker.admin.connection import Connection
from kbroker.admin.schema_store import PATIENCE_S as SCHEMAS_S
from kbroker.admin.schema_store import KafkaStore
from kbroker.local_http import REGISTRY
from kbroker.registry_api.server import RegistryServer
from kbroker.schema_registry.service import FromOtherThread
from tests.registry_api.conftest import Http

PATIENCE_S = 60.0


class Beside:
    """A registry in this process: its store on a loop of its own thread, and its HTTP."""

    def __init__(self, bootstrap: str, patience_s: float = SCHEMAS_S, **settings: Any) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="store of a test")
        self._thread.start()
        self.store = KafkaStore(Connection(bootstrap, settings), patience_s=patience_s)
        try:
            self.run(self.store.open())
        except BaseException:
            self._end_loop()
            raise
        listening = REGISTRY.listening("127.0.0.1", 0, "--listen", public=False)
        self.server = RegistryServer(FromOtherThread(self.store, self.loop), listening, cluster_id="a").start()
        self.http = Http(self.server.url)

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE_S)

    def close(self) -> None:
        async def closed() -> None:
            self.store.close()

        self.run(closed())
        self.server.stop()
        self._end_loop()

    def _end_loop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Process:
    """A verb of kbroker that serves, and writes its address into a file; it can be killed and restarted."""

    def __init__(self, directory: Path, name: str, *arguments: str) -> None:
        self._ready = directory / f"{name}.ready"
        self._log = directory / f"{name}.log"
        self._command = [sys.executable, "-m", "kbroker", *arguments, "--ready-file", str(self._ready)]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> str:
        """Start, and return the contents of the ready file."""
        self._ready.unlink(missing_ok=True)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        until = time.monotonic() + PATIENCE_S
        while not (self._ready.exists() and self._ready.read_text().strip()):
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < until, self._log.read_text()
            time.sleep(0.02)
        return self._ready.read_text().strip()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def freeze(self, seconds: float) -> None:
        """Freeze the process for a while."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            time.sleep(seconds)
        finally:
            self._process.send_signal(signal.SIGCONT)

    def end(self, number: int = signal.SIGINT) -> tuple[int, float]:
        """End the process by a signal; return its status and the seconds that it took."""
        assert self._process is not None
        began = time.monotonic()
        os.kill(self._process.pid, number)
        return self._process.wait(PATIENCE_S), time.monotonic() - began

    def log(self) -> str:
        return self._log.read_text()


@contextmanager
def ended(*processes: Process) -> Iterator[None]:
    """Kill processes at the end."""
    try:
        yield
    finally:
        for each in processes:
            each.kill()


def record(name: str) -> str:
    return json.dumps({"type": "record", "name": name, "fields": []})


class Clients:
    """Threads that register different schemas at several registries, and record the acknowledged ids.

    A failed request is retried at another registry.
    """

    def __init__(self, urls: Sequence[str], threads: int, first: int = 0) -> None:
        self.urls = list(urls)
        self.acknowledged: dict[str, int] = {}
        self.refused: list[str] = []
        self.given_up: list[str] = []
        """Names whose schemas may or may not be registered: no registry has acknowledged them in time."""
        self._over = threading.Event()
        self._first = first
        self._threads = [threading.Thread(target=self._work, args=(number,)) for number in range(threads)]

    def __enter__(self) -> Self:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for each in self._threads:
            each.join()

    def wait_for(self, count: int) -> None:
        """Wait until this many more schemas are acknowledged."""
        wanted = len(self.acknowledged) + count
        until = time.monotonic() + PATIENCE_S
        while len(self.acknowledged) < wanted:
            assert time.monotonic() < until, f"{len(self.acknowledged)} of {wanted} schemas: {self.refused[-5:]}"
            time.sleep(0.02)

    def _work(self, number: int) -> None:
        count = 0
        while not self._over.is_set():
            count += 1
            self._register(f"s{self._first + number}_{count}", number + count)

    def _register(self, name: str, at: int) -> None:
        """Register until it is acknowledged, also after the end: an unfinished one would leave a gap in the count."""
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            at += 1
            with suppress(OSError, http.client.HTTPException):  # a response may end in the middle
                body = json.dumps({"schema": record(name)}).encode()
                status, answer = Http(self.urls[at % len(self.urls)]).raw("POST", f"/subjects/{name}/versions", body)
                if status == 200:
                    self.acknowledged[name] = json.loads(answer)["id"]
                    return
                self.refused.append(answer.decode())
            time.sleep(0.05)
        self.given_up.append(name)

    def judge(self, urls: Sequence[str]) -> None:
        """Check that ids are unique and dense, that none was lost, and that all registries agree."""
        ids = sorted(self.acknowledged.values())
        missing = sorted({*range(1, len(ids) + 1)} - {*ids})
        twice = sorted({each for each in ids if ids.count(each) > 1})
        if missing or twice:
            found = {each: Http(urls[0]).raw("GET", f"/schemas/ids/{each}/versions") for each in missing}
            raise AssertionError(f"{len(ids)} ids; missing {found}, twice {twice}; given up: {self.given_up}")
        told = []
        for url in urls:
            http = Http(url)
            assert http.ok("GET", f"/schemas/ids/{len(ids)}")  # a look at the log's end, if it is not there yet
            listed = http.ok("GET", "/schemas?limit=1000")
            found = {each["subject"]: each["id"] for each in listed}
            assert len(found) == len(listed)
            told.append(found)
        for found in told:
            assert found == (self.acknowledged if len(ids) <= 1_000 else told[0])
        for name, schema_id in list(self.acknowledged.items())[-20:]:
            assert Http(urls[0]).ok("GET", f"/schemas/ids/{schema_id}")["schema"] == record(name).replace(" ", "")
