"""S11: a disk that fails or is full.

No append is confirmed that is not in the log, and no partial batch stays in it.
"""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kbroker.log.append_info import COORDINATOR, AppendError
from kbroker.log.log_config import LogConfig
from kbroker.log.partition_log import PartitionLog
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.records import build_marker
from tests.descriptors import no_descriptors
from tests.log.builders import NOW, batch, delete_due, offsets_of, open_log, purge, read_all
from tests.own_thread import in_this_thread


def failing(code: int, after: int = 0) -> Callable[..., int]:
    calls = 0

    def call(*_: Any, **__: Any) -> int:
        nonlocal calls
        calls += 1
        if calls > after:
            raise OSError(code, os.strerror(code))
        return 0

    return call


def state(log: PartitionLog) -> tuple[Any, ...]:
    return (
        log.log_end_offset,
        log.size,
        os.path.getsize(log.segments.active.path()),
        log.leader_epochs.entries,
        [(e.producer_id, e.last_sequence, e.current_txn_first_offset) for e in log.active_producers()],
        log.aborted_transactions(0, 10**9),
        log.last_stable_offset,
    )


def refused(log: PartitionLog, records: bytes | bytearray, **kw: Any) -> None:
    before = state(log)
    with pytest.raises(AppendError) as caught:
        log.append_as_leader(records, 0, NOW, **kw)
    assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert state(log) == before


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    log = open_log(tmp_path / "topic-0", config=LogConfig(segment_bytes=1000, index_interval_bytes=0))
    log.append_as_leader(batch(producer_id=1, producer_epoch=0, base_sequence=0, transactional=True), 0, NOW)
    return log


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("writable", [True, False])
def test_a_failed_write_changes_nothing(
    log: PartitionLog, monkeypatch: pytest.MonkeyPatch, code: int, writable: bool
) -> None:
    records = batch(producer_id=1, producer_epoch=0, base_sequence=1, transactional=True)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", failing(code))
        patch.setattr(os, "pwritev", failing(code))
        refused(log, bytearray(records) if writable else records)
    assert log.append_as_leader(records, 0, NOW).base_offset == 1


