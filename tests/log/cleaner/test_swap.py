"""S10: a crash at any step of a swap leaves either the old content or the new content."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kbroker.log import segment_swap
from kbroker.log.log_config import LogConfig
from kbroker.log.partition_log import PartitionLog
from kbroker.protocol.errors import ErrorCode
from tests.log.builders import NOW, open_log, purge
from tests.log.cleaner.context import (
    clean,
    cleaning,
    committed_view,
    contents,
    end_txn,
    put,
    reopened,
    swap,
)
from tests.own_thread import in_this_thread

CONFIG = LogConfig(cleanup_policy=("compact",), segment_bytes=3000, index_interval_bytes=256, file_delete_delay_ms=1)
OPERATIONS = ("rename", "replace", "unlink")


class Crash(BaseException):
    """Ends the process at this step."""


def crash_after(monkeypatch: pytest.MonkeyPatch, count: int) -> Callable[[], int]:
    """Crash after `count` changes of the directory; returns a function that returns the number of changes."""
    done = 0

    def counted(operation: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kw: Any) -> Any:
            nonlocal done
            if done >= count:
                raise Crash
            done += 1
            return operation(*args, **kw)

        return call

    for name in OPERATIONS:
        real = getattr(os, name)
        monkeypatch.setattr(os, name, in_this_thread(counted(real), real))
    return lambda: done


def filled(directory: Path) -> PartitionLog:
    log = open_log(directory, config=CONFIG)
    producer = {"producer_id": 7, "producer_epoch": 0, "transactional": True}
    for index in range(60):
        put(log, *[(b"key-%d" % ((index + i) % 40), b"v" * 30) for i in range(4)])
        if index % 10 == 0:
            put(log, (b"key-0", b"gone"), base_sequence=index // 10, **producer)
            end_txn(log, 7, commit=index % 20 == 0)
    log.roll(NOW)
    put(log, (b"end", b""))
    assert len(log.segments) > 5
    return log


def state_of(log: PartitionLog) -> tuple[object, ...]:
    return contents(log), committed_view(log), log.log_end_offset, log.segments.bases


@pytest.mark.long
def test_s10_a_crash_after_each_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(tmp_path / "topic-0")
    clean(log)  # so that the next round has groups of several segments
    log = reopened(log)
    for path in Path(log.directory).glob("*.deleted"):
        path.unlink()
    with cleaning(log) as round_:
        group = next(iter(round_.run()))
    assert len(group.bases) > 1
    saved = tmp_path / "saved"
    shutil.copytree(log.directory, saved)
    old = state_of(log)
    new: tuple[object, ...] = ()
    seen = set()
    step = 0
    while True:
        directory = tmp_path / f"crash-{step}"
        shutil.copytree(saved, directory)
        victim = open_log_at(directory, log)
        with monkeypatch.context() as patch:
            crash_after(patch, step)
            try:
                swap(victim, group)
                finished = True
            except Crash:
                finished = False
        if finished:
            new = state_of(victim)
            break
        # The first start after the crash may also be interrupted, at any step.
        for second in range(8):
            again = tmp_path / f"crash-{step}-{second}"
            shutil.copytree(directory, again)
            with monkeypatch.context() as patch:
                crash_after(patch, second)
                with contextlib.suppress(Crash):
                    open_log(again, clean=False, config=CONFIG)
            seen.add((step, second, repr(state_of(reload(again, log)))))
        step += 1
    assert step > 10
    found = {text for _, _, text in seen}
    assert found == {repr(old), repr(new)}
    switch = [repr(new) in {text for at, _, text in seen if at == n} for n in range(step)]
    assert switch == sorted(switch)  # from some step on, the content is the new one and stays so


def open_log_at(directory: Path, like: PartitionLog) -> PartitionLog:
    """Open a directory that contains a `.cleaned` segment, which loading would remove."""
    kept = {path: path.read_bytes() for path in directory.glob("*.cleaned")}
    log = reload(directory, like)
    for path, content in kept.items():
        path.write_bytes(content)
    return log


def reload(directory: Path, like: PartitionLog) -> PartitionLog:
    log = open_log(directory, clean=False, config=CONFIG, high_watermark=like.high_watermark)
    log.set_high_watermark(like.high_watermark)
    assert not [path for path in directory.iterdir() if path.suffix in (".cleaned", ".swap", ".deleted")]
    return log


def test_a_slice_goes_on_reading_the_old_file(tmp_path: Path) -> None:
    log = filled(tmp_path / "topic-0")
    piece = log.read(0, 2000, log.log_end_offset, min_one=True)
    expected = bytes(log.read(0, 2000, log.log_end_offset, min_one=True).view())
    clean(log)
    purge(log, NOW + 10)
    assert bytes(piece.view()) == expected
    assert bytes(log.read(0, 2000, log.log_end_offset, min_one=True).view()) != expected
    assert os.pread(piece.fd, len(piece), piece.position) == expected


def test_old_files_go_after_their_delay(tmp_path: Path) -> None:
    log = filled(tmp_path / "topic-0")
    clean(log)
    assert list(Path(log.directory).glob("*.deleted"))
    purge(log, NOW + 1)
    assert not list(Path(log.directory).glob("*.deleted"))


def failing_swap(log: PartitionLog, rename: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Clean the log up to a swap in which this `rename` raises an error."""
    with cleaning(log) as round_:
        group = next(iter(round_.run()))
        with monkeypatch.context() as patch:
            patch.setattr(segment_swap.os, "rename", rename)
            with pytest.raises(OSError, match="Input/output"):
                swap(log, group)


def test_a_swap_that_cannot_begin_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(tmp_path / "topic-0")
    before = state_of(log)
    rename, calls = os.rename, 0

    def failing(source: str, target: str) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise OSError(5, "Input/output error")
        rename(source, target)

    failing_swap(log, failing, monkeypatch)
    assert state_of(log) == before
    assert not list(Path(log.directory).glob("*.swap"))
    assert not list(Path(log.directory).glob("*.cleaned"))
    put(log, (b"a", b"goes on"))
    assert state_of(reopened(log, clean=False))[0] == state_of(log)[0]


def test_a_swap_that_fails_half_way_refuses_appends_until_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = filled(tmp_path / "topic-0")
    view = committed_view(log)
    rename = os.rename

    def failing(source: str, target: str) -> None:
        if source.endswith(".log.swap"):
            raise OSError(5, "Input/output error")
        rename(source, target)

    failing_swap(log, failing, monkeypatch)
    with pytest.raises(Exception, match="swapped in") as refused:
        put(log, (b"a", b"no"))
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR  # type: ignore[attr-defined]
    log = reopened(log, clean=False)
    kept = committed_view(log)
    assert {record.key: record for record in kept} == {record.key: record for record in view}
