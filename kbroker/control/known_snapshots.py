"""The snapshots that were taken over HTTP, each under an id.

Owns the ids, and the limit on the number of snapshots, because each snapshot keeps files. testing/snapshot.py describes
their content.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from kbroker.control.values import Refused

if TYPE_CHECKING:
    from kbroker.testing.snapshot import Snapshot

KEPT: Final = 100


class KnownSnapshots:
    """The snapshots that were taken over HTTP, by id."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_id: dict[int, Snapshot] = {}
        self._count = 0

    def add(self, snapshot: Snapshot) -> int:
        with self._lock:
            self._count += 1
            self._by_id[self._count] = snapshot
            return self._count

    def check_room(self) -> None:
        """Raise Refused if the number of snapshots has reached its limit."""
        if len(self._by_id) >= KEPT:
            raise Refused(409, f"there are {KEPT} snapshots already, and no more are possible")

    def one(self, number: int) -> Snapshot:
        """Return a snapshot. Raises Refused if it does not exist."""
        found = self._by_id.get(number)
        if found is None:
            raise Refused(404, f"there is no snapshot {number}")
        return found

    def remove(self, number: int) -> None:
        """Delete a snapshot and its files."""
        self.one(number).remove()
        with self._lock:
            self._by_id.pop(number, None)

    def all(self) -> list[int]:
        return list(self._by_id)

    def close(self) -> None:
        """Delete all snapshots and their files."""
        for number in self.all():
            self.remove(number)
