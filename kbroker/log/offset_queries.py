"""Questions about offsets that need a look at single records or at several segments.

Owns the search by timestamp (ListOffsets) and for aborted transactions (Fetch). Never changes what a log holds, though
it repairs indexes on the way.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from kbroker.log.files import read_at
from kbroker.log.producer_state import CompletedTxn, ProducerState
from kbroker.log.recovery import aborted_entry, replay
from kbroker.log.segment import Segment
from kbroker.log.txn_index import AbortedTxn
from kbroker.protocol.errors import ApiError, ErrorCode, Malformed
from kbroker.protocol.records import BatchHeader, Record, read_records

if TYPE_CHECKING:
    from kbroker.log.partition_log import PartitionLog

_MAX_DECOMPRESSED = 1 << 30  # these batches have been accepted already; the bound only stops a broken file


def offset_for_timestamp(log: PartitionLog, timestamp: int) -> tuple[int, int, int] | None:
    """Return (offset, timestamp, leader epoch) of the first record at or after `timestamp`, None without one."""
    start = log.log_start_offset
    for segment in log.segments:
        for position, header in segment.batches_at_timestamp(timestamp, start):
            for record in _records(segment, position, header):
                if record.timestamp >= timestamp and record.offset >= start:
                    return record.offset, record.timestamp, header.leader_epoch
    return None


def max_timestamp_offset(log: PartitionLog) -> tuple[int, int, int] | None:
    """Return (offset, timestamp, leader epoch) of the first record that has the largest timestamp, None without one."""
    largest = max(log.segments, key=lambda segment: segment.max_timestamp)
    timestamp = largest.max_timestamp
    if timestamp < 0:
        return None
    for position, header in largest.batches_at_timestamp(timestamp, largest.base_offset):
        for record in _records(largest, position, header):
            if record.timestamp >= timestamp:
                return record.offset, record.timestamp, header.leader_epoch
    return None


def _records(segment: Segment, position: int, header: BatchHeader) -> list[Record]:
    batch = read_at(segment.handle.fd, header.size, position)
    try:
        return list(read_records(batch, max_bytes=_MAX_DECOMPRESSED))
    except Malformed as error:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error


def aborted_transactions(log: PartitionLog, start_offset: int, end_offset: int) -> list[tuple[int, int]]:
    """Return (producer id, first offset) of aborted transactions that overlap [start, end)."""
    found: list[AbortedTxn] = []
    bases = [segment.base_offset for segment in log.segments]
    for segment in log.segments[max(bisect_right(bases, start_offset) - 1, 0) :]:
        done = segment.txns.collect(start_offset, end_offset, found)
        if segment.txns.missing:
            rebuild_txn_index(log, segment)
            done = segment.txns.collect(start_offset, end_offset, found)
        if done:
            break
    return [(txn.producer_id, txn.first_offset) for txn in found]


def rebuild_txn_index(log: PartitionLog, segment: Segment) -> None:
    """Find a segment's aborted transactions again, from a snapshot below it and the log."""
    index = log.segments.index(segment)
    end = log.segments[index + 1].base_offset if index + 1 < len(log.segments) else log.log_end_offset
    state = ProducerState()
    snapshot = log.snapshots.newest(segment.base_offset)
    lowest = log.segments[0].base_offset
    state.reset(max(snapshot[0], lowest) if snapshot else lowest, snapshot[1] if snapshot else [])
    segment.txns.reset()

    def note(completed: CompletedTxn) -> None:
        if completed.aborted and completed.last_offset >= segment.base_offset:
            segment.txns.append(aborted_entry(completed, state))

    replay(state, log.segments[: index + 1], end, note)
