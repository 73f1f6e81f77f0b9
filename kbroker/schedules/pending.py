"""The pending records of one partition of a schedule topic, by its records and marks in the order of the log.

Owns the replay for readers that know only the log as Kafka's protocol returns it: verbs and the console. The broker has
an index of its own with the same rules. Never reads a log or a clock. Times are in ms since 1970 (UTC).

The first Begin or Pause mark decides on the records before it. If this mark says that the topic became a schedule
topic, the earlier records do not count, because the topic was no schedule topic then.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from kbroker.protocol.records import Headers
from kbroker.schedules.language import ScheduleError, read_schedule
from kbroker.schedules.marks import Begin, Done, Due, Intent, Mark, Pause


class Failure(NamedTuple):
    """The reason why the target refused a record at the last try."""

    code: int
    """Kafka's error code."""
    message: str
    retry_ms: int
    """The time of the next try."""


class PendingRecords:
    """The pending records of one partition. Each takes some 250 bytes: values are not kept, and keys only as hashes."""

    def __init__(self, default_target: str) -> None:
        """Begin at the start of the log. `default_target` applies until a mark names another target."""
        self.target = default_target
        self.due: dict[int, int] = {}
        """The time at which each pending record is due, by the record's offset."""
        self.delivering: dict[int, int] = {}
        """The time at which each record in delivery was due, by the record's offset."""
        self.failures: dict[int, Failure] = {}
        self.delivered = 0
        """The number of deliveries in the part of the log that still exists."""
        self.wrong = 0
        """The number of records that should be schedules, but are not valid."""
        self._is_active = True
        self._has_toggled = False
        self._targets: list[tuple[int, str]] = [(0, default_target)]
        """The default targets, each with the offset from which on it applies."""
        self._by_key: dict[int, int] = {}
        self._keys: dict[int, int] = {}
        self._intents: dict[int, Sequence[Due]] = {}
        self._replaced: set[int] = set()
        """The records in delivery that do not become pending again."""

    def take(self, offset: int, stamp_ms: int, key: bytes | None, value: bytes | None, headers: Headers) -> None:
        """Replay a committed record. `stamp_ms` is its timestamp: the time of its append."""
        if not self._is_active:
            return
        if value is None:
            if key is not None:
                self._remove(key)
            return
        try:
            schedule = read_schedule(key, headers, stamp_ms, self.target)
        except ScheduleError:
            schedule = None
        if schedule is None:
            self.wrong += 1
            return
        if key is not None:
            self._remove(key)
            hashed = self._keys[offset] = hash(key)
            self._by_key[hashed] = offset
        self.due[offset] = schedule.due_ms

    def mark(self, offset: int, mark: Mark) -> None:
        """Replay a mark of the leader."""
        if isinstance(mark, Intent):
            self._intents[offset] = mark.records
            for due in mark.records:
                self.failures.pop(due.offset, None)
                if self.due.pop(due.offset, None) is None:
                    self._replaced.add(due.offset)
                self.delivering[due.offset] = due.due_ms
        elif isinstance(mark, Done):
            self._end(mark)
        else:
            self._toggle(offset, mark)

    def find(self, key: bytes) -> int | None:
        """Return the offset of the record with a key, if this record is pending or in delivery.

        Otherwise return None.
        """
        return self._by_key.get(hash(key))

    def target_of(self, offset: int) -> str:
        """Return the default target for a record."""
        place = bisect_right(self._targets, offset, key=lambda each: each[0])
        return self._targets[max(place - 1, 0)][1]

    def due_of(self, offset: int) -> int:
        """Return the time at which a record, pending or in delivery, is due."""
        return self.due[offset] if offset in self.due else self.delivering[offset]

    def _end(self, mark: Done) -> None:
        following = {due.offset: due.due_ms for due in mark.following}
        for due in self._intents.pop(mark.intent, ()):
            self.delivering.pop(due.offset, None)
            is_replaced = due.offset in self._replaced
            self._replaced.discard(due.offset)
            if mark.error_code == 0:
                self.delivered += 1
                next_ms = following.get(due.offset)
            else:
                next_ms = due.due_ms
            if next_ms is None or is_replaced:
                self._forget(due.offset)
                continue
            self.due[due.offset] = next_ms
            if (
                mark.error_code and mark.retry_ms >= 0
            ):  # otherwise the records are tried again immediately, in smaller batches
                self.failures[due.offset] = Failure(mark.error_code, mark.message, mark.retry_ms)

    def _toggle(self, offset: int, mark: Begin | Pause) -> None:
        if not self._has_toggled and mark.before is not None:
            self._targets[0] = 0, mark.before  # earlier records were written with this target
        if isinstance(mark, Begin):
            if not self._has_toggled and mark.is_change:
                self._clear()
            if mark.target != self.target:
                self._targets.append((offset, mark.target))
            self.target = mark.target
        self._is_active = isinstance(mark, Begin)
        self._has_toggled = True

    def _clear(self) -> None:
        for kept in (self.due, self.failures, self._by_key, self._keys):
            kept.clear()
        self.wrong = 0

    def _remove(self, key: bytes) -> None:
        """Remove the pending record with a key."""
        offset = self._by_key.pop(hash(key), None)
        if offset is None:
            return
        if offset in self.delivering:
            self._replaced.add(offset)
            self._keys.pop(offset, None)
        else:
            self.due.pop(offset, None)
            self._forget(offset)

    def _forget(self, offset: int) -> None:
        self.failures.pop(offset, None)
        key = self._keys.pop(offset, None)
        if key is not None and self._by_key.get(key) == offset:
            del self._by_key[key]
