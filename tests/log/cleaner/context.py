"""A compacted log in a test, cleaned in the test's own process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kbroker.log.append_info import COORDINATOR
from kbroker.log.cleaner.cleanable import examine, make_job
from kbroker.log.cleaner.cleaning import CleanedGroup, Cleaning
from kbroker.log.log_config import LogConfig
from kbroker.log.partition_log import PartitionLog
from kbroker.long_work import whole
from kbroker.protocol.records import Record, build_batch, build_marker, compute_crc, iter_batches, read_records
from tests.log.builders import NOW, open_log

COMPACT = LogConfig(cleanup_policy=("compact",), segment_bytes=4096, index_interval_bytes=256)
PLENTY = 1 << 24

Pair = tuple[bytes | None, bytes | None]


def put(log: PartitionLog, *pairs: Pair, timestamp: int = NOW, codec: int = 0, **kw: int | bool) -> int:
    """Append one batch of (key, value) pairs and commit it; returns its base offset."""
    records = [(timestamp + index, key, value, (("h", key),)) for index, (key, value) in enumerate(pairs)]
    info = log.append_as_leader(build_batch(records, codec=codec, **kw), 0, NOW)  # type: ignore[arg-type]
    log.set_high_watermark(log.log_end_offset)
    return info.base_offset


def end_txn(log: PartitionLog, producer_id: int, *, commit: bool, epoch: int = 0) -> None:
    """Append the marker that ends a producer's transaction."""
    marker = build_marker(
        producer_id=producer_id, producer_epoch=epoch, commit=commit, coordinator_epoch=1, timestamp=NOW
    )
    log.append_as_leader(marker, 0, NOW, origin=COORDINATOR)
    log.set_high_watermark(log.log_end_offset)


@contextmanager
def cleaning(
    log: PartitionLog, cleaned_to: int | None = None, now_ms: int = NOW, map_bytes: int = PLENTY
) -> Iterator[Cleaning]:
    """Prepare a cleaning round of a log."""
    job = whole(make_job(examine(log, cleaned_to, now_ms), now_ms, map_bytes, 1 << 16))
    assert job is not None
    fd = os.open(log.directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield Cleaning(job, fd, lambda _size: None)
    finally:
        os.close(fd)


def swap(log: PartitionLog, group: CleanedGroup, now_ms: int = NOW) -> None:
    """Swap the cleaned segments of a group in, as the manager does."""
    first = log.segments.bases.index(group.bases[0])
    log.replace_segments(log.segments[first : first + len(group.bases)], now_ms)


def clean(log: PartitionLog, cleaned_to: int | None = None, now_ms: int = NOW, map_bytes: int = PLENTY) -> int:
    """Run a complete round; returns the offset up to which the log is clean."""
    with cleaning(log, cleaned_to, now_ms, map_bytes) as round_:
        for group in round_.run():
            swap(log, group, now_ms)
    return round_.end_offset


def contents(log: PartitionLog) -> list[tuple[bool, Record]]:
    """Return (is control, record) for every record in the log, after checking every batch (S2)."""
    found = []
    next_offset = 0
    for segment in log.segments:
        data = Path(segment.path()).read_bytes()
        position = 0
        assert next_offset <= segment.base_offset or not data
        for position, header in iter_batches(data):
            batch = data[position : position + header.size]
            assert header.crc == compute_crc(batch)
            assert header.base_offset >= next_offset
            next_offset = header.last_offset + 1
            records = list(read_records(batch, max_bytes=1 << 24))
            assert len(records) == header.record_count
            assert all(header.base_offset <= record.offset <= header.last_offset for record in records)
            if header.timestamp_type == 0 and records:
                assert header.max_timestamp == max(record.timestamp for record in records)
            found += [(header.is_control, record) for record in records]
            position += header.size
        assert position == len(data) == segment.size
    return found


def committed_view(log: PartitionLog) -> list[Record]:
    """Return what a read_committed consumer sees below the last stable offset, computed as clients do."""
    upper = log.last_stable_offset
    offset, records = log.log_start_offset, []
    aborting: set[int] = set()
    while offset < upper:
        piece = log.read(offset, 1 << 12, upper, min_one=True)
        if piece.empty:
            break
        coming = sorted(log.aborted_in(piece), key=lambda txn: txn[1])
        view = piece.view()
        for position, header in iter_batches(view):
            batch = view[position : position + header.size]
            while coming and coming[0][1] <= header.last_offset:
                aborting.add(coming.pop(0)[0])
            offset = header.last_offset + 1
            if header.is_control:
                aborting.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborting):
                records += read_records(batch, max_bytes=1 << 24)
        aborting.clear()
    return records


def reopened(log: PartitionLog, *, clean: bool = True) -> PartitionLog:
    """Open the log's directory again; `clean` says whether the log had been closed cleanly."""
    directory = Path(log.directory)
    mark, start = log.high_watermark, log.log_start_offset
    if clean:
        log.close()
    log = open_log(
        directory, clean=clean, config=log.config, high_watermark=mark, log_start_offset=start, recovery_point=0
    )
    log.set_high_watermark(mark)
    return log
