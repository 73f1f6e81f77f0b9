"""S13: when a segment is rolled, and which segments are deleted when."""

from __future__ import annotations

import os
import weakref
from pathlib import Path

import pytest

from kbroker.log.log_config import LogConfig
from kbroker.log.partition_log import PartitionLog
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.records import parse_header
from tests.log.builders import (
    HOUR,
    NOW,
    batch,
    committed,
    delete_due,
    first_at,
    largest,
    offsets_of,
    open_log,
    purge,
    read_all,
)

SIZE = len(batch())


def append(log: PartitionLog, times: int = 1, **kw: int) -> None:
    for _ in range(times):
        log.append_as_leader(batch(**kw), 0, NOW)  # type: ignore[arg-type]


def test_s13_by_size(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0", config=LogConfig(segment_bytes=SIZE * 3))
    append(log, 10)
    assert log.segments.bases == [0, 3, 6, 9]
    assert [os.path.getsize(segment.path()) for segment in log.segments] == [SIZE * 3] * 3 + [SIZE]


def test_s13_by_time_of_the_first_batch(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0", config=LogConfig(segment_ms=1000))
    append(log, timestamp=NOW)
    append(log, timestamp=NOW + 1000)
    append(log, timestamp=NOW + 1001)
    assert log.segments.bases == [0, 2]
    log.close()
    log = open_log(tmp_path / "topic-0", config=LogConfig(segment_ms=1000))
    append(log, timestamp=NOW + 2001)
    append(log, timestamp=NOW + 2002)
    assert log.segments.bases == [0, 2, 4]


def test_s13_by_the_clock_where_nothing_has_a_timestamp(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0", config=LogConfig(segment_ms=1000))
    for now in (NOW, NOW + 1000, NOW + 1001):
        log.append_as_leader(batch(timestamp=-1), 0, now)
    assert log.segments.bases == [0, 2]


def test_s13_jitter_makes_it_earlier(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0", config=LogConfig(segment_ms=1000, segment_jitter_ms=500))
    append(log)
    log.roll(NOW)
    assert 0 <= log.segments.active._jitter_ms < 500


def test_s13_by_a_full_index(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0", config=LogConfig(index_interval_bytes=0, segment_index_bytes=60))
    append(log, 40)
    assert len(log.segments) == 5
    assert all((Path(s.path(".index"))).stat().st_size <= 60 for s in log.segments)
    assert offsets_of(read_all(log)) == list(range(40))


def test_s13_by_relative_offset(tmp_path: Path) -> None:
    """Bug 6: offsets whose distance from the base does not fit into four bytes."""
    config = LogConfig(cleanup_policy=("compact",))  # only compaction leaves such holes
    log = open_log(tmp_path / "topic-0", config=config)
    append(log)
    log.log_end_offset = 2**31 - 1
    append(log)
    assert log.segments.bases == [0]
    append(log)
    assert log.segments.bases == [0, 2**31]
    log.log_end_offset = 2**33
    append(log)
    assert log.segments.bases == [0, 2**31, 2**33]
    assert offsets_of(read_all(log)) == [0, 2**31 - 1, 2**31, 2**33]
    log.close()
    for clean in (True, False):
        log = open_log(tmp_path / "topic-0", clean=clean, config=config)
        assert offsets_of(read_all(log)) == [0, 2**31 - 1, 2**31, 2**33]


def test_retention_by_size(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0", config=LogConfig(segment_bytes=SIZE * 2, retention_bytes=SIZE * 5))
    append(log, 12)
    assert delete_due(committed(log), NOW) == 3
    assert (log.log_start_offset, log.size) == (6, SIZE * 6), "never below what is to be retained"


def test_retention_by_time(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0", config=LogConfig(segment_bytes=SIZE * 2, retention_ms=HOUR))
    append(log, 5)
    append(log, timestamp=NOW + 10)
    committed(log)
    assert delete_due(log, NOW + HOUR) == 0
    assert delete_due(log, NOW + HOUR + 1) == 2
    assert log.log_start_offset == 4
    assert delete_due(log, NOW + HOUR + 11) == 1, "the last segment goes too, after a roll"
    assert (log.log_start_offset, log.log_end_offset, log.segments.bases) == (6, 6, [6])
    append(log)
    for clean in (True, False):
        log = open_log(tmp_path / "topic-0", clean=clean, config=log.config)
        assert offsets_of(read_all(log)) == [6]


def test_retention_off_and_compact(tmp_path: Path) -> None:
    for name, config in (
        ("a", LogConfig(segment_bytes=SIZE, retention_ms=-1)),
        ("b", LogConfig(segment_bytes=SIZE, cleanup_policy=("compact",), retention_ms=1, retention_bytes=1)),
    ):
        log = open_log(tmp_path / name, config=config)
        append(log, 4)
        assert delete_due(committed(log), NOW * 2) == 0


def test_s8_nothing_beyond_the_high_watermark_goes(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0", config=LogConfig(segment_bytes=SIZE, retention_ms=1, retention_bytes=0))
    append(log, 6)
    assert delete_due(log, NOW * 2) == 0
    log.set_high_watermark(3)
    assert delete_due(log, NOW * 2) == 3
    assert (log.log_start_offset, log.segments.bases[0]) == (3, 3)


def test_segments_without_timestamps_age_by_their_file(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0", config=LogConfig(segment_bytes=SIZE, retention_ms=HOUR))
    append(log, 3, timestamp=-1)
    os.utime(log.segments[0].path(), (0, 0))
    assert delete_due(committed(log), NOW) == 1


def test_files_are_removed_later(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0", config=LogConfig(segment_bytes=SIZE, file_delete_delay_ms=500))
    append(log, 3)
    committed(log).advance_log_start(2, NOW)
    doomed = sorted(path.name for path in (tmp_path / "topic-0").glob("*.deleted"))
    assert "00000000000000000000.log.deleted" in doomed
    assert "00000000000000000001.index.deleted" in doomed
    assert purge(log, NOW + 499) == 0
    assert purge(log, NOW + 500) == len(doomed)
    assert not list((tmp_path / "topic-0").glob("*.deleted"))


def test_delete_records(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0", config=LogConfig(segment_bytes=SIZE * 3))
    append(log, 10)
    log.leader_epochs.assign(1, 10)
    log.set_high_watermark(8)
    with pytest.raises(ApiError) as caught:
        log.advance_log_start(9)
    assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert log.advance_log_start(7)
    assert not log.advance_log_start(5)
    assert (log.log_start_offset, log.segments.bases) == (7, [6, 9])
    assert log.leader_epochs.entries == [(0, 7), (1, 10)]
    log.close()
    log = open_log(tmp_path / "topic-0", config=log.config, log_start_offset=7, high_watermark=8)
    assert (log.log_start_offset, log.high_watermark) == (7, 8)
    assert offsets_of(read_all(log)) == [7, 8, 9]


def test_truncation(tmp_path: Path) -> None:
    """Bug 8: also truncation to a segment's base offset, and to an empty log."""
    for offset in range(12):
        log = open_log(tmp_path / f"t-{offset}", config=LogConfig(segment_bytes=SIZE * 3, index_interval_bytes=0))
        for epoch in range(11):
            log.append_as_leader(batch(timestamp=NOW + epoch), epoch, NOW)
        committed(log).flush()
        log.truncate_to(offset)
        end = min(offset, 11)
        assert (log.log_end_offset, log.high_watermark, log.recovery_point) == (end, end, end)
        assert log.leader_epochs.entries == [(epoch, epoch) for epoch in range(end)]
        assert log.append_as_leader(batch(timestamp=NOW + 99), 50, NOW).base_offset == end
        assert offsets_of(read_all(log)) == list(range(end + 1))
        assert first_at(log, NOW + 50) == (end, NOW + 99, 50)
        again = open_log(tmp_path / f"t-{offset}", clean=False, config=log.config)
        assert read_all(again) == read_all(log)


def test_truncation_within_a_batch_takes_it_whole(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0")
    append(log, 3, count=4)
    log.truncate_to(6)
    assert log.log_end_offset == 4
    log.truncate_fully(100)
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (100, 100, 100)
    append(log)
    assert offsets_of(read_all(log)) == [100]


def test_indexes_are_trimmed_and_sparse(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0", config=LogConfig(segment_bytes=100_000))
    append(log, 100_000 // SIZE + 5)
    sealed = log.segments[0]
    assert 0 < os.path.getsize(sealed.path(".index")) <= 8 * (100_000 // 4096 + 1)
    assert os.path.getsize(log.segments.active.path(".index")) == 0, "an idle partition has no preallocated index"
    append(log, 100)
    assert os.path.getsize(log.segments.active.path(".index")) == 4096
    log.close()
    assert os.path.getsize(log.segments.active.path(".index")) % 8 == 0
    assert os.path.getsize(log.segments.active.path(".index")) < 100
    assert os.path.getsize(log.segments.active.path(".timeindex")) >= 12


def test_a_segment_rests_with_its_largest_timestamp_indexed(tmp_path: Path) -> None:
    """Kafka looks for it at the end of the time index, even in segments that are too small for any other entry."""
    config = LogConfig(segment_bytes=SIZE * 3)
    log = open_log(tmp_path / "topic-0", config=config)
    append(log, 10)

    def looked_at(log: PartitionLog) -> None:
        for segment in log.segments:
            segment._checked_indexes()
        log.segments.release_idle(force=True)

    looked_at(log)
    log.close()
    for clean in (True, False, True):
        log = open_log(tmp_path / "topic-0", config=config, clean=clean)
        assert largest(log) is not None
        looked_at(log)
        log.close()
        for path in sorted((tmp_path / "topic-0").glob("*.log")):
            header = parse_header(path.read_bytes()[-SIZE:])
            last = path.with_suffix(".timeindex").read_bytes()[-12:]
            assert int.from_bytes(last[:8], "big") == header.max_timestamp, path


def test_deleting_segments_removes_no_file_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Removing waits for the disk, so a thread does it: segments' files when they are due, snapshots soon."""
    log = open_log(tmp_path / "topic-0", config=LogConfig(segment_bytes=SIZE))
    append(log, 6)
    committed(log)
    log.flush(NOW)
    removed: list[str] = []
    with monkeypatch.context() as patch:
        for name in ("unlink", "remove"):
            patch.setattr(os, name, removed.append)
        assert log.advance_log_start(4, NOW)
    assert removed == []
    assert log.segments.bases == [4, 5]
    names = {os.path.basename(path) for path in log.take_deleted(NOW, 100)}
    assert names == {f"{base:020}.snapshot" for base in (1, 2, 3)}


def test_a_flush_that_is_under_way_holds_no_segment(tmp_path: Path) -> None:
    """Otherwise a segment that is deleted meanwhile would count as being read, and its file would be opened."""
    log = open_log(tmp_path / "topic-0", config=LogConfig(segment_bytes=SIZE))
    append(log, 6)
    committed(log)
    task = log.begin_flush()
    assert task is not None
    segments = [weakref.ref(segment) for segment in log.segments.items[:4]]
    log.advance_log_start(4, NOW)
    assert [segment() for segment in segments] == [None] * 4
    task.run()
    log.end_flush(task, NOW)
    assert task.error is None
    assert log.recovery_point == 6
