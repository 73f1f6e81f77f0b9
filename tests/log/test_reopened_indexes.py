"""Indexes that are closed for a while, and then reopened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kbroker.log.log_config import LogConfig
from kbroker.log.segment import segment_indexes
from tests.log.builders import NOW, batch, committed, first_at, largest, offsets_of, open_log, read_all

CONFIG = LogConfig(index_interval_bytes=200)


@pytest.mark.parametrize("timestamp", [NOW, -1])
def test_a_log_of_one_timestamp_is_not_read_again_whenever_its_indexes_are_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, timestamp: int
) -> None:
    """No entry of the time index is near the log's end, from which the index could be completed."""
    log = open_log(tmp_path / "topic-0", config=CONFIG)
    for _ in range(500):
        log.append_as_leader(batch(timestamp=timestamp), 0, NOW)
    log.roll(NOW)
    log.append_as_leader(batch(timestamp=timestamp), 0, NOW)
    log.close()
    log = committed(open_log(tmp_path / "topic-0", config=CONFIG))
    seen = 0
    scan = segment_indexes.scan_headers

    def counting(*arguments: Any) -> Any:
        nonlocal seen
        for found in scan(*arguments):
            seen += 1
            yield found

    monkeypatch.setattr(segment_indexes, "scan_headers", counting)
    assert log.read(300, 100, 501, min_one=True).size
    assert seen >= 500
    seen = 0
    for _ in range(3):
        log.segments.release_idle(force=True)
        assert log.read(300, 100, 501, min_one=True).size
        assert log.segments[0].max_timestamp == timestamp
    assert seen == 0
    assert largest(log) == (0, timestamp, 0)
    log.close()


def test_what_is_written_while_they_are_closed_is_found(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0", config=CONFIG)
    log.append_as_leader(batch(), 0, NOW)
    log.close()
    log = open_log(tmp_path / "topic-0", config=CONFIG)
    for number in range(60):
        log.append_as_leader(batch(timestamp=NOW + number), 0, NOW)
        log.segments.release_idle(force=True)
        assert first_at(log, NOW + number) == (number + 1 if number else 0, NOW + number, 0)
    log.truncate_to(31)
    log.segments.release_idle(force=True)
    assert first_at(log, NOW + 29) == (30, NOW + 29, 0)
    assert first_at(log, NOW + 30) is None
    assert offsets_of(read_all(committed(log))) == list(range(31))
    log.close()


def test_a_batch_before_the_newest_entry_that_claims_to_be_newer_does_not_disorder_the_index(tmp_path: Path) -> None:
    """Otherwise the largest timestamp would have a smaller offset than the entry before it."""
    log = open_log(tmp_path / "topic-0", config=CONFIG)
    for number in range(2):
        log.append_as_leader(batch(timestamp=NOW + number), 0, NOW)
    path = Path(log.segments.active.path())
    log.close()
    content = bytearray(path.read_bytes())
    content[36] ^= 2  # of the first batch's largest timestamp, ms since 1970
    path.write_bytes(content)
    log = open_log(tmp_path / "topic-0", config=CONFIG)
    for _ in range(5):
        log.append_as_leader(batch(timestamp=NOW + 9), 0, NOW)
    _, times = log.segments.active.indexes.open()
    assert times.count == 1
    assert times.in_order()
