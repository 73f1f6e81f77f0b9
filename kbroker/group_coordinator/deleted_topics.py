"""Offsets in deleted topics: their tombstones, some at a time.

Owns the order of this work. Until then the offsets are kept but hidden (`Offsets.fetch`). The rest at the broker's end
stays, as in Kafka, until it expires; a new topic of the same name has another id.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping

from kbroker.coordination.outcome import CoordinatorRecord, Outcome, Schedule
from kbroker.group_coordinator.offsets import Offsets

AT_ONCE = 200
"""How many tombstones are written, or offsets of transactions examined, before other work has a turn: some 2 ms."""
_DELETED = ("deleted",)


class DeletedTopics:
    """The deleted topics of a shard with remaining offsets."""

    def __init__(self, offsets: Offsets) -> None:
        self._offsets = offsets
        self._work: deque[Iterator[CoordinatorRecord | None]] = deque()

    def begin(self, deleted: Mapping[str, bytes]) -> Outcome:
        """Delete the offsets in deleted topics (name to id): at once if they are few."""
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
