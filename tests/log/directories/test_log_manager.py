"""Several log directories that are full, have failed, or contain an unfinished move."""

from __future__ import annotations

import errno
import os
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from kbroker.log import checkpoints
from kbroker.log.directories.dir_lock import LogDirError
from kbroker.log.directories.log_directory import LogDirectory
from kbroker.log.directories.log_manager import LogManager
from kbroker.log.log_config import LogConfig
from kbroker.log.partition_log import PartitionLog
from kbroker.protocol.errors import ApiError, ErrorCode
from tests.log.builders import NOW, batch, committed, offsets_of, read_all

KEY = ("topic", 0)
TOPIC_ID = uuid.UUID(int=7)
DEADLINE = 60.0


def new_dirs(tmp_path: Path, **kw: int) -> LogManager:
    """Return three opened directories that are not loaded; the first one contains the metadata."""
    managers = [LogDirectory(str(tmp_path / name), node_id=0, cluster_id="cluster", **kw) for name in ("a", "b", "c")]
    dirs = LogManager(managers, managers[0].directory)
    dirs.open()
    return dirs


def load(dirs: LogManager) -> LogManager:
    dirs.load(lambda _topic: LogConfig(), NOW, lambda _topic, _partition, _id: True)
    return dirs


def created_in(dirs: LogManager, manager: LogDirectory) -> PartitionLog:
    """Create the partition, with three records, in one of the directories."""
    with pytest.raises(ApiError):
        dirs.move(*KEY, manager.directory)
    log = dirs.get_or_create(*KEY, TOPIC_ID, LogConfig())
    assert dirs.home(KEY) is manager
    append(log)
    return log


def append(log: PartitionLog) -> None:
    log.append_as_leader(batch(3), 0, NOW)
    committed(log)


def until(dirs: LogManager, done: Callable[[], bool]) -> None:
    """Advance the moves until a condition is true; fails after a generous time."""
    end = time.monotonic() + DEADLINE
    while not done():
        assert time.monotonic() < end, "the move does not end"
        dirs.advance_moves(NOW)
        time.sleep(0.001)  # the copying thread runs


def movers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("kbroker-move")]


def refuse_writes_in(monkeypatch: pytest.MonkeyPatch, directory: str, number: int) -> None:
    """Make the writing of a directory's checkpoints fail, as on a full or a broken disk."""
    write = checkpoints.write_lines

    def refusing(path: str, lines: list[str], *, sync: bool = True) -> None:
        if os.path.dirname(path) == directory:
            raise OSError(number, os.strerror(number))
        write(path, lines, sync=sync)

    monkeypatch.setattr(checkpoints, "write_lines", refusing)


def test_a_partition_leaves_a_full_disk_and_keeps_what_comes_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dirs = load(new_dirs(tmp_path))
    _, full, target = dirs.managers
    serving = {KEY: created_in(dirs, full)}
    dirs.events = SimpleNamespace(log_moved=serving.__setitem__, move_ready=lambda: None)  # type: ignore[assignment]
    dirs.move(*KEY, target.directory)
    refuse_writes_in(monkeypatch, full.directory, errno.ENOSPC)
    until(dirs, lambda: not dirs.moves)
    append(serving[KEY])
    monkeypatch.undo()
    dirs.close(now_ms=NOW)

    again = load(new_dirs(tmp_path))
    log = again.home(KEY)
    assert log is not None
    assert offsets_of(read_all(log.logs[KEY])) == list(range(6))
    again.close()


def test_a_move_takes_no_record_back_that_consumers_could_read(tmp_path: Path) -> None:
    dirs = load(new_dirs(tmp_path))
    source, target, _ = dirs.managers
    serving = {KEY: created_in(dirs, source)}
    dirs.events = SimpleNamespace(log_moved=serving.__setitem__, move_ready=lambda: None)  # type: ignore[assignment]
    stamping = LogConfig(message_timestamp_type="LogAppendTime")
    serving[KEY].update_config(stamping)
    append(serving[KEY])
    serving[KEY].update_config(replace(stamping, delivery_delay_ms=1000))
    append(serving[KEY])
    assert serving[KEY].mature_end(NOW) == 6
    dirs.move(*KEY, target.directory)
    until(dirs, lambda: not dirs.moves)
    assert dirs.home(KEY) is target
    assert [serving[KEY].mature_end(NOW + ms) for ms in (0, 999, 1000)] == [6, 6, 9]
    dirs.close(now_ms=NOW)


