"""Signals while Spark starts and runs, without Spark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyspark.java_gateway
import pytest

from kbroker.pipeline.archive.archive import Archive
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.spark import jvm as jvm_module
from kbroker.pipeline.spark import session as starting
from kbroker.pipeline.spark.jvm import Jvm
from kbroker.pipeline.spark.session import SparkOptions, open_session
from kbroker.pipeline.spark.signals import Ending

PATIENCE_S = 60


class FakeJvm(Jvm):
    """A JVM whose start ends when the test says so."""

    def __init__(self, status: int | None = None) -> None:
        super().__init__()
        self.terminated = threading.Event()
        self.ended = 0
        self._status = status

    @contextmanager
    def noted(self) -> Iterator[None]:
        yield

    def terminate(self) -> None:
        self.terminated.set()

    def end(self) -> None:
        self.ended += 1

    def status(self, within_s: float = 0.0) -> int | None:
        del within_s
        return self._status


class Session:
    """A session that cannot be stopped."""

    def __init__(self) -> None:
        self.sparkContext = self
        self.conf: dict[str, str] = {}

    def stop(self) -> None:
        raise ConnectionRefusedError("nobody is there")


def starts(begin: Callable[[], Any], jvm: Jvm) -> Any:
    """Start the fake Spark."""
    with Ending(jvm) as ending:
        return ending.start(begin)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("works", [True, False])
def test_signal_during_the_start_ends_the_jvm_first(number: signal.Signals, works: bool) -> None:
    jvm = FakeJvm()
    # Where tests run in the background of a shell, SIGINT is ignored.
    outside = signal.signal(number, signal.default_int_handler)
    before = signal.getsignal(number)

    def begin() -> object:
        os.kill(os.getpid(), number)
        assert jvm.terminated.wait(PATIENCE_S)
        if works:
            return object()
        raise ConnectionError("the JVM has ended")

    try:
        with pytest.raises(SystemExit) as raised:
            starts(begin, jvm)
        assert signal.getsignal(number) is before
    finally:
        signal.signal(number, outside)
    assert raised.value.code == 128 + number
    assert jvm.ended == 1


def test_start_that_is_left_alone_says_what_came_of_it() -> None:
    session = object()
    assert starts(lambda: session, FakeJvm()) is session
    with pytest.raises(ZeroDivisionError):
        starts(lambda: 1 // 0, FakeJvm())


def test_signal_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Ending(FakeJvm()) as ending:
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) == ending._on_signal
            ending.start(lambda: os.kill(os.getpid(), signal.SIGINT))
        assert ending.number == 0
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("status", "line"),
    [
        (-9, r"Spark's JVM ended while the job ran \(by signal 9\)"),
        (1, r"Spark's JVM ended while the job ran \(with status 1\)"),
        (None, "the job's own error"),
    ],
)
def test_jvm_that_ended_is_told(status: int | None, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting, "_require_java", lambda: None)
    monkeypatch.setattr(starting, "_start", lambda *_: Session())
    monkeypatch.setattr(starting, "configure", lambda session: session)
    monkeypatch.setattr(starting, "Jvm", lambda: FakeJvm(status))
    with pytest.raises(PipelineError, match=line), open_session(SparkOptions(jars=(__file__,)), "test"):
        raise PipelineError("the job's own error")


def test_stream_that_cannot_be_stopped_does_not_hide_its_error() -> None:
    class Query:
        def awaitTermination(self) -> None:  # noqa: N802 - Spark's name
            raise ValueError("the stream's own error")

        def stop(self) -> None:
            raise ConnectionRefusedError("nobody is there")

    archive = Archive.__new__(Archive)
    archive._failure = None
    with pytest.raises(PipelineError, match="the stream's own error"):
        archive._run(Query())


@pytest.mark.parametrize(("prelude", "status"), [("pass", -15), ("signal.signal(signal.SIGTERM, signal.SIG_IGN)", -9)])
def test_jvm_is_ended_even_if_it_does_not_want_to(prelude: str, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jvm_module, "_ORDERLY_S", 0.5)
    program = f"import signal, sys; {prelude}; print(flush=True); sys.stdin.read()"
    gateway: Any = pyspark.java_gateway
    jvm = Jvm()
    jvm.end()
    with jvm.noted():
        process = gateway.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert gateway.Popen is subprocess.Popen
    with process:
        process.stdout.readline()
        assert jvm.status() is None
        jvm.end()
    assert jvm.status() == status
