"""Taking back the end of a log.

Owns what truncation means for segments, offsets, epochs and producers. Never decides to truncate: replication does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.log.recovery import rebuild_producers

if TYPE_CHECKING:
    from kbroker.log.partition_log import PartitionLog


def truncate_to(log: PartitionLog, offset: int, now_ms: int) -> None:
    """Remove everything from `offset` on; batches are removed whole."""
    if offset >= log.log_end_offset:
        return
    if offset <= log.segments[0].base_offset:
        truncate_fully(log, offset, now_ms)
        return
    log.truncations += 1
    while log.bases[-1] >= offset:
        log.remove_segment(log.segments[-1], now_ms)
    log.active = log.segments[-1]
    log.active.truncate_to(offset)
    _set_end(log, log.active.become_active())


def truncate_fully(log: PartitionLog, offset: int, now_ms: int) -> None:
    """Remove everything and go on at `offset`."""
    log.truncations += 1
    for segment in list(log.segments):
        log.remove_segment(segment, now_ms)
    log.add_segment(offset, now_ms)
    log.log_start_offset = offset
    log.leader_epochs.clear()
    _set_end(log, offset)


def _set_end(log: PartitionLog, offset: int) -> None:
    log.log_end_offset = offset
    log.log_start_offset = min(log.log_start_offset, offset)
    log.recovery_point = min(log.recovery_point, offset)
    log.high_watermark = min(max(log.high_watermark, log.log_start_offset), offset)
    log.leader_epochs.truncate_from_end(offset)
    log.snapshots.remove_outside(-1, offset)
    rebuild_producers(log.producers, log.snapshots, log.segments, offset)
