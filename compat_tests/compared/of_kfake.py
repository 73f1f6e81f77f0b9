"""kfake, the fake cluster of the Go client franz-go: a Go program beside this file, see kfake/main.go.

Owns building the program, with Go's own way to get modules, and the requests to it. Raises Lacking where that is
impossible.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, Self

from compat_tests.compared.target import Lacking, Target

SOURCE: Final = Path(__file__).with_name("kfake")
_BUILD_S: Final = 300


def go() -> str | None:
    """Return the path of Go's command, if Go is installed."""
    return shutil.which("go") or next((each for each in ("/usr/local/go/bin/go",) if os.path.exists(each)), None)


@cache
def built() -> Path:
    """Build the program and return its path. Raises Lacking with Go's message."""
    command = go()
    if command is None:
        raise Lacking("there is no Go here")
    directory = Path(tempfile.mkdtemp(prefix="kbroker-kfake-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    shutil.copytree(SOURCE, directory, dirs_exist_ok=True)
    done = subprocess.run(
        [command, "build", "-o", "kfake", "."],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=_BUILD_S,
        check=False,
    )
    if done.returncode:
        raise Lacking(f"kfake cannot be built: {done.stderr.strip()[-500:]}")
    return directory / "kfake"


class OfKfake(Target):
    name = "kfake"

    def __init__(self, *arguments: str, settings: Mapping[str, Any] | None = None, keeps: bool = False) -> None:
        self._directory = tempfile.TemporaryDirectory() if keeps else None
        self._arguments = [*arguments, *(["-dir", self._directory.name] if self._directory else [])]
        self._settings = settings or {}
        self._process: subprocess.Popen[str] | None = None
        self._recording = False

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [str(built()), *self._arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        told = self._process.stdout.readline().split()
        if told[:1] != ["ready"]:
            self.__exit__()
            raise Lacking(f"kfake does not start: {' '.join(told)}")
        self.bootstrap = told[1].replace("localhost", "127.0.0.1")
        return self

    def __exit__(self, *_: object) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.communicate()

    def settings(self) -> Mapping[str, Any]:
        return {**super().settings(), **self._settings}

    def _do(self, *words: object) -> str:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        told = self._process.stdout.readline().strip()
        assert not told.startswith("failed"), told
        return told

    def create(self, topic: str, partitions: int = 1) -> None:
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient({**self.settings(), "log_level": 0})
        admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(10)

    def fail(self, api: int, code: int, times: int) -> None:
        self._do("fail", api, code, times)

    def fail_of(self, topic: str, api: int, code: int, times: int) -> None:
        self._do("failtopic", topic, api, code, times)

    def delay(self, api: int, ms: int) -> None:
        self._do("delay", api, ms)

    def disconnect(self, api: int) -> None:
        self._do("disconnect", api)

    def advance(self, hours: float) -> None:
        """Its clock is that of its process; only Go's testing/synctest can move it, for clients in the same Go test."""
        raise Lacking("time moves only for Go clients, by testing/synctest")

    def lose_answer(self, api: int) -> None:
        raise Lacking("no lost answers, but errors after the work: REQUEST_TIMED_OUT")

    def work(self) -> None:
        self._do("work")

    def apis_asked(self) -> list[int]:
        self._record()
        return [int(each) for each in self._do("asked").split()]

    def acks_asked(self) -> list[int]:
        self._record()
        return [int(each) for each in self._do("acks").split()]

    def _record(self) -> None:
        if not self._recording:
            self._recording = True
            self._do("record")

    def move_leader(self, topic: str) -> None:
        self._do("move", topic)

    def kill_leader(self, topic: str) -> None:
        self._do("kill", topic)

    def restart(self) -> None:
        if self._directory is None:
            super().restart()
        self.__exit__()
        self.__enter__()
