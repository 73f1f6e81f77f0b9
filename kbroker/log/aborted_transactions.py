"""The aborted transactions of a log (for Fetch with read_committed, and for compaction).

Owns the lookup over all segments. A transaction index has no checksum, so it is checked against the log before its
first use, and rebuilt from the log if it contradicts the log. Never changes a log's content. One fault stays
undetected: an index that was cut off between two entries.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kbroker.log.checks_at_first_read import batch_at
from kbroker.log.files import read_at
from kbroker.log.log_segments import LogExtent, Segments
from kbroker.log.producers.producer_rebuild import aborted_entry, replay
from kbroker.log.producers.producer_snapshots import Snapshots
from kbroker.log.producers.producer_state import CompletedTxn, ProducerState
from kbroker.log.segment.transaction_index import AbortedTxn, TxnIndex
from kbroker.long_work import turn
from kbroker.protocol.records import BatchHeader, read_marker

_AT_ONCE: Final = 16


class AbortedTransactions(NamedTuple):
    """The aborted transactions of a log in its current state."""

    segments: Segments
    extent: LogExtent
    snapshots: Snapshots

    def overlapping(self, start_offset: int, end_offset: int) -> list[AbortedTxn]:
        """Return the transactions that overlap [start, end); their markers may be after the end."""
        found: list[AbortedTxn] = []
        for index in self.segments.aborting_from(self.segments.index_at(start_offset)):
            if self._proven(index).collect(start_offset, end_offset, found):
                break
        return found

    async def overlapping_in_pieces(self, start_offset: int, end_offset: int) -> list[AbortedTxn]:
        """Do the work of `overlapping`, entry by entry; the result is invalid if segments are removed meanwhile."""
        found: list[AbortedTxn] = []
        for index in self.segments.aborting_from(self.segments.index_at(start_offset)):
            for entry in self._proven(index).entries:
                if entry.last_offset >= start_offset and entry.first_offset < end_offset:
                    found.append(entry)
                if entry.last_stable_offset >= end_offset:
                    return found
                await turn
        return found

    def markers(self, start_offset: int, end_offset: int) -> list[int]:
        """Return the offsets of the markers of aborted transactions in [start, end), in order."""
        found: list[int] = []
        for index in self.segments.aborting_from(self.segments.index_at(start_offset)):
            if self.segments.bases[index] >= end_offset:
                break
            last_offsets = (txn.last_offset for txn in self._proven(index).entries)
            found += [offset for offset in last_offsets if start_offset <= offset < end_offset]
        return sorted(found)

    async def begun_before(self, offset: int) -> list[AbortedTxn]:
        """Return the transactions whose first record is before `offset`; their markers may be before or after `offset`.

        The result is invalid if segments are removed in the meantime.
        """
        found: list[AbortedTxn] = []
        index = 0
        while index < len(self.segments):
            found += [txn for txn in self._proven(index).entries if txn.first_offset < offset]
            index += 1
            if index % _AT_ONCE == 0:
                await turn
        return found

    def _proven(self, index: int) -> TxnIndex:
        """Return a segment's transaction index; rebuild it from the log if the file contradicts the log."""
        txns = self.segments[index].txns
        if not txns.proven:
            entries = txns.entries
            if txns.missing or not all(self._is_true(index, entry) for entry in entries):
                self._rebuild(index)
            txns.accept()
        return txns

    def _is_true(self, index: int, entry: AbortedTxn) -> bool:
        """Whether the log agrees with the marker and the first batch of a transaction.

        A damaged batch counts as agreement.
        """
        base, behind = self.segments.bases[index], self.segments.end_of(index, self.extent.end_offset)
        if not base <= entry.last_offset < behind or entry.last_stable_offset > entry.last_offset + 1:
            return False
        end = self._batch_at(entry.last_offset)
        if end is not None:
            batch, header = end
            if (header.producer_id, header.last_offset) != (entry.producer_id, entry.last_offset):
                return False
            if not _is_abort(batch, header):
                return False
        if entry.first_offset < self.segments.bases[0]:
            return True
        begin = self._batch_at(entry.first_offset)
        if begin is None or (self.extent.may_have_holes and begin[1].base_offset > entry.first_offset):
            return True
        header = begin[1]
        if header.is_control or not header.is_transactional:
            return False
        return (header.producer_id, header.base_offset) == (entry.producer_id, entry.first_offset)

    def _batch_at(self, offset: int) -> tuple[bytes, BatchHeader] | None:
        """Return the batch that contains `offset`, or the next batch of the segment.

        Return None if that batch cannot be trusted.
        """
        found = batch_at(self.segments, self.extent, offset)
        if found is None or found[0] is not self.segments[self.segments.index_at(offset)]:
            return None
        segment, position, header = found
        return read_at(segment.handle.fd, header.size, position), header

    def _rebuild(self, index: int) -> None:
        """Rebuild a segment's aborted transactions from the log and an earlier producer snapshot."""
        segment = self.segments[index]
        state = ProducerState()
        snapshot = self.snapshots.newest(segment.base_offset)
        lowest = self.segments.bases[0]
        state.reset(snapshot[1] if snapshot else [])
        segment.txns.reset()

        def note(completed: CompletedTxn) -> None:
            if completed.aborted and completed.last_offset >= segment.base_offset:
                segment.txns.append(aborted_entry(completed, state))

        begin = max(snapshot[0], lowest) if snapshot else lowest
        end = self.segments.end_of(index, self.extent.end_offset)
        replay(state, self.segments[: index + 1], begin, end, note)


def _is_abort(batch: bytes, header: BatchHeader) -> bool:
    marker = read_marker(batch) if header.is_control else None
    return marker is not None and not marker.commit
