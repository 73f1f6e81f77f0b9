"""Decides which segments may be deleted.

Owns the rules of retention: beyond retention.bytes, older than retention.ms; segments below the log start are deleted
anyway. Never selects a segment that reaches the high watermark or beyond, and never deletes (PartitionLog does).
"""

from __future__ import annotations

import os
from collections.abc import Callable

from kbroker.log.log_config import LogConfig
from kbroker.log.log_segments import Segments
from kbroker.log.segment.segment import Segment


def beyond_size(
    segments: Segments, config: LogConfig, log_end: int, high_watermark: int, _now_ms: int, most: int
) -> int:
    """Return how many of the first `most` segments can be deleted with at least retention.bytes left."""
    excess = segments.size - config.retention_bytes

    def is_excess(segment: Segment) -> bool:
        nonlocal excess
        excess -= segment.size
        return excess >= 0

    return _count(segments, log_end, high_watermark, most, is_excess) if config.retention_bytes >= 0 else 0


def too_old(segments: Segments, config: LogConfig, log_end: int, high_watermark: int, now_ms: int, most: int) -> int:
    """Return how many of the first `most` segments are older than retention.ms; raises OSError."""
    if config.retention_ms < 0:
        return 0
    oldest = now_ms - config.retention_ms
    return _count(segments, log_end, high_watermark, most, lambda segment: _written_ms(segment) < oldest)


def _written_ms(segment: Segment) -> int:
    """Return the largest timestamp, or the file's modification time if no record has one."""
    largest = segment.max_timestamp
    return largest if largest >= 0 else int(os.stat(segment.path()).st_mtime * 1000)


def _count(segments: Segments, log_end: int, high_watermark: int, most: int, is_due: Callable[[Segment], bool]) -> int:
    for index, segment in enumerate(segments[:most]):
        if segments.end_of(index, log_end) > high_watermark or segment.size == 0 or not is_due(segment):
            return index
    return min(most, len(segments))
