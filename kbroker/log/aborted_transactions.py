"""The aborted transactions of a log (for Fetch with read_committed, and for compaction).

Owns the lookup over all segments. Never changes a log; transaction_index_checks.py checks that the indexes are true.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kbroker.log.log_segments import LogExtent, Segments
from kbroker.log.producers.producer_snapshots import Snapshots
from kbroker.log.segment.transaction_index import AbortedTxn
from kbroker.log.transaction_index_checks import TransactionIndexChecks
from kbroker.long_work import turn

_AT_ONCE: Final = 16


class AbortedTransactions(NamedTuple):
    """The aborted transactions of a log in its current state."""

    segments: Segments
    extent: LogExtent
    snapshots: Snapshots

    def overlapping(self, start_offset: int, end_offset: int) -> list[tuple[int, int]]:
        """Return (producer id, first offset) of the transactions that overlap [start, end)."""
        found: list[AbortedTxn] = []
        checks = TransactionIndexChecks(*self)
        for index in self.segments.aborting_from(self.segments.index_at(start_offset)):
            if checks.proven(index).collect(start_offset, end_offset, found):
                break
        return [(txn.producer_id, txn.first_offset) for txn in found]

    async def begun_before(self, offset: int) -> list[AbortedTxn]:
        """Return the transactions whose first record lies below `offset`, wherever their markers lie.

        The result is void if segments are removed meanwhile.
        """
        found: list[AbortedTxn] = []
        checks = TransactionIndexChecks(*self)
        index = 0
        while index < len(self.segments):
            found += [txn for txn in checks.proven(index).entries if txn.first_offset < offset]
            index += 1
            if index % _AT_ONCE == 0:
                await turn
        return found
