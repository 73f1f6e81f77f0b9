"""KBROKER_VERIFY=1: a log that breaks an invariant reports it; without the setting the checks cost nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker.log.directories.log_directory import LogDirectory
from kbroker.log.invariants import VerifiedLog, log_class
from kbroker.log.log_config import LogConfig
from kbroker.log.partition_log import PartitionLog
from tests.log.builders import NOW, batch, committed, delete_due, open_log

SMALL = LogConfig(segment_bytes=1500, index_interval_bytes=150)


def filled(directory: Path) -> PartitionLog:
    log = open_log(directory, config=SMALL)
    for index in range(60):
        log.append_as_leader(batch(2, timestamp=NOW + index), index // 20, NOW)
    return committed(log)


def test_tests_run_with_logs_that_check_themselves(tmp_path: Path) -> None:
    assert log_class() is VerifiedLog
    logs = LogDirectory(str(tmp_path / "data"), node_id=1)
    logs.load(lambda _topic: SMALL, NOW)
    assert isinstance(logs.get_or_create("topic", 0, None, SMALL), VerifiedLog)
    logs.close()
    logs.load(lambda _topic: SMALL, NOW)
    assert isinstance(logs.logs["topic", 0], VerifiedLog)
    logs.close()


def test_without_the_variable_a_log_is_a_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("0", None):
        monkeypatch.setenv("KBROKER_VERIFY", value) if value else monkeypatch.delenv("KBROKER_VERIFY")
        assert log_class() is PartitionLog
    log = open_log(tmp_path / "topic-0")
    called = []

    def profile(frame: object, event: str, _argument: object) -> None:
        if event == "call":
            called.append(frame.f_code.co_filename)  # type: ignore[attr-defined]

    records = [bytearray(batch(2)) for _ in range(20)]
    sys.setprofile(profile)
    try:
        for each in records:
            log.append_as_leader(each, 0, NOW)
    finally:
        sys.setprofile(None)
    assert called
    assert not [name for name in called if name.endswith("invariants.py")]


def grown_file(log: PartitionLog) -> None:
    with open(log.segments.active.path(), "ab") as file:
        file.write(b"x" * 1000)


def unsorted_index(log: PartitionLog) -> None:
    log.segments.active._checked_indexes()[0].put(0, 0)


def moved_watermark(log: PartitionLog) -> None:
    log.high_watermark = log.log_end_offset + 100


def moved_start(log: PartitionLog) -> None:
    log.log_start_offset = log.log_end_offset + 100


def shortened_segment(log: PartitionLog) -> None:
    os.truncate(log.segments[0].path(), 10)


def lost_base(log: PartitionLog) -> None:
    log.segments.bases[0] = 1


AT_THE_END = [grown_file, unsorted_index, moved_watermark, moved_start]


@pytest.mark.parametrize("harm", AT_THE_END, ids=lambda harm: harm.__name__)
def test_an_append_notices(tmp_path: Path, harm: Callable[[PartitionLog], None]) -> None:
    log = filled(tmp_path / "topic-0")
    log.append_as_leader(batch(1), 2, NOW)
    harm(log)
    with pytest.raises(AssertionError):
        log.append_as_leader(batch(1), 2, NOW)


@pytest.mark.parametrize("harm", [shortened_segment, lost_base], ids=lambda harm: harm.__name__)
def test_work_on_segments_notices(tmp_path: Path, harm: Callable[[PartitionLog], None]) -> None:
    log = filled(tmp_path / "topic-0")
    harm(log)
    with pytest.raises(AssertionError):
        delete_due(log, NOW)
    with pytest.raises(AssertionError):
        log.roll(NOW)
