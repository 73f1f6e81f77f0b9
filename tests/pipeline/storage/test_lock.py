"""One writer at a time, whoever checks the lock and when."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.storage.files import Files
from kbroker.pipeline.storage.lock import NAME, WriterLock
from tests.pipeline.local_session import local_files
from tests.tries import tries

PATIENCE_S = 60
GONE = r"another job writes to"


def lock_of(folder: Path) -> dict[str, Any]:
    """Return the contents of a lock that is held now."""
    with WriterLock(local_files(folder)):
        found: dict[str, Any] = json.loads((folder / NAME).read_text())
    return found


def ended_process() -> int:
    """Return the id of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait(PATIENCE_S)
    return process.pid


@pytest.mark.long
def test_second_job_is_refused_while_the_first_one_renews(tmp_path: Path) -> None:
    files = local_files(tmp_path)
    with WriterLock(files, renewed_s=0.0) as lock:
        begun = (tmp_path / NAME).read_text()
        looks, renewed, deadline = 0, False, time.monotonic() + PATIENCE_S
        while looks < tries(500) or not renewed:
            assert renewed or time.monotonic() < deadline, "the lock is not renewed"
            lock.check()
            with pytest.raises(PipelineError, match=GONE):
                WriterLock(files).__enter__()
            renewed = renewed or (tmp_path / NAME).read_text() != begun
            looks += 1
    assert os.listdir(tmp_path) == []


class Meeting:
    """Files where two jobs both see that there is no lock before either continues, unless something prevents that."""

    def __init__(self, files: Files, together: threading.Barrier) -> None:
        self._files = files
        self._together = together

    def alone(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()  # as on a file system that has no flock

    def exists(self, relative: str) -> bool:
        found = self._files.exists(relative)
        with contextlib.suppress(threading.BrokenBarrierError):
            self._together.wait(PATIENCE_S)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)


def test_one_of_two_jobs_that_start_together_gets_the_lock(tmp_path: Path) -> None:
    together = threading.Barrier(2)
    got: list[WriterLock] = []
    said: list[str] = []

    def take() -> None:
        lock = WriterLock(Meeting(local_files(tmp_path), together))  # type: ignore[arg-type]
        try:
            got.append(lock.__enter__())
        except PipelineError as err:
            said.append(str(err))
        together.abort()

    threads = [threading.Thread(target=take) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert (len(got), len(said)) == (1, 1)
    got[0].check()
    got[0].__exit__(None)


def test_lock_of_a_process_that_ended_is_taken(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text(json.dumps({**lock_of(tmp_path), "pid": ended_process()}))
    (tmp_path / f".{NAME}.crc").write_text("of an older version")
    with WriterLock(local_files(tmp_path)) as lock:
        lock.check()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["host", "boot", "namespace"])
def test_process_of_another_machine_or_container_counts_until_its_lock_is_old(tmp_path: Path, name: str) -> None:
    owner = {**lock_of(tmp_path), "pid": ended_process(), name: "another"}
    (tmp_path / NAME).write_text(json.dumps(owner))
    files = local_files(tmp_path)
    with pytest.raises(PipelineError, match=GONE):
        WriterLock(files, lambda: owner["renewed"] + 599).__enter__()
    with WriterLock(files, lambda: owner["renewed"] + 601) as lock:
        lock.check()


@pytest.mark.parametrize("text", ["", "{", "[]", "null"])
def test_lock_that_says_nothing_counts_until_it_is_old(tmp_path: Path, text: str) -> None:
    files = local_files(tmp_path)
    (tmp_path / NAME).write_text(text)
    with pytest.raises(PipelineError, match=GONE):
        WriterLock(files).__enter__()
    old = time.time() - 601
    os.utime(tmp_path / NAME, (old, old))
    with WriterLock(files) as lock:
        lock.check()
        (tmp_path / NAME).write_text(text)
        with pytest.raises(PipelineError, match="does not say who writes there"):
            lock.check()


def test_lock_that_changed_hands_meanwhile_is_given_back(tmp_path: Path) -> None:
    dead = json.dumps({**lock_of(tmp_path), "pid": ended_process()})
    (tmp_path / NAME).write_text(dead)
    late = WriterLock(local_files(tmp_path))
    with WriterLock(local_files(tmp_path)) as first:
        with pytest.raises(PipelineError, match=GONE):
            late._take_over(dead)
        first.check()


def test_lock_that_was_taken_over_is_told(tmp_path: Path) -> None:
    with WriterLock(local_files(tmp_path)) as lock:
        (tmp_path / NAME).write_text(json.dumps({"token": "another"}))
        with pytest.raises(PipelineError, match="another job took over"):
            lock.check()
    assert (tmp_path / NAME).exists()


def test_renewal_goes_on_after_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    files = local_files(tmp_path)
    failed, replaced = threading.Event(), threading.Event()
    replace = files.replace

    def fails_once(source: str, target: str) -> None:
        if not failed.is_set():
            failed.set()
            raise RuntimeError("the JVM does not answer")
        replace(source, target)
        replaced.set()

    monkeypatch.setattr(files, "replace", fails_once)
    with WriterLock(files, renewed_s=0.001):
        assert failed.wait(PATIENCE_S)
        assert replaced.wait(PATIENCE_S)
    out, err = capfd.readouterr()
    assert out == ""
    assert not [each for each in err.splitlines() if not each.startswith("%")], "librdkafka's lines are of other tests"


def fails_with_its_lock(folder: Path) -> None:
    (folder / NAME).write_text("")
    raise ValueError("the job's")


def test_error_of_a_job_is_not_hidden_by_one_of_its_lock(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the job's"), WriterLock(local_files(tmp_path)):
        fails_with_its_lock(tmp_path)
