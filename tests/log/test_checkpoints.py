"""A checkpoint file that is written synchronously or by a thread."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest

from kbroker.log import checkpoints
from kbroker.log.checkpoints import CheckpointFile


class Later(Executor):
    """Runs the submitted work on request."""

    def __init__(self) -> None:
        self.work: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.work.append((future, lambda: fn(*args, **kwargs)))
        return future

    def run(self) -> None:
        for future, call in self.work:
            try:
                future.set_result(call())
            except OSError as error:
                future.set_exception(error)
        self.work.clear()


def test_a_late_thread_does_not_undo_a_later_write(tmp_path: Path) -> None:
    file, pool = CheckpointFile(f"{tmp_path}/c"), Later()
    file.write_by(pool, ["t 0 1"])
    file.write({("t", 0): 2})
    pool.run()
    assert checkpoints.read_offsets(file.path) == {("t", 0): 2}
    file.write_by(pool, ["t 0 3"])
    pool.run()
    assert checkpoints.read_offsets(file.path) == {("t", 0): 3}


def test_who_writes_once_in_a_while_can_tell_that_a_write_waits(tmp_path: Path) -> None:
    file, pool = CheckpointFile(f"{tmp_path}/c"), Later()
    assert not file.is_busy
    file.write_by(pool, ["t 0 1"])
    assert file.is_busy
    pool.run()
    assert not file.is_busy


def test_a_failure_is_told_at_the_next_write(tmp_path: Path) -> None:
    file, pool = CheckpointFile(f"{tmp_path}/missing/c"), Later()
    file.write_by(pool, [])
    pool.run()
    with pytest.raises(OSError, match="missing"):
        file.write_by(pool, [])
    file.write_by(pool, [])
    assert len(pool.work) == 1
