"""The complete cleaner: a directory's logs, a worker process, and every event that can interrupt them."""

from __future__ import annotations

import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kbroker.log import checkpoints
from kbroker.log.cleaner.worker_pool import CleanerSettings, WorkerPool
from kbroker.log.directories.log_directory import LogDirectory
from kbroker.log.log_config import LogConfig
from kbroker.log.partition_log import PartitionLog
from tests.log.bombs import MINIMAL, sealed
from tests.log.builders import HOUR, NOW, read_all
from tests.log.cleaner.context import contents, put

COMPACT = LogConfig(cleanup_policy=("compact",), segment_bytes=20_000, file_delete_delay_ms=1)
DEADLINE_S = 60


class World:
    """A log directory, its cleaner, and a clock that advances with each wait."""

    def __init__(self, directory: Path, settings: CleanerSettings | None = None) -> None:
        self.directory = directory
        self.pool = WorkerPool(settings or CleanerSettings(backoff_ms=1000))
        self.now = NOW
        self.start()

    def start(self) -> None:
        self.logs = LogDirectory(str(self.directory), node_id=1, cleaner_pool=self.pool)
        self.logs.load(lambda _topic: COMPACT, self.now)

    def stop(self) -> None:
        self.logs.close(now_ms=self.now)
        self.pool.close()

    def log(self, topic: str = "t", config: LogConfig = COMPACT) -> PartitionLog:
        return self.logs.get_or_create(topic, 0, uuid.uuid4(), config, self.now)

    def until(self, condition: Callable[[], object]) -> None:
        """Advance the clock until `condition` is true."""
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, "nothing came of it"
            self.now += 500
            self.logs.tick(self.now)
            self.pool.tick(self.now)
            time.sleep(0.002)

    def until_clean(self, topic: str = "t") -> None:
        log = self.logs.logs[topic, 0]
        self.until(lambda: self.logs.cleaner.cleaned_to(topic, 0) == log.segments.active.base_offset and not self.busy)

    @property
    def busy(self) -> bool:
        return self.logs.cleaner.busy


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path / "data")
    yield world
    world.stop()
    assert world.pool.pids == []


def fill(log: PartitionLog, batches: int = 60, keys: int = 50) -> dict[bytes | None, bytes | None]:
    """Write batches of 20 records and return the last value of each key."""
    last: dict[bytes | None, bytes | None] = {}
    for index in range(batches):
        pairs = [(b"key-%d" % ((index * 20 + i) % keys), b"%d" % (index * 20 + i) + b"v" * 40) for i in range(20)]
        put(log, *pairs)
        last.update(pairs)
    return last


def seen(log: PartitionLog) -> dict[bytes | None, bytes | None]:
    return {record.key: record.value for record in read_all(log)}


def test_a_dirty_log_is_cleaned_and_that_is_remembered(world: World) -> None:
    log = world.log()
    expected = fill(log)
    size = log.size
    world.until_clean()
    assert seen(log) == expected
    assert log.size < size / 3
    done = world.logs.cleaner.done
    assert done.read_bytes > done.left_bytes > 0
    assert done.recopy == done.left_bytes / done.read_bytes
    assert done.seconds > 0
    assert done.checked_ms is not None
    end = log.segments.active.base_offset
    file = world.directory / "cleaner-offset-checkpoint"
    world.until(lambda: file.read_text() == f"0\n1\nt 0 {end}\n")  # a thread writes it
    world.until(lambda: not world.pool.pids)  # an idle worker ends
    world.stop()
    world.start()
    assert world.logs.cleaner.cleaned_to("t", 0) == end
    assert seen(world.logs.logs["t", 0]) == expected


