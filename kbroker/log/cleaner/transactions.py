"""The open transactions at the cleaner's position in a log.

Owns the decision whether a batch belongs to an aborted transaction, and whether a marker's transaction has no remaining
records (Kafka's CleanedTransactionMetadata). Never decides about single records or about time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from kbroker.log.segment.transaction_index import AbortedTxn
from kbroker.protocol.records import BatchHeader, read_marker


class AbortedRanges:
    """The offset ranges of each producer's aborted transactions, for lookups in any order."""

    def __init__(self, aborted: Iterable[AbortedTxn]) -> None:
        self._ranges: dict[int, tuple[list[int], list[int]]] = {}  # producer -> (first offsets, last offsets)
        for txn in sorted(aborted, key=lambda txn: txn.first_offset):
            firsts, lasts = self._ranges.setdefault(txn.producer_id, ([], []))
            firsts.append(txn.first_offset)
            lasts.append(txn.last_offset)

    def hold(self, header: BatchHeader) -> bool:
        """Whether the records of a data batch were aborted."""
        if not header.is_transactional or header.producer_id not in self._ranges:
            return False
        firsts, lasts = self._ranges[header.producer_id]
        index = bisect_right(firsts, header.last_offset) - 1
        return index >= 0 and header.base_offset <= lasts[index]


class CleanedTransactions:
    """The transactions of one pass over a log, in the order of offsets."""

    def __init__(self, aborted: Iterable[AbortedTxn]) -> None:
        self._pending = sorted(aborted, key=lambda txn: txn.first_offset, reverse=True)
        self._aborted: dict[int, AbortedTxn] = {}
        self._seen: set[int] = set()  # producers whose current aborted transaction has a batch that was already read
        self._committed: set[int] = set()
        self.retained: list[AbortedTxn] = []
        """The aborted transactions of which a batch was seen, in the order of their markers.

        The caller empties the list.
        """

    def is_aborted(self, header: BatchHeader) -> bool:
        """Record a data batch; return whether its records were aborted."""
        if not header.is_transactional:
            return False
        self._advance(header.last_offset)
        if header.producer_id in self._aborted:
            self._seen.add(header.producer_id)
            return True
        self._committed.add(header.producer_id)
        return False

    def is_obsolete(self, header: BatchHeader, batch: memoryview) -> bool:
        """Record a control batch; return whether it ends a transaction without remaining records. Raises Malformed."""
        self._advance(header.last_offset)
        if not header.record_count:
            return True
        marker = read_marker(batch)
        if marker is None:
            return False
        producer_id = header.producer_id
        txn = None if marker.commit else self._aborted.pop(producer_id, None)
        if txn is None:
            # This is a commit, or an abort that no index contains: only its marker shows such an abort.
            obsolete = producer_id not in self._committed
            self._committed.discard(producer_id)
            return obsolete
        if producer_id not in self._seen:
            return True
        self._seen.discard(producer_id)
        self.retained.append(txn)
        return False

    def _advance(self, offset: int) -> None:
        while self._pending and self._pending[-1].first_offset <= offset:
            txn = self._pending.pop()
            self._aborted.setdefault(txn.producer_id, txn)
