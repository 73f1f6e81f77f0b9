"""Which transactions of a log were aborted (Fetch with read_committed, compaction).

Owns the question over all segments, and holding transaction indexes, which have no checksum, against the log before
they count. Never changes what a log holds, though it repairs indexes on the way. What it cannot see: an index that was
cut off between two entries.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from kbroker.log.files import read_at
from kbroker.log.header_chain import proven_end
from kbroker.log.producers.producer_state import CompletedTxn, ProducerState
from kbroker.log.recovery import aborted_entry, replay
from kbroker.log.segment.segment import Segment
from kbroker.log.segment.transaction_index import AbortedTxn, TxnIndex
from kbroker.protocol.records import BatchHeader, compute_crc, parse_header, read_marker

if TYPE_CHECKING:
    from kbroker.log.partition_log import PartitionLog


def aborted_transactions(log: PartitionLog, start_offset: int, end_offset: int) -> list[tuple[int, int]]:
    """Return (producer id, first offset) of aborted transactions that overlap [start, end)."""
    found: list[AbortedTxn] = []
    for segment in log.segments[max(bisect_right(log.bases, start_offset) - 1, 0) :]:
        if proven_txns(log, segment).collect(start_offset, end_offset, found):
            break
    return [(txn.producer_id, txn.first_offset) for txn in found]


def proven_txns(log: PartitionLog, segment: Segment) -> TxnIndex:
    """Return a segment's transaction index, found again in the log if the file says what the log does not."""
    txns = segment.txns
    if not txns.proven:
        entries = txns.entries
        if txns.missing or not all(_is_true(log, segment, entry) for entry in entries):
            _rebuild(log, segment)
        txns.proven = True
    return txns


def _is_true(log: PartitionLog, segment: Segment, entry: AbortedTxn) -> bool:
    """Whether the log does not deny the marker or the first batch of a transaction. A damaged batch denies nothing."""
    index = log.segments.index(segment)
    behind = log.bases[index + 1] if index + 1 < len(log.bases) else log.log_end_offset
    if not segment.base_offset <= entry.last_offset < behind or entry.last_stable_offset > entry.last_offset + 1:
        return False
    end = _batch_at(log, entry.last_offset)
    if end is not None:
        batch, header = end
        if (header.producer_id, header.last_offset) != (entry.producer_id, entry.last_offset):
            return False
        if not _is_abort(batch, header):
            return False
    if entry.first_offset < log.bases[0]:
        return True
    begin = _batch_at(log, entry.first_offset)
    if begin is None or (log.may_have_holes and begin[1].base_offset > entry.first_offset):
        return True
    header = begin[1]
    if header.is_control or not header.is_transactional:
        return False
    return (header.producer_id, header.base_offset) == (entry.producer_id, entry.first_offset)


def _batch_at(log: PartitionLog, offset: int) -> tuple[bytes, BatchHeader] | None:
    """Return the batch that holds `offset`, or the next one; None if what is there cannot be trusted."""
    index = max(bisect_right(log.bases, offset) - 1, 0)
    segment = log.segments[index]
    found = segment.find(offset)
    if found is None or proven_end(log, index, segment.place_before(offset), found[0], found[0]) <= found[0]:
        return None
    batch = read_at(segment.handle.fd, found[1], found[0])
    header = parse_header(batch)
    return (batch, header) if compute_crc(batch) == header.crc else None


def _is_abort(batch: bytes, header: BatchHeader) -> bool:
    marker = read_marker(batch) if header.is_control else None
    return marker is not None and not marker.commit


def _rebuild(log: PartitionLog, segment: Segment) -> None:
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
