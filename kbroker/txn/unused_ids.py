"""The expiration of transactional ids that have been unused for a long time (transactional.id.expiration.ms).

Owns the time of each search, the definition of an unused id, and the number of ids that one batch of tombstones
deletes. Never deletes an id with a pending write or an open transaction.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from kbroker.coordination.shard import CoordinatorRecord, Outcome, Schedule
from kbroker.protocol.errors import ErrorCode
from kbroker.txn import records
from kbroker.txn.transaction import AT_REST, Transaction

log = logging.getLogger(__name__)

_CHECKED_AT_ONCE: Final = 2_000
"""The number of ids that one search checks at a time."""
_TOMBSTONES, _TOMBSTONE_BYTES = 500, 64 << 10
"""The maximum number of ids to delete in one batch, and the maximum total size of their keys in bytes."""
_TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})
_EXPIRE: Final = ("expire",)


class UnusedIds:
    """The search for unused ids in a shard's `transactions` (shard.py).

    Ids in `pending` are busy, or already being deleted.
    """

    def __init__(
        self,
        interval_ms: int,
        expiration_ms: int,
        transactions: Mapping[str, Transaction],
        pending: set[str],
        forget: Callable[[str], None],
    ) -> None:
        self._interval_ms = interval_ms
        self._expiration_ms = expiration_ms
        self._transactions = transactions
        self._pending = pending
        self._forget = forget
        self._left: deque[str] = deque()  # ids that the search has not checked yet
        self._tombstone_bytes = _TOMBSTONE_BYTES

    def next_search(self) -> Schedule:
        """Return the timer of the next search."""
        return Schedule(_EXPIRE, self._interval_ms)

    def expire(self, now_ms: int) -> Outcome:
        """Delete ids that have been unused for a long time, in batches of moderate size."""
        if not self._left:
            self._left.extend(self._transactions)
            self._tombstone_bytes = _TOMBSTONE_BYTES
        batch = self._find(now_ms - self._expiration_ms)
        if not batch:
            return self._go_on()
        names = [name for name, _ in batch]
        self._pending.update(names)

        def settled(code: ErrorCode, _now_ms: int) -> Outcome:
            self._pending.difference_update(names)
            if code in _TOO_LARGE and len(batch) > 1:
                # The topic may have any size limit: retry with half of the batch.
                self._tombstone_bytes = max(sum(len(record.key) for _, record in batch) // 2, 1)
                self._left.extendleft(reversed(names))
            elif code in _TOO_LARGE:
                log.warning("the unused id %s stays: its tombstone is too large for the log", names[0])
            elif code is not ErrorCode.NONE:
                self._left.clear()  # the next search, hours later, may succeed
            else:
                for name in names:
                    self._forget(name)
            return self._go_on()

        return Outcome(records=[record for _, record in batch], after=settled, replay=False)

    def _find(self, oldest: int) -> list[tuple[str, CoordinatorRecord]]:
        """Check some thousand ids; return the ids to delete in one batch, with their tombstones."""
        batch: list[tuple[str, CoordinatorRecord]] = []
        size = 0
        for _ in range(min(_CHECKED_AT_ONCE, len(self._left))):
            name = self._left[0]
            if self._is_unused(self._transactions.get(name), oldest):
                tombstone = records.transaction_tombstone(name)
                size += len(tombstone.key)
                if batch and (size > self._tombstone_bytes or len(batch) == _TOMBSTONES):
                    break
                batch.append((name, tombstone))
            self._left.popleft()
        return batch

    def _is_unused(self, txn: Transaction | None, oldest: int) -> bool:
        return (
            txn is not None
            and txn.updated_ms <= oldest
            and txn.state in AT_REST
            and txn.transactional_id not in self._pending
        )

    def _go_on(self) -> Outcome:
        return Outcome(timers=[Schedule(_EXPIRE, 0) if self._left else self.next_search()])
