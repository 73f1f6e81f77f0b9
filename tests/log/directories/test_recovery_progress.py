"""Progress messages during a long recovery."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from kbroker.log.directories.recovery_progress import RecoveryProgress, bytes_to_recover
from tests.log.builders import NOW, batch, open_log


def test_percent_every_few_seconds(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    progress = RecoveryProgress("data", clock=lambda: now)
    progress.begin(4_000_000_000, 3)
    caplog.clear()  # other tests leave the level low for the line about its beginning
    with caplog.at_level(logging.INFO):
        for second in range(12):
            now = float(second)
            progress.add(250_000_000)
        progress.end()
    assert [record.getMessage() for record in caplog.records] == [
        "recovering data: 37 % of 4.0 GB, 3 partitions left",
        "recovering data: 68 % of 4.0 GB, 3 partitions left",
        "recovered 3.0 GB in data in 11 s",
    ]


def test_a_short_recovery_says_only_that_it_is_one(caplog: pytest.LogCaptureFixture) -> None:
    progress = RecoveryProgress("data", clock=lambda: 0.0)
    with caplog.at_level(logging.INFO):
        progress.begin(2_500_000, 7)
        progress.add(2_500_000)
        progress.end()
    assert [record.getMessage() for record in caplog.records] == [
        "data was not closed cleanly: up to 2500000 bytes in 7 partition(s) are read and checked"
    ]


def test_a_start_after_a_clean_stop_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        progress = RecoveryProgress("data", clock=lambda: 0.0)
        progress.begin(0, 7)
        progress.end()
    assert caplog.records == []


def test_bytes_beyond_the_recovery_point(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    sizes = []
    for _ in range(3):
        log.append_as_leader(batch(10), 0, NOW)
        sizes.append(log.segments.active.size)
        log.roll(NOW)
    told: list[int] = []
    del log
    directory = str(tmp_path / "t-0")
    assert bytes_to_recover([(directory, 0)]) == sum(sizes)
    assert bytes_to_recover([(directory, 15)]) == sum(sizes[1:])
    open_log(tmp_path / "t-0", clean=False, recovery_point=15, progress=told.append)
    assert sum(told) == sum(sizes[1:])