def test_a_new_partition_goes_where_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new partition does not go to a full directory, even if that is the emptiest one or the intended one."""
    dirs = load(new_dirs(tmp_path))
    full = dirs.managers[1]
    with pytest.raises(ApiError):
        dirs.move(*KEY, full.directory)
    make = os.makedirs

    def making(path: str, **more: bool) -> None:
        if path.startswith(f"{full.directory}/"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        make(path, **more)

    monkeypatch.setattr(os, "makedirs", making)
    with pytest.raises(OSError, match="No space"):
        dirs.get_or_create(*KEY, TOPIC_ID, LogConfig())
    dirs.get_or_create(*KEY, TOPIC_ID, LogConfig())  # as a client retries it
    for number in range(1, 6):
        dirs.get_or_create("topic", number, TOPIC_ID, LogConfig())
    assert [len(manager.logs) for manager in dirs.managers] == [3, 0, 3]
    dirs.close()


def test_a_move_to_a_disk_that_is_full_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dirs = load(new_dirs(tmp_path))
    target, source, _ = dirs.managers
    created_in(dirs, source)
    dirs.move(*KEY, target.directory)
    refuse_writes_in(monkeypatch, target.directory, errno.ENOSPC)
    until(dirs, lambda: not dirs.moves)
    assert dirs.home(KEY) is source
    assert not target.logs
    assert not target.failure
    monkeypatch.undo()
    dirs.tick(NOW + 1)
    append(source.logs[KEY])
    dirs.close(now_ms=NOW)
    again = load(new_dirs(tmp_path))
    assert offsets_of(read_all(again.managers[1].logs[KEY])) == list(range(6))
    again.close()


def test_a_move_that_cannot_begin_again_does_not_keep_the_broker_from_its_start(tmp_path: Path) -> None:
    dirs = load(new_dirs(tmp_path))
    _, source, target = dirs.managers
    created_in(dirs, source)
    dirs.close(now_ms=NOW)
    (Path(target.directory) / f"topic-0.{uuid.UUID(int=1).hex}-future").mkdir()

    again = new_dirs(tmp_path)
    again.cordoned = frozenset([target.directory])
    load(again)
    assert not again.moves
    assert offsets_of(read_all(again.managers[1].logs[KEY])) == [0, 1, 2]
    again.close()


def test_a_directory_that_fails_in_a_tick_keeps_its_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dirs = load(new_dirs(tmp_path, log_start_interval_ms=1000, retention_check_interval_ms=1000))
    failing = dirs.managers[1]
    log = created_in(dirs, failing)
    log.advance_log_start(2, NOW)
    dirs.save_log_starts()

    def fail(_log: PartitionLog, _now_ms: int) -> int:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(PartitionLog, "delete_old_segments", fail)
    dirs.tick(NOW + 2000)
    assert failing.failure
    dirs.close()
    assert checkpoints.read_offsets(f"{failing.directory}/{checkpoints.LOG_STARTS}") == {KEY: 2}


def test_a_broker_that_cannot_go_on_deletes_nothing_and_says_so(tmp_path: Path) -> None:
    """Otherwise the caller would believe that a later topic with this name finds nothing here at the next start."""
    dirs = load(new_dirs(tmp_path))
    fatal: list[str] = []
    dirs.events = SimpleNamespace(logs_failed=fatal.append)  # type: ignore[assignment]
    log = created_in(dirs, dirs.metadata)
    dirs.metadata.report(OSError(errno.EIO, "broken"))
    assert fatal
    with pytest.raises(OSError, match="broken"):
        dirs.delete_all([KEY], NOW)
    assert KEY in dirs
    assert os.path.isdir(log.directory)
    dirs.close()


@pytest.mark.parametrize("when", ["opened", "loaded"])
def test_a_broker_of_a_cluster_does_not_start_without_any_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """As with Apache Kafka: a broker that answers for replicas that it cannot have would keep them out of sync."""
    managers = [LogDirectory(str(tmp_path / name), node_id=0, cluster_id="cluster") for name in ("a", "b")]
    dirs = LogManager(managers, managers[0].directory, keeps_metadata=False)

    def fail(*_args: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    if when == "opened":
        monkeypatch.setattr(LogDirectory, "open", fail)
        with pytest.raises(LogDirError, match="no space left"):
            dirs.open()
        return
    dirs.open()
    monkeypatch.setattr(managers[1], "load", fail)
    load(dirs)
    assert dirs.online == managers[:1]
    monkeypatch.setattr(managers[0], "load", fail)
    with pytest.raises(LogDirError, match="no space left"):
        load(dirs)
    dirs.close(clean=False)


def test_a_rate_of_zero_holds_a_move_up_and_nothing_else(tmp_path: Path) -> None:
    dirs = load(new_dirs(tmp_path))
    _, source, target = dirs.managers
    created_in(dirs, source)
    dirs.move_bytes_per_second = 0
    dirs.move(*KEY, target.directory)
    move = dirs.moves[KEY]
    end = time.monotonic() + DEADLINE
    copy = Path(move.path) / f"{0:020d}.log"
    while not (copy.exists() and copy.stat().st_size) and time.monotonic() < end:
        time.sleep(0.001)
    for _ in range(100):
        dirs.advance_moves(NOW)  # must not raise
        time.sleep(0.001)
    assert dirs.moves == {KEY: move}
    dirs.move(*KEY, source.directory)  # cancels the move
    assert not dirs.moves
    dirs.close()


def test_wishes_for_partitions_that_never_come_are_bounded(tmp_path: Path) -> None:
    dirs = load(new_dirs(tmp_path))
    for number in range(30_000):
        with pytest.raises(ApiError) as caught:
            dirs.move(f"never-{number}", 0, dirs.managers[1].directory)
        assert caught.value.code == ErrorCode.REPLICA_NOT_AVAILABLE
    assert len(dirs._preferred) <= 10_000
    dirs.close()


def test_many_moves_share_one_thread(tmp_path: Path) -> None:
    dirs = load(new_dirs(tmp_path))
    _, source, target = dirs.managers
    for partition in range(20):
        with pytest.raises(ApiError):
            dirs.move("many", partition, source.directory)
        append(dirs.get_or_create("many", partition, TOPIC_ID, LogConfig()))
    for partition in range(20):
        dirs.move("many", partition, target.directory)
    assert len(movers()) <= 1
    until(dirs, lambda: not dirs.moves)
    assert len(target.logs) == 20
    dirs.close()
    assert not movers()


def test_a_move_sets_files_of_another_topic_aside(tmp_path: Path) -> None:
    dirs = load(new_dirs(tmp_path))
    _, source, target = dirs.managers
    created_in(dirs, source)
    left = Path(target.directory) / "topic-0"
    left.mkdir()
    (left / "old").touch()
    dirs.move(*KEY, target.directory)
    until(dirs, lambda: not dirs.moves)
    assert not target.failure
    assert dirs.home(KEY) is target
    assert [path.name for path in Path(target.directory).glob("*-stray/*")] == ["old"]
    dirs.close()


def test_a_source_that_cannot_be_read_is_not_the_targets_fault(tmp_path: Path) -> None:
    dirs = load(new_dirs(tmp_path))
    _, source, target = dirs.managers
    log = created_in(dirs, source)
    os.truncate(log.segments.active.path(), 50)
    dirs.move(*KEY, target.directory)
    until(dirs, lambda: not dirs.moves)
    assert dirs.home(KEY) is source
    assert not target.failure
    dirs.close()


def test_a_move_that_fails_at_its_end_leaves_the_target_without_a_note_of_its_cleaning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dirs = load(new_dirs(tmp_path))
    source, target = dirs.managers[1:]
    created_in(dirs, source)
    source.cleaner.note(KEY, 2)
    rename = os.rename

    def refusing(old: str, new: str) -> None:
        if old.endswith("-future"):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        rename(old, new)

    monkeypatch.setattr(os, "rename", refusing)
    dirs.move(*KEY, target.directory)
    until(dirs, lambda: not dirs.moves)
    assert dirs.home(KEY) is source
    assert source.cleaner.cleaned_to(*KEY) == 2
    assert target.cleaner.cleaned_to(*KEY) is None, "a new partition of that name is dirty from its start"
    dirs.close()


def test_a_log_that_has_moved_takes_large_snapshots_in_pieces(tmp_path: Path) -> None:
    dirs = load(new_dirs(tmp_path))
    created_in(dirs, dirs.managers[1])
    dirs.move(*KEY, dirs.managers[2].directory)
    until(dirs, lambda: dirs.home(KEY) is dirs.managers[2])
    log = dirs.managers[2].logs[KEY]
    for producer_id in range(1000):
        records = batch(producer_id=producer_id, producer_epoch=0, base_sequence=0)
        log.append_as_leader(records, 0, NOW)
    log.roll(NOW)
    path = Path(log.directory) / f"{log.log_end_offset:020d}.snapshot"
    assert not path.exists()
    dirs.tick(NOW)
    assert path.exists()
    dirs.close()