def test_the_dirtiest_goes_first_and_others_wait_for_their_ratio(world: World) -> None:
    fill(world.log("half"), 100, 2000)
    world.until_clean("half")
    half, full = world.logs.logs["half", 0], world.log("full")
    clean_end = world.logs.cleaner.cleaned_to("half", 0)
    fill(full)
    fill(half, 1)
    half.roll(NOW)  # a few dirty records after many clean ones
    world.until_clean("full")
    world.until(lambda: True)
    assert world.logs.cleaner.cleaned_to("half", 0) == clean_end
    fill(half, 100)
    world.until_clean("half")


def test_only_compacted_topics_are_cleaned(world: World) -> None:
    log = world.log("plain", LogConfig(segment_bytes=20_000))
    fill(log)
    size = log.size
    fill(world.log())
    world.until_clean()
    assert log.size == size
    assert world.logs.cleaner.cleaned_to("plain", 0) is None


def test_disabled_or_without_threads_nothing_is_cleaned(tmp_path: Path) -> None:
    for index, settings in enumerate((CleanerSettings(enable=False), CleanerSettings(threads=0))):
        world = World(tmp_path / str(index), settings)
        fill(world.log())
        for _ in range(100):
            world.now += 60_000
            world.logs.tick(world.now)
        assert world.pool.pids == []
        world.stop()


def test_min_lag_protects_and_max_lag_demands(world: World) -> None:
    lazy = LogConfig(
        cleanup_policy=("compact",), segment_bytes=20_000, min_cleanable_dirty_ratio=1, max_compaction_lag_ms=HOUR
    )
    log = world.log(config=lazy)
    fill(log)
    for _ in range(20):
        world.now += 1000
        world.logs.tick(world.now)
    assert not world.pool.pids
    world.now = NOW + HOUR + 1000
    world.until_clean()
    assert len(contents(log)) < 1000

    young = world.log("young", LogConfig(cleanup_policy=("compact",), segment_bytes=20_000, min_compaction_lag_ms=HOUR))
    for _ in range(3):
        put(young, *[(b"k", b"v" * 100)] * 50, timestamp=NOW)
    young.roll(NOW)
    for _ in range(3):
        put(young, *[(b"k", b"v" * 100)] * 50, timestamp=NOW + HOUR - 1000)
    young.roll(NOW)
    world.until(lambda: world.logs.cleaner.cleaned_to("young", 0))
    assert world.logs.cleaner.cleaned_to("young", 0) == 150


def test_max_lag_closes_the_active_segment_in_time(world: World) -> None:
    log = world.log(config=LogConfig(cleanup_policy=("compact",), max_compaction_lag_ms=1000))
    put(log, (b"k", b"v"), timestamp=NOW)
    put(log, (b"k", b"v"), timestamp=NOW + 1001)
    assert log.segments.bases == [0, 1]


def test_a_worker_that_dies_is_replaced_and_nothing_is_lost(world: World) -> None:
    world.pool.settings.io_max_bytes_per_second = 100_000  # slow enough to be interrupted in the middle
    log = world.log()
    expected = fill(log)
    world.until(lambda: world.busy)
    (pid,) = world.pool.pids
    world.until(lambda: list(Path(log.directory).glob("*.cleaned")))
    os.kill(pid, signal.SIGKILL)
    world.until(lambda: not world.busy)
    assert seen(log) == expected
    assert not list(Path(log.directory).glob("*.cleaned"))
    world.pool.settings.io_max_bytes_per_second = float("inf")
    world.until_clean()
    assert seen(log) == expected
    assert pid not in world.pool.pids


def test_a_log_that_kills_workers_is_left_alone(world: World) -> None:
    world.pool.settings.io_max_bytes_per_second = 1000
    log = world.log()
    expected = fill(log)
    for _ in range(3):
        world.until(lambda: world.busy)
        os.kill(world.pool.pids[0], signal.SIGKILL)
        world.until(lambda: not world.busy)
    assert "died" in world.logs.cleaner.uncleanable["t", 0]
    world.pool.settings.io_max_bytes_per_second = float("inf")
    fill(world.log("other"))
    world.until_clean("other")
    assert seen(log) == expected


