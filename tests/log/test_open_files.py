"""The limit on open segment files: it is kept, files are never confused, and a file in use stays open."""

from __future__ import annotations

import errno
import gc
import os
from dataclasses import replace
from pathlib import Path

import pytest

from kbroker.log import open_files
from kbroker.log.log_config import LogConfig
from kbroker.log.log_slice import LogSlice
from kbroker.log.open_files import OpenFiles, most_segments, retried
from kbroker.log.partition_log import PartitionLog
from kbroker.protocol.records import read_records
from tests.descriptors import no_descriptors_but_those_given_up, open_descriptors
from tests.log.builders import NOW, batch, committed, delete_due, first_at, open_log, purge

SEGMENTS = 100
CONFIG = replace(LogConfig(), segment_ms=1, index_interval_bytes=0)


def offsets_of(records: memoryview) -> list[int]:
    return [record.offset for record in read_records(records, max_bytes=1 << 20)]


def many_segments(directory: Path, files: OpenFiles, count: int = SEGMENTS) -> PartitionLog:
    """Return a log with segments of one batch of three records each."""
    log = open_log(directory, config=CONFIG, files=files)
    for index in range(count):
        log.append_as_leader(batch(3, timestamp=NOW + 10 * index), 0, NOW)
    assert len(log.segments) == count
    return committed(log)


def read_at_offset(log: PartitionLog, offset: int) -> LogSlice:
    return log.read(offset, 1 << 20, log.log_end_offset, min_one=True)


def test_the_bound_holds_whatever_is_done(tmp_path: Path) -> None:
    files = OpenFiles(5)
    log = many_segments(tmp_path / "topic-0", files)
    peak = len(open_descriptors(tmp_path))
    for offset in [*range(0, 3 * SEGMENTS, 3), *range(0, 3 * SEGMENTS, 50)]:
        piece = read_at_offset(log, offset)
        assert offsets_of(piece.view())[0] == offset - offset % 3
        peak = max(peak, len(open_descriptors(tmp_path)))
    assert first_at(log, NOW + 995) is None
    assert first_at(log, NOW + 501) == (151, NOW + 501, 0)
    log.append_as_leader(batch(3, timestamp=NOW + 5000), 0, NOW)
    log.flush(NOW)
    peak = max(peak, len(open_descriptors(tmp_path)))
    assert 0 < peak <= 3 * 5
    log.close()
    assert not open_descriptors(tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("clean", [True, False])
def test_a_start_stays_within_the_bound(tmp_path: Path, clean: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    log = many_segments(tmp_path / "topic-0", OpenFiles(5))
    log.close(clean=clean)
    peak, real = 0, os.open

    def counting(*arguments: object, **options: object) -> int:
        nonlocal peak
        fd = real(*arguments, **options)  # type: ignore[arg-type]
        peak = max(peak, len(open_descriptors(tmp_path)))
        return fd

    monkeypatch.setattr(os, "open", counting)
    again = open_log(tmp_path / "topic-0", clean=clean, config=CONFIG, files=OpenFiles(5))
    assert len(again.segments) == SEGMENTS
    assert peak <= 3 * 5
    assert not open_descriptors(tmp_path), "an open log holds no file until it is used"


def test_those_in_use_stay_open(tmp_path: Path) -> None:
    files = OpenFiles(5)
    log = many_segments(tmp_path / "topic-0", files)
    handle = log.segments.active.handle
    for offset in range(0, 3 * (SEGMENTS - 1), 3):
        read_at_offset(log, offset).view()
        log.append_as_leader(batch(3, timestamp=NOW + 10 * SEGMENTS - 10), 0, NOW)
    assert log.segments.active._handle is handle


def test_slices_that_wait_hold_no_descriptor_and_find_their_bytes(tmp_path: Path) -> None:
    log = many_segments(tmp_path / "topic-0", OpenFiles(5))
    waiting = [read_at_offset(log, offset) for offset in range(0, 3 * SEGMENTS, 3)]
    assert len(open_descriptors(tmp_path)) <= 3 * 5
    sent = waiting[0].fd
    for offset, piece in zip(range(0, 3 * SEGMENTS, 3), waiting, strict=True):
        assert offsets_of(memoryview(os.pread(piece.fd, piece.size, piece.position))) == [*range(offset, offset + 3)]
        if piece is not waiting[0]:
            piece._handle = None  # sent
    assert waiting[0].fd == sent, "what is being sent keeps its descriptor"
    assert offsets_of(memoryview(os.pread(sent, waiting[0].size, 0))) == [0, 1, 2]
    del piece, waiting
    gc.collect()
    assert len(open_descriptors(tmp_path)) <= 3 * 5


def test_slices_outlive_their_files_unless_there_are_too_many(tmp_path: Path) -> None:
    files = OpenFiles(20)
    log = many_segments(tmp_path / "topic-0", files)
    log.update_config(replace(CONFIG, file_delete_delay_ms=0))
    waiting = [read_at_offset(log, offset) for offset in range(0, 30, 3)]
    log.set_high_watermark(log.log_end_offset)
    log.advance_log_start(60, NOW)
    delete_due(log, NOW)
    purge(log, NOW)
    kept = [offsets_of(piece.view()) for piece in waiting[:5]]
    assert kept == [[*range(offset, offset + 3)] for offset in range(0, 15, 3)]
    for piece in waiting[5:]:
        with pytest.raises(OSError):
            piece.view()
    assert not [path for path in open_descriptors(tmp_path) if path.endswith("index")]
    del piece, waiting
    assert not [path for path in open_descriptors(tmp_path) if "deleted" in path]


def test_segments_give_files_up_when_others_have_taken_all_descriptors(tmp_path: Path) -> None:
    files = OpenFiles(50)
    log = many_segments(tmp_path / "topic-0", files)
    before = files.count
    with no_descriptors_but_those_given_up():
        log.roll(NOW)  # creates four files and keeps one open
        assert log.append_as_leader(batch(3, timestamp=NOW), 0, NOW).base_offset == 3 * SEGMENTS
        assert offsets_of(read_at_offset(log, 0).view()) == [0, 1, 2]
    assert files.count < before


def test_what_is_tried_again() -> None:
    tries = 0

    def always(number: int) -> None:
        nonlocal tries
        tries += 1
        raise OSError(number, os.strerror(number))

    with pytest.raises(OSError):
        retried(lambda: always(errno.EACCES))
    assert tries == 1


def test_another_thread_takes_nothing_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = OpenFiles(50)
    log = many_segments(tmp_path / "topic-0", files)
    before = files.count
    monkeypatch.setattr(open_files.threading, "get_ident", lambda: -1)
    assert not files.give_up_some()
    assert files.count == before == len(log.segments) - 50


@pytest.mark.parametrize(("limit", "most"), [(1024, 170), (256, 42), (64, 16), (4096, 682), (1 << 20, 16_000)])
def test_half_of_the_descriptors_are_for_segments(limit: int, most: int) -> None:
    assert most_segments(limit) == most