def test_a_short_write_is_cut_back(log: PartitionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.pwrite
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", lambda fd, data, at: write(fd, bytes(data)[:20], at))
        refused(log, bytearray(batch()))
    log.append_as_leader(batch(), 0, NOW)
    assert offsets_of(read_all(log)) == [0, 1]


def test_what_cannot_be_cut_back_ends_appending(log: PartitionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug 5: after a failed write, the log continued to accept appends."""
    write = os.pwrite
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", lambda fd, data, at: write(fd, bytes(data)[:20], at))
        patch.setattr(os, "ftruncate", failing(errno.EIO))
        with pytest.raises(AppendError):
            log.append_as_leader(bytearray(batch()), 0, NOW)
    refused(log, batch())
    assert offsets_of(read_all(log)) == [0]
    again = open_log(Path(log.directory), clean=False)
    assert offsets_of(read_all(again)) == [0]


@pytest.mark.parametrize("opened", [False, True])
def test_a_batch_is_taken_where_only_its_index_cannot_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: bool
) -> None:
    """If the batch were refused although it is already written, it would reappear after the next start."""
    log = open_log(tmp_path / "topic-0", config=LogConfig(index_interval_bytes=0))
    real = os.open

    def no_index(path: str, *arguments: Any) -> int:
        if path.endswith("index"):
            raise OSError(errno.EMFILE, "too many open files")
        return real(path, *arguments)

    log.append_as_leader(batch(), 0, NOW)
    if opened:  # from then on the indexes must grow
        log.segments.active.indexes.open()
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", no_index)
        log.append_as_leader(batch(), 0, NOW)
        assert log.log_end_offset == 2
    log.append_as_leader(batch(), 0, NOW)
    assert os.path.getsize(log.segments.active.path()) == log.size
    log.close()
    again = open_log(tmp_path / "topic-0")
    assert (again.log_end_offset, offsets_of(read_all(again))) == (3, [0, 1, 2])


def test_a_failed_roll_changes_nothing(log: PartitionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    log.update_config(LogConfig(segment_bytes=len(batch())))
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", failing(errno.EMFILE))
        refused(log, batch())
    assert log.append_as_leader(batch(), 0, NOW).base_offset == 1
    assert log.segments.bases == [0, 1]


def test_a_failed_snapshot_does_not_stop_a_roll(log: PartitionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("kbroker.log.producers.producer_snapshots.write_snapshot", failing(errno.ENOSPC))
        log.roll(NOW)
    assert log.segments.bases == [0, 1]
    again = open_log(Path(log.directory))
    assert again.active_producers()[0].current_txn_first_offset == 0


@pytest.mark.parametrize("after", [0, 1])
def test_bug_4_a_failed_transaction_index(log: PartitionLog, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """The log never has the marker without its index entry, nor the entry without its marker."""
    marker = build_marker(producer_id=1, producer_epoch=0, commit=False, coordinator_epoch=0, timestamp=NOW)
    write, calls = os.pwrite, 0

    def pwrite(fd: int, data: bytes, at: int) -> int:
        nonlocal calls
        calls += 1
        if calls > after:
            raise OSError(errno.ENOSPC, "full")
        return write(fd, data, at)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", pwrite)
        patch.setattr(os, "pwritev", failing(errno.ENOSPC))
        refused(log, marker, origin=COORDINATOR)
    log.append_as_leader(marker, 0, NOW, origin=COORDINATOR)
    assert log.aborted_transactions(0, 10) == [(1, 0)]
    again = open_log(Path(log.directory), clean=False)
    assert again.aborted_transactions(0, 10) == [(1, 0)]


def test_an_index_that_cannot_grow_is_done_without(log: PartitionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", failing(errno.ENOSPC))
        for _ in range(30):
            log.append_as_leader(batch(), 0, NOW)
    assert offsets_of(read_all(log)) == list(range(31))
    log.close()
    assert offsets_of(read_all(open_log(Path(log.directory)))) == list(range(31))


def test_a_failed_flush_ends_appending(log: PartitionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", in_this_thread(failing(errno.EIO), os.fsync))
        with pytest.raises(AppendError):
            log.flush()
    assert log.recovery_point == 0
    refused(log, batch())


def test_flush_messages_flushes_before_the_answer(log: PartitionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    log.update_config(LogConfig(flush_messages=3))
    points = []
    for _ in range(7):
        log.append_as_leader(batch(), 0, NOW)
        points.append(log.recovery_point)
    assert points == [0, 3, 3, 3, 6, 6, 6]


def test_a_truncation_voids_a_flush_under_way(log: PartitionLog) -> None:
    log.append_as_leader(batch(3), 0, NOW)
    task = log.begin_flush()
    assert task is not None
    log.truncate_to(1)
    log.append_as_leader(batch(3), 0, NOW)
    task.run()
    log.end_flush(task, NOW)
    assert log.recovery_point == 0


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="needs RLIMIT_FSIZE")
def test_a_full_disk_for_real(tmp_path: Path) -> None:
    """A file-size limit: the write that crosses it is short, the next writes fail; nothing of either stays."""
    program = f"""
import resource, signal, pathlib
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
from tests.log.builders import *
from kbroker.log.append_info import AppendError
log = open_log(pathlib.Path({str(tmp_path / "topic-0")!r}), config=LogConfig(index_interval_bytes=0))
done = refused = 0
for _ in range(200):
    try:
        log.append_as_leader(bytearray(batch(value=bytes(100))), 0, NOW)
        done += 1
    except AppendError:
        refused += 1
assert refused and done == log.log_end_offset == len(read_all(log)), (done, refused)
print(done)
"""
    environment = dict(os.environ, PYTHONPATH=os.getcwd())
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, env=environment, timeout=60
    )
    assert result.returncode == 0, result.stderr
    log = open_log(tmp_path / "topic-0", clean=False)
    assert log.log_end_offset == int(result.stdout)


@pytest.mark.parametrize("at", range(9))
def test_segments_that_cannot_be_renamed_now_go_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """A full disk may have no room for a longer file name, just when retention is to free some room."""
    config = LogConfig(segment_bytes=80, file_delete_delay_ms=0, retention_ms=1)
    log = open_log(tmp_path / "many-0", config=config)
    for _ in range(5):
        log.append_as_leader(batch(), 0, NOW)
    log.set_high_watermark(5)
    rename, calls = os.rename, 0

    def failing(old: str, new: str) -> None:
        nonlocal calls
        calls += 1
        if calls == at + 1:
            raise OSError(errno.ENOSPC, "full")
        rename(old, new)

    monkeypatch.setattr(os, "rename", failing)
    with pytest.raises(OSError, match="full"):
        delete_due(log, NOW + 10)
    assert log.size == sum(segment.size for segment in log.segments)
    delete_due(log, NOW + 10)
    purge(log, NOW + 10)
    assert log.segments.bases == [5]
    left = [name for name in os.listdir(log.directory) if not name.startswith(f"{5:020d}")]
    assert [name for name in left if "log" in name or "index" in name] == []


def test_a_flush_that_found_no_descriptors_has_lost_nothing(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0", config=LogConfig(segment_bytes=200))
    for _ in range(10):
        log.append_as_leader(batch(), 0, NOW)
    task = log.begin_flush()
    assert task is not None
    thread = threading.Thread(target=task.run)
    with no_descriptors():
        thread.start()
        thread.join()
    assert task.error is not None
    log.end_flush(task, NOW)
    assert not log.failed
    assert log.recovery_point == 0
    log.append_as_leader(batch(), 0, NOW)
    log.flush(NOW)
    assert log.recovery_point == log.log_end_offset
