"""Offsets in topics that have been deleted: their tombstones, some at a time.

Owns the order in which they are come to. Until then they are kept but not shown (`Offsets.fetch`). What is left when
the broker ends stays, as in Kafka, until it expires; a topic of the same name has another id.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping

from kbroker.coordination.outcome import CoordinatorRecord, Outcome, Schedule
from kbroker.group_coordinator.offsets import Offsets

AT_ONCE = 200
"""Tombstones that are written, or offsets of transactions that are looked at, before others have a turn: some 2 ms."""
_DELETED = ("deleted",)


class DeletedTopics:
    """The deleted topics of a shard whose offsets are not all gone."""

    def __init__(self, offsets: Offsets) -> None:
        self._offsets = offsets
        self._work: deque[Iterator[CoordinatorRecord | None]] = deque()

    def begin(self, deleted: Mapping[str, bytes]) -> Outcome:
        """Forget the offsets in deleted topics (name to id): at once where they are few."""
        self._work.append(self._offsets.of_deleted_topics(deleted))
        return self.run() if len(self._work) == 1 else Outcome()

    def run(self) -> Outcome:
        """Write the next tombstones."""
        out = Outcome(atomic=False)
        left = AT_ONCE
        while self._work and left:
            for record in self._work[0]:
                if record is not None:
                    out.records.append(record)
                left -= 1
                if not left:
                    break
            else:
                self._work.popleft()
        if self._work:
            out.timers.append(Schedule(_DELETED, 0))
        return out
