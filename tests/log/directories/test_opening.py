"""Opening the partitions of a directory: which entries are partitions, and several are opened in parallel."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kbroker.log.directories import log_directory, recovery_progress
from kbroker.log.directories.log_directory import LogDirectory
from kbroker.log.directories.partition_dir_names import entries_of
from kbroker.log.directories.recovery_progress import RecoveryStopped, run_all
from kbroker.log.log_config import LogConfig
from tests.log.builders import NOW, batch, offsets_of, read_all

PARTITIONS = 6


def test_a_recovery_that_is_stopped_leaves_everything_for_the_next(tmp_path: Path) -> None:
    config = LogConfig(segment_bytes=2000)
    logs = LogDirectory(str(tmp_path), node_id=1, cluster_id="c" * 22)
    logs.load(lambda _topic: config, NOW)
    log = logs.get_or_create("t", 0, None, config)
    for _ in range(20):
        log.append_as_leader(batch(10, value=b"v" * 100), 0, NOW)
    log.set_high_watermark(200)
    logs.close(clean=False)
    stopped = LogDirectory(str(tmp_path), node_id=1, cluster_id="c" * 22)
    stopped.recovery.stop()
    with pytest.raises(RecoveryStopped):
        stopped.load(lambda _topic: config, NOW)
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    again = LogDirectory(str(tmp_path), node_id=1, cluster_id="c" * 22)
    again.load(lambda _topic: config, NOW)
    assert offsets_of(read_all(again.logs["t", 0])) == list(range(200))
    again.close()


def test_entries_by_their_names(tmp_path: Path) -> None:
    for name in ("b-1", "a-0", "a-b-10", "a-0.5f-delete", "a-1.5f-future", "x-.5f-future", "nothing", "-1", "a-٣"):
        (tmp_path / name).mkdir()
    (tmp_path / "file-0").touch()
    found = entries_of(str(tmp_path))
    assert [key for key, _ in found.partitions] == [("a", 0), ("a-b", 10), ("b", 1)]
    assert [key for key, _ in found.futures] == [("a", 1)]
    assert [Path(path).name for path in found.deleted] == ["a-0.5f-delete"]


@pytest.mark.parametrize("threads", [1, 3])
def test_results_come_in_order(threads: int) -> None:
    assert list(run_all([(n, lambda n=n: n * n) for n in range(50)], threads)) == [(n, n * n) for n in range(50)]


def test_tasks_run_at_the_same_time() -> None:
    meeting = threading.Barrier(3)
    list(run_all([(n, lambda: meeting.wait(30)) for n in range(3)], 3))


@pytest.mark.parametrize("threads", [1, 2])
def test_the_first_failure_is_raised_and_ends_what_has_not_begun(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    begun, cancelled = [], threading.Event()

    class Pool(ThreadPoolExecutor):
        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            super().shutdown(wait=False, cancel_futures=cancel_futures)
            cancelled.set()
            super().shutdown(wait=wait)

    def task(number: int) -> None:
        begun.append(number)
        if number == 0:
            raise OSError(f"number {number}")
        assert cancelled.wait(60)

    monkeypatch.setattr(recovery_progress, "ThreadPoolExecutor", Pool)
    with pytest.raises(OSError, match="number 0"):
        list(run_all([(n, lambda n=n: task(n)) for n in range(1000)], threads))
    assert len(begun) <= threads + 1


@pytest.mark.parametrize("threads", [1, 4])
def test_a_recovery_by_threads_is_a_recovery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    monkeypatch.setattr(log_directory, "WORTH_THREADS", 0)
    logs = LogDirectory(str(tmp_path), node_id=1, cluster_id="c" * 22)
    logs.load(lambda _topic: LogConfig(segment_bytes=2000), NOW)
    for number in range(PARTITIONS):
        log = logs.get_or_create("t", number, None, LogConfig(segment_bytes=2000))
        for _ in range(number + 1):
            log.append_as_leader(batch(10, value=b"v" * 100), 0, NOW)
        log.set_high_watermark(log.log_end_offset)
        with open(log.segments.active.path(), "ab") as file:
            file.write(b"half a batch")
    logs.close(clean=False)
    again = LogDirectory(str(tmp_path), node_id=1, cluster_id="c" * 22)
    again.recovery_threads = threads
    again.load(lambda _topic: LogConfig(segment_bytes=2000), NOW)
    assert list(again.logs) == [("t", number) for number in range(PARTITIONS)]
    for (_, number), log in again.logs.items():
        assert offsets_of(read_all(log)) == list(range(10 * (number + 1)))
    assert (again.recovery.logs, again.recovery.percent) == (0, 100)
    again.close()
