"""Which segments may go.

Owns the rules of retention: below the log's start, beyond retention.bytes, older than retention.ms. Never touches a
segment that reaches to the high watermark or beyond, and always leaves one segment.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kbroker.log.segment.segment import Segment

if TYPE_CHECKING:
    from kbroker.log.partition_log import PartitionLog


def delete_old_segments(log: PartitionLog, now_ms: int) -> int:
    """Delete what retention no longer covers; returns how many segments went."""
    deleted = delete_below_start(log, now_ms)
    config = log.config
    if not config.delete:
        return deleted
    if config.retention_bytes >= 0:
        excess = log.size - config.retention_bytes

        def is_excess(segment: Segment) -> bool:
            nonlocal excess
            if excess < segment.size:
                return False
            excess -= segment.size
            return True

        deleted += _delete_while(log, is_excess, now_ms)
    if config.retention_ms >= 0:
        deleted += _delete_while(
            log, lambda segment: now_ms - segment.retention_timestamp() > config.retention_ms, now_ms
        )
    return deleted


def delete_below_start(log: PartitionLog, now_ms: int) -> int:
    """Delete segments that lie wholly below the log's start; returns how many."""
    deleted = 0
    while len(log.segments) > 1 and log.segments[1].base_offset <= log.log_start_offset:
        log.remove_segment(log.segments[0], now_ms)
        deleted += 1
    return deleted


def _delete_while(log: PartitionLog, is_due: Callable[[Segment], bool], now_ms: int) -> int:
    count = 0
    for index, segment in enumerate(log.segments):
        is_last = index + 1 == len(log.segments)
        end = log.log_end_offset if is_last else log.segments[index + 1].base_offset
        if end > log.high_watermark or segment.size == 0 or not is_due(segment):
            break
        count += 1
    if not count:
        return 0
    if count == len(log.segments):
        log.roll(now_ms)
    # The log's start moves first: whoever reads an offset below it is told so, not that a segment is missing.
    log.log_start_offset = max(log.log_start_offset, log.segments[count].base_offset)
    log.leader_epochs.truncate_from_start(log.log_start_offset)
    return delete_below_start(log, now_ms)