def test_a_corrupt_log_is_left_alone_and_others_go_on(world: World, caplog: pytest.LogCaptureFixture) -> None:
    log = world.log()
    fill(log)
    path = Path(log.segments[0].path())
    broken = bytearray(path.read_bytes())
    broken[-1] ^= 1
    path.write_bytes(broken)
    fill(world.log("other"))
    world.until_clean("other")
    world.until(lambda: world.logs.cleaner.uncleanable)
    assert "CRC" in world.logs.cleaner.uncleanable["t", 0]
    assert "CRC" in caplog.text
    assert path.read_bytes() == broken
    world.logs.delete_all([("t", 0)], world.now)
    assert world.logs.cleaner.uncleanable == {}


def test_batches_that_nobody_can_read_are_told(world: World, caplog: pytest.LogCaptureFixture) -> None:
    log = world.log(config=LogConfig(record_validation="header"))
    for _ in range(2):
        log.append_as_leader(sealed(MINIMAL * 2, 3, 0), 0, NOW)
    log.update_config(COMPACT)
    put(log, (b"k", b"v"))
    log.roll(NOW)
    put(log, (b"end", b""))
    world.until_clean()
    told = "t-0: compaction left 2 batches unchanged, because their records cannot be read: offset 0: "
    assert [each.levelname for each in caplog.records if each.getMessage().startswith(told)] == ["WARNING"]
    assert world.logs.cleaner.uncleanable == {}


def test_a_topic_that_is_deleted_and_made_again_while_it_is_cleaned(world: World) -> None:
    world.pool.settings.io_max_bytes_per_second = 100_000
    fill(world.log())
    world.until(lambda: world.busy)
    world.until(lambda: list((world.directory / "t-0").glob("*.cleaned")))
    world.logs.delete_all([("t", 0)], world.now)
    log = world.log()
    expected = fill(log, 1)
    world.until(lambda: not world.busy)
    assert seen(log) == expected
    assert not [path for path in Path(log.directory).iterdir() if path.suffix in (".cleaned", ".swap")]
    assert not world.logs.cleaner.cleaned_to("t", 0)


def test_a_truncation_while_it_is_cleaned_voids_the_work(world: World) -> None:
    world.pool.settings.io_max_bytes_per_second = 100_000
    log = world.log()
    fill(log)
    world.until(lambda: world.busy)
    log.truncate_to(100)
    log.set_high_watermark(100)
    kept = contents(log)
    world.until(lambda: not world.busy)
    assert contents(log) == kept
    assert not world.logs.cleaner.cleaned_to("t", 0)


def test_a_truncation_below_what_is_clean_begins_anew(world: World) -> None:
    log = world.log()
    fill(log)
    world.until_clean()
    log.truncate_to(40)
    log.set_high_watermark(40)
    expected = fill(log, 100)
    world.until_clean()
    assert seen(log) == expected
    clean = [record.key for _, record in contents(log) if record.offset < log.segments.active.base_offset]
    assert len(clean) == len(set(clean))


def test_delete_records_while_it_is_cleaned(world: World) -> None:
    world.pool.settings.io_max_bytes_per_second = 100_000
    log = world.log(config=LogConfig(cleanup_policy=("compact", "delete"), segment_bytes=20_000, retention_ms=-1))
    expected = fill(log)
    world.until(lambda: world.busy)
    log.advance_log_start(log.segments.bases[2], world.now)
    world.pool.settings.io_max_bytes_per_second = float("inf")
    world.logs.cleaner.change_rate()
    world.until_clean()
    assert seen(log) == expected
    assert log.log_start_offset == log.segments.bases[0] > 0


