"""The thread that removes files, and how it ends."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from kbroker.log.directories import deleted_partitions
from kbroker.log.directories.deleted_partitions import Remover

PATIENCE_S = 30


def test_an_end_does_not_wait_for_all_that_is_to_be_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_work, may_go_on = threading.Event(), threading.Event()
    remove = deleted_partitions.remove_quietly

    def slow(path: str) -> None:
        at_work.set()
        assert may_go_on.wait(PATIENCE_S)
        remove(path)

    monkeypatch.setattr(deleted_partitions, "remove_quietly", slow)
    paths = [tmp_path / str(number) for number in range(100)]
    for path in paths:
        path.touch()
    removing = Remover()
    removing.remove(map(str, paths))
    assert at_work.wait(PATIENCE_S)
    ending = threading.Thread(target=removing.close)
    ending.start()
    assert removing._closing.wait(PATIENCE_S)
    may_go_on.set()
    ending.join(PATIENCE_S)
    assert [path.exists() for path in paths] == [False] + 99 * [True]
