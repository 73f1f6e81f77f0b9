"""Reading: where it starts, where it ends, and which records stay readable."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from kbroker.log.log_config import LogConfig
from kbroker.log.partition_log import PartitionLog
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.records import parse_header
from tests.log.builders import NOW, batch, committed, first_at, largest, offsets_of, open_log, purge, read_all

SMALL = LogConfig(segment_bytes=2000, index_interval_bytes=200)


def filled(directory: Path, batches: int = 100, per_batch: int = 3) -> PartitionLog:
    log = open_log(directory, config=SMALL)
    for index in range(batches):
        log.append_as_leader(batch(per_batch, timestamp=NOW + index * 10), 0, NOW)
    return committed(log)


def test_every_start_offset_begins_with_its_batch(tmp_path: Path) -> None:
    log = filled(tmp_path / "topic-0")
    assert len(log.segments) > 3
    for offset in range(300):
        piece = log.read(offset, 1, 300, min_one=True)
        header = parse_header(piece.view())
        assert header.base_offset <= offset <= header.last_offset
        assert len(piece) == header.size
        assert log.read(offset, header.size - 1, 300, min_one=False).empty
    assert offsets_of(read_all(log)) == list(range(300))


def test_bounds(tmp_path: Path) -> None:
    log = filled(tmp_path / "topic-0")
    for upper in range(301):
        assert offsets_of(read_all(log, 0, upper)) == list(range(upper // 3 * 3)), "whole batches below the bound"
    assert log.read(300, 100, 300, min_one=True).empty
    assert log.read(250, 100, 200, min_one=True).empty
    for offset in (-1, 301):
        with pytest.raises(ApiError) as caught:
            log.read(offset, 100, 300, min_one=True)
        assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    log.advance_log_start(100)
    with pytest.raises(ApiError):
        log.read(99, 100, 300, min_one=True)
    assert offsets_of(read_all(log, 100)) == list(range(100, 300))


@pytest.mark.parametrize("damage", [(0, 8), (8, 12), (16, 17), (23, 27)], ids=["offset", "length", "magic", "delta"])
def test_a_batch_whose_header_is_damaged_while_the_broker_runs_is_not_served(
    tmp_path: Path, damage: tuple[int, int]
) -> None:
    """The position of the newest batches is known without reading the file."""
    log = committed(filled(tmp_path / "topic-0", 3))
    segment = log.segments.active
    found = segment.find(4)
    assert found is not None
    os.pwrite(segment.handle.fd, b"\x7f" * (damage[1] - damage[0]), found[0] + damage[0])
    with pytest.raises(ApiError) as caught:
        log.read(4, 100, 9, min_one=True)
    assert caught.value.code == ErrorCode.CORRUPT_MESSAGE
    assert offsets_of(read_all(log, 6)) == [6, 7, 8]


def test_damage_is_told_of_once_a_minute_and_as_long_as_it_is_part_of_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = filled(tmp_path / "topic-0", 3)
    assert log.damaged_at is None
    for offset, after_ms in ((3, 0), (4, 1), (3, 59_999), (3, 60_000)):
        log.report_damage(offset, NOW + after_ms)
    assert [record.getMessage().split(":")[1] for record in caplog.records] == [" the log is damaged at offset 3"] * 2
    assert log.damaged_at == 3
    log.advance_log_start(4)
    assert log.damaged_at is None


def test_max_bytes_may_cut_a_batch_off(tmp_path: Path) -> None:
    log = filled(tmp_path / "topic-0")
    size = len(log.read(0, 1, 300, min_one=True))
    assert len(log.read(0, size * 2 + 7, 300, min_one=False)) == size * 2 + 7
    assert offsets_of(read_all(log, max_bytes=size * 2 + 7)) == list(range(300))
    assert log.read(0, 0, 300, min_one=False).empty


def test_a_slice_outlives_its_segment(tmp_path: Path) -> None:
    log = filled(tmp_path / "topic-0")
    piece = log.read(0, 1 << 20, 300, min_one=True)
    before = bytes(piece.view())
    log.update_config(replace(log.config, file_delete_delay_ms=0))
    log.advance_log_start(300)
    purge(log, NOW)
    log.segments.release_idle(force=False)
    log.close()
    assert bytes(piece.view()) == before
    assert os.pread(piece.fd, len(piece), piece.position) == before
    fd = piece.fd
    del piece
    with pytest.raises(OSError):
        os.fstat(fd)


def test_timestamps(tmp_path: Path) -> None:
    log = filled(tmp_path / "topic-0")
    assert first_at(log, 0) == (0, NOW, 0)
    for index in (0, 1, 50, 99):
        for delta in range(3):
            wanted = NOW + index * 10 + delta
            assert first_at(log, wanted) == (index * 3 + delta, wanted, 0)
        after = (index * 3 + 3, NOW + index * 10 + 10, 0) if index < 99 else None
        assert first_at(log, NOW + index * 10 + 3) == after
    assert largest(log) == (299, NOW + 992, 0)
    log.advance_log_start(31)
    assert first_at(log, 0) == (31, NOW + 101, 0)


def test_timestamps_out_of_order(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0", config=SMALL)
    times = [5, 100, 7, 100, 8, 9, 200, 1] * 10
    for time in times:
        log.append_as_leader(batch(timestamp=NOW + time), 0, NOW)
    for wanted in (1, 6, 99, 101, 200, 201):
        first = next((i for i, time in enumerate(times) if time >= wanted), None)
        found = first_at(log, NOW + wanted)
        assert (None if found is None else found[0]) == first
    assert largest(log) == (6, NOW + 200, 0)


def test_nothing_has_a_timestamp(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0")
    assert largest(log) is None
    assert first_at(log, 0) is None
    log.append_as_leader(batch(timestamp=-1), 0, NOW)
    assert largest(log) == (0, -1, 0)
    assert first_at(log, 0) is None


def test_an_idle_log_holds_no_descriptor(tmp_path: Path) -> None:
    log = filled(tmp_path / "topic-0")
    read_all(log)
    for _ in range(3):
        log.segments.release_idle(force=False)
    assert all(segment._handle is None and not segment.indexes.is_open for segment in log.segments)
    assert offsets_of(read_all(log)) == list(range(300))
    log.append_as_leader(batch(), 0, NOW)
    for _ in range(50):
        log.append_as_leader(batch(), 0, NOW)
    assert offsets_of(read_all(log)) == list(range(351))
