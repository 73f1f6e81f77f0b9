"""Repair a data directory as the next start would after a crash, without starting a broker.

Owns the order: lock the directory, truncate every log at its first bad batch after the recovery point, remove the given
records, and update the checkpoints. Never changes other records before a recovery point. Never writes the mark of a
clean stop: the next start must also check the logs, and begin new leader epochs, which show clients that the end of a
log was lost.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from kbroker.log import checkpoints
from kbroker.log.cleaner.batch_filter import without_record
from kbroker.log.cleaner.cleaned_segment import CleanedSegment
from kbroker.log.cleaner.reading import SegmentReader
from kbroker.log.directories.dir_lock import lock_directory
from kbroker.log.files import LOG_SUFFIX, offset_of, remove_quietly, sync_directory
from kbroker.log.log_config import LogConfig
from kbroker.log.offline.check import data_dir_of, partitions_of
from kbroker.log.partition_log import PartitionLog
from kbroker.log.recovery import LastStop
from kbroker.log.segment_swap import remove_cleaned
from kbroker.protocol.errors import Malformed

_CHUNK = 1 << 20


class NoSuchRecord(Exception):  # noqa: N818 - named after the request
    """A record that was to be removed does not exist, or its batch is unreadable."""


class Repaired(NamedTuple):
    """The repair of one partition: removed bytes and segments, and the new log end."""

    path: str
    cut_bytes: int
    removed_segments: int
    log_end_offset: int
    removed_records: int = 0


def repair(directory: str, now_ms: int, dropped: Sequence[int] = ()) -> list[Repaired]:
    """Repair a data directory or one partition of it. Also remove the records at the `dropped` offsets.

    Raises NoLogDir, LogDirError and OSError. Raises NoSuchRecord if a record is missing: then the records that are
    listed before it have been removed.
    """
    done: list[Repaired] = []
    partitions = partitions_of(directory)
    above = data_dir_of(directory, partitions)
    lock = lock_directory(above)
    try:
        remove_quietly(f"{above}/{checkpoints.CLEAN_SHUTDOWN}")
        sync_directory(above)
        points = checkpoints.read_offsets(f"{above}/{checkpoints.RECOVERY_POINTS}")
        starts = checkpoints.read_offsets(f"{above}/{checkpoints.LOG_STARTS}")
        marks = checkpoints.read_offsets(f"{above}/{checkpoints.HIGH_WATERMARKS}")
        for path, key in partitions.items():
            before = _segments(path)
            log = PartitionLog(
                path,
                *key,
                LogConfig(),
                now_ms=now_ms,
                stop=LastStop(
                    clean=False,
                    recovery_point=points.get(key, 0),
                    log_start_offset=starts.get(key, 0),
                    high_watermark=marks.get(key, 0),
                    compacted=True,  # because the topic's policy is unknown
                ),
            )
            try:
                for offset in dropped:
                    _drop_record(log, offset, now_ms)
            finally:
                log.flush(now_ms)
                log.close(clean=False)
            if key in points:
                points[key] = min(points[key], log.log_end_offset)
            if key in marks:
                marks[key] = log.high_watermark
            after = _segments(path)
            cut = 0 if dropped else sum(before.values()) - sum(after.values())
            removed = len(before.keys() - after.keys())
            done.append(Repaired(path, cut, removed, log.log_end_offset, len(dropped)))
        for name, offsets in ((checkpoints.RECOVERY_POINTS, points), (checkpoints.HIGH_WATERMARKS, marks)):
            if offsets:
                checkpoints.write_offsets(f"{above}/{name}", offsets)
    finally:
        os.close(lock)
    return done


def _drop_record(log: PartitionLog, offset: int, now_ms: int) -> None:
    """Rewrite a segment without one record, as compaction does; a batch without records stays as an empty batch."""
    if not log.log_start_offset <= offset < log.log_end_offset:
        raise NoSuchRecord(f"{log.directory} has the offsets {log.log_start_offset} to {log.log_end_offset - 1}")
    segment = log.segments[log.segments.index_at(offset)]
    if segment is log.segments.active:
        log.roll(now_ms)
    directory = os.open(log.directory, os.O_RDONLY | os.O_DIRECTORY)
    found = False
    try:
        cleaned = CleanedSegment(directory, segment.base_offset, log.config.index_interval_bytes)
        try:
            reader = SegmentReader(directory, _CHUNK, lambda _size: None)
            for _, header, batch in reader.forward(segment.base_offset, segment.size):
                kept = None if found else without_record(batch, header, offset, segment.size)
                found |= kept is not None
                cleaned.append(bytes(batch if kept is None else kept), header.last_offset, header.max_timestamp)
            if not found:
                raise NoSuchRecord(f"{log.directory} has no record at offset {offset}")
            cleaned.finish(segment.txns.entries, os.stat(segment.path()).st_mtime_ns)
        except Malformed as error:
            raise NoSuchRecord(f"{log.directory}: the batch of offset {offset} cannot be read: {error}") from error
        finally:
            cleaned.close()
        log.replace_segments([segment], now_ms)
        os.fsync(directory)
    finally:
        remove_cleaned(log.directory)
        os.close(directory)


def _segments(path: str) -> dict[int, int]:
    with os.scandir(path) as entries:
        found = [(offset_of(entry.name), entry.stat().st_size) for entry in entries if entry.name.endswith(LOG_SUFFIX)]
    return {base: size for base, size in found if base is not None}
