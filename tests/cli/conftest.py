"""The command line in tests: run in this process against an embedded broker, or against Apache Kafka."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kafka.cluster import ClusterMetadata

from kbroker import Broker
from kbroker.broker.node import BrokerNode
from kbroker.cli.main import main

HANGS_S = 180
"""Seconds after which a process counts as hanging: writing 80,000 records took 13 s, and over 60 s at a load of 10."""


@dataclass(frozen=True)
class Done:
    """The result of a run of the command line."""

    status: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class CommandLine:
    """Runs `kbroker ARGUMENTS` in this process, with KBROKER_BOOTSTRAP set."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def __call__(self, *arguments: str, stdin: bytes = b"") -> Done:
        before = sys.stdin, sys.stdout, sys.stderr, dict(os.environ)
        out, err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True), io.StringIO()
        sys.stdin = io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8")
        sys.stdout, sys.stderr = out, err
        os.environ["KBROKER_BOOTSTRAP"] = self.bootstrap
        try:
            main(list(arguments))
            status = 0
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(bool(end.code))
        finally:
            sys.stdin, sys.stdout, sys.stderr = before[:3]
            os.environ.clear()
            os.environ.update(before[3])
        assert isinstance(out.buffer, io.BytesIO)
        return Done(status, out.buffer.getvalue(), err.getvalue())

    def ok(self, *arguments: str, stdin: bytes = b"") -> Done:
        done = self(*arguments, stdin=stdin)
        assert done.status == 0, done.err
        return done

    def fails(self, *arguments: str, stdin: bytes = b"") -> str:
        """Run a command that must fail; return its error line."""
        return the_line(self(*arguments, stdin=stdin))

    def elsewhere(self, *arguments: str, stdin: bytes = b"") -> Done:
        """Run in a separate process."""
        command = [sys.executable, "-m", "kbroker", *arguments]
        environment = {**os.environ, "KBROKER_BOOTSTRAP": self.bootstrap}
        done = subprocess.run(command, input=stdin, capture_output=True, timeout=60, check=False, env=environment)
        return Done(done.returncode, done.stdout, done.stderr.decode())

    @contextmanager
    def started(self, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        """Start a separate process, which is killed at the end, or if it hangs: then the test fails."""
        environment = {**os.environ, "KBROKER_BOOTSTRAP": self.bootstrap}
        command = [sys.executable, "-m", "kbroker", *arguments]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe) as process:
            watchdog = threading.Timer(HANGS_S, process.kill)
            watchdog.start()
            try:
                yield process
            finally:
                hung = watchdog.finished.is_set()
                watchdog.cancel()
                process.kill()
                if hung:
                    pytest.fail(f"{arguments} was killed: it had not ended after {HANGS_S} s")


def the_line(done: Done) -> str:
    """Return the single line on stderr of a command that must have failed."""
    assert done.status == 1, done
    (line,) = done.err.splitlines()
    assert line.startswith("kbroker: ")
    return line.removeprefix("kbroker: ")


@pytest.fixture(scope="session", autouse=True)
def metadata_at_once() -> Iterator[None]:
    """Let the verbs' client request metadata twice in a row: otherwise it waits 100 ms, whatever its settings."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ClusterMetadata.DEFAULT_CONFIG, "retry_backoff_ms", 1)
        yield


@pytest.fixture(scope="session")
def embedded() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture(scope="session")
def cli(embedded: Broker) -> CommandLine:
    """The command line against an embedded broker."""
    return CommandLine(embedded.bootstrap_servers)


@pytest.fixture(params=["kbroker", pytest.param("apache", marks=pytest.mark.java)])
def anywhere(request: pytest.FixtureRequest) -> CommandLine:
    """The command line against an embedded broker, and against Apache Kafka."""
    if request.param == "kbroker":
        return CommandLine(request.getfixturevalue("embedded").bootstrap_servers)
    return CommandLine(request.getfixturevalue("apache_kafka").bootstrap)


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Start a broker in this process that must fail early; return the line that a process would print."""

    async def never(*_: object, **__: object) -> None:
        raise AssertionError("it starts")

    def start(*arguments: str, **environment: str) -> str:
        for variable, value in environment.items():
            monkeypatch.setenv(variable, value)
        said = CommandLine("").fails(*arguments, "--data-dir", str(tmp_path / "data"))
        assert not (tmp_path / "data").exists()
        return said

    monkeypatch.setattr(BrokerNode, "start", never)
    level = logging.root.level
    monkeypatch.setattr(logging.root, "handlers", [])  # so that the command configures its log
    yield start
    logging.root.setLevel(level)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """Return a name for a topic or a group that no other test uses."""
    file = request.node.path.stem.removeprefix("test_")
    return "".join(c if c.isalnum() else "-" for c in f"{file}-{request.node.name}")