def test_compact_and_delete_together(world: World) -> None:
    both = LogConfig(cleanup_policy=("compact", "delete"), segment_bytes=20_000, retention_ms=10 * HOUR)
    log = world.log(config=both)
    expected = fill(log)
    world.until_clean()
    assert seen(log) == expected
    # Segments without any records are as old as their files.
    world.now = int(time.time() * 1000) + 11 * HOUR
    world.until(lambda: log.log_start_offset == log.log_end_offset)
    assert log.size == 0


def test_a_restart_in_the_middle(world: World) -> None:
    world.pool.settings.io_max_bytes_per_second = 100_000
    log = world.log()
    expected = fill(log)
    world.until(lambda: list(Path(log.directory).glob("*.cleaned")))
    world.stop()
    assert not list(Path(log.directory).glob("*.cleaned"))
    world.pool.settings.io_max_bytes_per_second = float("inf")
    world.start()
    log = world.logs.logs["t", 0]
    assert seen(log) == expected
    world.until_clean()
    assert seen(log) == expected


def test_the_throttle_holds_back_and_lets_go(world: World) -> None:
    world.pool.settings.io_max_bytes_per_second = 1.0
    log = world.log()
    expected = fill(log)
    world.until(lambda: world.busy)
    for _ in range(20):
        world.until(lambda: True)
    assert not world.logs.cleaner.cleaned_to("t", 0)
    world.pool.settings.io_max_bytes_per_second = float("inf")
    world.logs.cleaner.change_rate()
    world.until_clean()
    assert seen(log) == expected


def test_checkpoint_entries_of_logs_that_are_gone_are_dropped_and_shorter_ones_are_dirty(world: World) -> None:
    log = world.log()
    fill(log, 1)
    end = log.log_end_offset
    world.stop()
    path = world.directory / "cleaner-offset-checkpoint"
    path.write_text(f"0\n2\nt 0 {end + 1}\ngone 0 5\n")
    world.start()
    assert not world.logs.cleaner.cleaned_to("t", 0)
    assert path.read_text() == "0\n1\nt 0 0\n"


def test_a_checkpoint_that_cannot_be_written_only_means_to_clean_again(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log = world.log()
    expected = fill(log)
    with monkeypatch.context() as patch:

        def failing(path: str, lines: list[str], *, sync: bool) -> None:
            raise OSError(28, "No space left on device")

        patch.setattr(checkpoints, "write_lines", failing)
        world.logs.cleaner.tick(world.now)
        deadline = time.monotonic() + DEADLINE_S
        while world.busy or world.logs.cleaner.cleaned_to("t", 0) is None:
            assert time.monotonic() < deadline
            world.now += 500
            world.logs.cleaner.tick(world.now)
            time.sleep(0.002)
        world.logs._flusher.close(world.now)
    assert "No space left" in caplog.text
    assert seen(log) == expected
    world.stop()
    world.start()
    assert not world.logs.cleaner.cleaned_to("t", 0)
    world.until_clean()
    assert seen(world.logs.logs["t", 0]) == expected


def test_the_loop_waits_for_no_checkpoint_and_no_hole_comes_before_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = world.log()
    expected = fill(log)
    path, released = str(world.directory / checkpoints.CLEANER_OFFSETS), threading.Event()
    write, threads = checkpoints.write_lines, []

    def waiting(name: str, lines: list[str], *, sync: bool = True) -> None:
        if name == path:
            threads.append(threading.get_ident())
            assert released.wait(DEADLINE_S)
        write(name, lines, sync=sync)

    monkeypatch.setattr(checkpoints, "write_lines", waiting)
    before = list(log.segments)
    world.until(lambda: any(name.endswith(".log.cleaned") for name in os.listdir(log.directory)))
    for _ in range(20):
        world.logs.cleaner.tick(world.now)
        time.sleep(0.002)  # the worker's results arrive with a tick
    assert list(log.segments) == before
    released.set()
    world.until_clean()
    assert seen(log) == expected
    assert threading.get_ident() not in threads
    assert len(threads) >= 1
