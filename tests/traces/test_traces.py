"""The messages to the process that creates spans; no request waits for a process that reads nothing or has ended."""

from __future__ import annotations

import io
import marshal
import os
import sys
import time
from collections.abc import Callable, Sequence

import pytest

from kbroker.network.request_log import Measured
from kbroker.traces import traces as module
from kbroker.traces.process import make
from kbroker.traces.traces import Traces, exporting_to
from tests.traces.collector import attributes_of, collecting
from tests.traces.test_spans import MEASURED

PATIENCE_S = 30.0


def running(code: str) -> Sequence[str]:
    return [sys.executable, "-c", code]


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.long
def test_what_is_noted_comes_to_a_collector() -> None:
    with collecting() as collector:
        traces = Traces(exporting_to(collector.url, {"service.instance.id": "7"}))
        began = time.time_ns()
        for number in range(600):
            traces.note(MEASURED._replace(correlation_id=number, client_id=None if number else "\udc80"))
        traces.close()
        found = sorted(collector.spans(), key=lambda span: attributes_of(span)["kafka.correlation_id"])
        assert [attributes_of(span)["kafka.correlation_id"] for span in found] == list(range(600))
        assert began <= found[0].end_time_unix_nano <= time.time_ns()
        assert collector.resource()["service.instance.id"] == "7"


def test_what_is_written_is_what_is_read() -> None:
    found: list[tuple[Measured, int]] = []
    whole = marshal.dumps([(1, tuple(MEASURED)), (2, tuple(MEASURED))])
    make(lambda told, ended_ns: found.append((told, ended_ns)), io.BytesIO(whole + whole))
    assert found == [(MEASURED, 1), (MEASURED, 2)] * 2
    for end in range(len(whole)):
        make(lambda told, ended_ns: found.append((told, ended_ns)), io.BytesIO(whole[:end]))
    assert len(found) == 4, "of what is cut off, nothing"


def test_what_nobody_takes_is_dropped_and_its_process_ended(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "MOST_WAITING", 10)
    monkeypatch.setattr(module, "_STOP_S", 0.2)
    monkeypatch.setattr(module, "AT_ONCE", 10)
    traces = Traces(running("import time; time.sleep(600)"))
    long = MEASURED._replace(api="x" * 100_000)  # more than the pipe's buffer
    for _ in range(10):
        traces.note(long)
    until(lambda: not traces._waiting)
    for _ in range(25):
        traces.note(MEASURED)
    assert (len(traces._waiting), traces.dropped) == (10, 15)
    traces.close()
    assert not any(thread.is_alive() for thread in traces._threads)
    assert "did not end within" in caplog.text
    assert "15 requests have no span" in caplog.text


def test_what_the_process_says_is_logged_and_that_it_has_ended(caplog: pytest.LogCaptureFixture) -> None:
    traces = Traces(running("import sys; sys.exit('no such collector')"))
    until(lambda: "has ended" in caplog.text)
    assert "no such collector" in caplog.text
    traces.note(MEASURED)
    traces.close()
    assert traces._process.returncode == 1


@pytest.mark.long
def test_the_process_ends_with_the_broker_and_not_by_its_signals() -> None:
    with collecting() as collector:
        traces = Traces(exporting_to(collector.url, {}))
        traces.note(MEASURED)
        until(lambda: not traces._waiting)
        os.kill(traces.pid, 0)
        until(lambda: "SigIgn" in status(traces.pid) and ignores(traces.pid, 15) and ignores(traces.pid, 2))
        os.kill(traces.pid, 15)
        os.kill(traces.pid, 2)
        traces.close()
        assert traces._process.returncode == 0
        assert len(collector.spans()) == 1


def status(pid: int) -> str:
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        return file.read()


def ignores(pid: int, number: int) -> bool:
    line = next(each for each in status(pid).splitlines() if each.startswith("SigIgn"))
    return bool(int(line.split()[1], 16) >> (number - 1) & 1)
