"""Do to a data directory what the next start would do to it after a crash, without starting a broker.

Owns the order: lock, cut every log at its first bad batch from the recovery point on, bring the checkpoints in line.
Never touches what lies below a recovery point, and never leaves the mark of a clean stop: the next start must take its
look, too, and begin new leader epochs, by which clients notice that a tail is gone.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from kbroker.log import checkpoints
from kbroker.log.directories.dir_lock import lock_directory
from kbroker.log.files import LOG_SUFFIX, offset_of, remove_quietly, sync_directory
from kbroker.log.log_config import LogConfig
from kbroker.log.offline.check import data_dir_of, partitions_of
from kbroker.log.partition_log import PartitionLog


class Repaired(NamedTuple):
    """What was done to one partition: bytes and segments that went, and where the log ends now."""

    path: str
    cut_bytes: int
    removed_segments: int
    log_end_offset: int


def repair(directory: str, now_ms: int) -> list[Repaired]:
    """Repair a data directory or one partition of it. Raises NoLogDir, LogDirError, OSError."""
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
                clean=False,
                recovery_point=points.get(key, 0),
                log_start_offset=starts.get(key, 0),
                high_watermark=marks.get(key, 0),
                compacted=True,  # nobody says what the topic's policy was
            )
            log.flush(now_ms)
            log.close(clean=False)
            if key in points:
                points[key] = min(points[key], log.log_end_offset)
            if key in marks:
                marks[key] = log.high_watermark
            after = _segments(path)
            cut = sum(before.values()) - sum(after.values())
            done.append(Repaired(path, cut, len(before.keys() - after.keys()), log.log_end_offset))
        for name, offsets in ((checkpoints.RECOVERY_POINTS, points), (checkpoints.HIGH_WATERMARKS, marks)):
            if offsets:
                checkpoints.write_offsets(f"{above}/{name}", offsets)
    finally:
        os.close(lock)
    return done


def _segments(path: str) -> dict[int, int]:
    with os.scandir(path) as entries:
        found = [(offset_of(entry.name), entry.stat().st_size) for entry in entries if entry.name.endswith(LOG_SUFFIX)]
    return {base: size for base, size in found if base is not None}
