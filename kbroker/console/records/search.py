"""Searching through partitions, step by step, in both directions.

Owns the size of one step (a second and some thousand records), and the cursor for the next step: the position in each
partition, and the counts of read and found records. The server keeps nothing between steps: the browser keeps the
cursor, and cancels a search by requesting no further step.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kbroker.admin.cluster_view import TopicView
from kbroker.admin.errors import AdminError, WrongInput
from kbroker.admin.fetching import Found, fetch
from kbroker.admin.partition_offsets import known_offsets_at
from kbroker.console.records.filters import Filter

STEP_S: Final = 1.2
STEP_RECORDS: Final = 20_000
STEP_BYTES: Final = 32 * 1024 * 1024
MOST_RECORDS: Final = 1_000_000
"""The maximum number of records that a search reads before the user must confirm that it continues."""
MOST_SHOWN: Final = 200
_WINDOW: Final = 2_000
"""The number of offsets of a partition that a backward search reads in one step."""
_WINDOW_BYTES: Final = 8 * 1024 * 1024
_EARLIEST: Final = -2
_LATEST: Final = -1
_CURSOR: Final = re.compile(r"(\d{1,9}):(\d{1,19})")


@dataclass(frozen=True, slots=True)
class Bounds:
    """The range of offsets to search in a partition; `end` is not included."""

    begin: int
    end: int


@dataclass(slots=True)
class Cursor:
    """A search's position in each partition: the next offset (forward search) or the upper bound (backward search)."""

    forward: bool
    at: dict[int, int]
    read: int = 0
    found: int = 0

    def __str__(self) -> str:
        return ",".join(f"{partition}:{offset}" for partition, offset in sorted(self.at.items()))


@dataclass(slots=True)
class Step:
    """The result of a step: records in the order of the search, and whether the search is over."""

    records: list[Found]
    cursor: Cursor
    bounds: Mapping[int, Bounds]
    over: bool
    reached_ms: int = -1
    """The timestamp of the last record that the step read."""
    done: float = 0.0
    """The share of all offsets that the search has read so far."""


def parse_cursor(text: str) -> dict[int, int]:
    """Parse a cursor. Raises WrongInput."""
    found = {}
    for each in text.split(",") if text else ():
        match = _CURSOR.fullmatch(each)
        if match is None:
            raise WrongInput("the position of the search cannot be read")
        found[int(match[1])] = int(match[2])
    return found


@dataclass(slots=True)
class Search:
    """A search in one topic: its partitions, its time range and its filter."""

    topic: TopicView
    partitions: list[int]
    wanted: Filter
    forward: bool = False
    since_ms: int | None = None
    until_ms: int | None = None
    from_offset: int | None = None
    committed: bool = False
    limit: int = 50
    _led: dict[tuple[str, int], int] = field(default_factory=dict)

    def bounds(self, admin: Any) -> dict[int, Bounds]:
        """Return the bounds of the partitions within the time range. Raises AdminError if a partition has no leader."""
        leaders = {each.partition_index: each.leader_id for each in self.topic.partitions}
        name = self.topic.name
        for partition in self.partitions:
            if leaders.get(partition, -1) < 0:
                raise AdminError(f"{name}-{partition} has no leader")
        led = {(name, partition): leaders[partition] for partition in self.partitions}
        begin, end = known_offsets_at(admin, led, _EARLIEST), known_offsets_at(admin, led, _LATEST)
        first = {} if self.since_ms is None else known_offsets_at(admin, led, max(self.since_ms, 0))
        last = {} if self.until_ms is None else known_offsets_at(admin, led, max(self.until_ms, 0))
        self._led = {key: leader for key, leader in led.items() if key in begin and key in end}
        found = {}
        for key in self._led:
            # If no record is as late as the requested time, the broker returns no offset. In this case, `since` selects
            # no record, and `until` selects all records.
            low = begin[key] if self.since_ms is None else first.get(key, end[key])
            high = end[key] if self.until_ms is None else last.get(key, end[key])
            if self.from_offset is not None and self.forward:
                low = max(low, self.from_offset)
            elif self.from_offset is not None:
                high = min(high, self.from_offset + 1)
            low = min(max(low, begin[key]), end[key])
            found[key[1]] = Bounds(low, max(low, high))
        return found

    def step(self, admin: Any, cursor: Cursor | None) -> Step:
        """Continue from a cursor, or begin if there is none."""
        bounds = self.bounds(admin)
        now = Cursor(self.forward, {}) if cursor is None else cursor
        for partition, each in bounds.items():
            start = each.begin if self.forward else each.end
            now.at[partition] = min(max(now.at.get(partition, start), each.begin), each.end)
        work = _Work(self, admin, bounds, now, self._led)
        records = work.matching() if self.wanted else work.newest_or_oldest()
        now.found += len(records)
        return Step(records, now, bounds, not work.left(), work.reached_ms, _share(bounds, now))


class _Work:
    """One step of a search."""

    def __init__(
        self,
        search: Search,
        admin: Any,
        bounds: Mapping[int, Bounds],
        cursor: Cursor,
        led: Mapping[tuple[str, int], int],
    ) -> None:
        self._search = search
        self._admin = admin
        self._bounds = bounds
        self._cursor = cursor
        self._led = led
        self._deadline = time.monotonic() + STEP_S
        self._records = 0
        self._bytes = 0
        self._low = 0
        self.reached_ms = -1

    def newest_or_oldest(self) -> list[Found]:
        """Return the next records of all partitions together, in order of their timestamps.

        If a step has no time for all partitions, the next step continues with the remaining partitions.
        """
        limit, forward, at = self._search.limit, self._search.forward, self._cursor.at
        found: list[Found] = []
        cut: set[int] = set()
        reached: dict[int, int] = {}
        for partition in self.left():
            if reached and self._spent():
                break
            each = self._bounds[partition]
            low, high = self._window(partition, limit)
            read, end = self._read(partition, low, high, limit if forward else None)
            # After compaction a window of offsets may contain no record. Move the window until it contains a record.
            while not forward and not read and self._low > each.begin and not self._spent():
                high, low = self._low, max(each.begin, self._low - _WINDOW)
                read, end = self._read(partition, low, high, None)
            reached[partition] = end
            found = self._best(found + read, limit, cut)
        for partition, place in reached.items():
            mine = [each.offset for each in found if each.partition == partition]
            if partition not in cut:
                at[partition] = place
            elif mine:
                at[partition] = max(mine) + 1 if forward else min(mine)
        return found

    def _best(self, found: list[Found], limit: int, cut: set[int]) -> list[Found]:
        """Keep the first records, and mark the partitions with more records."""
        found.sort(key=_order, reverse=not self._search.forward)
        cut.update(each.partition for each in found[limit:])
        return found[:limit]

    def matching(self) -> list[Found]:
        """Search partitions in turns until enough records are found, or the step's limits are reached."""
        found: list[Found] = []
        wanted, forward, at = self._search.wanted, self._search.forward, self._cursor.at
        size = self._search.limit  # begin with a small window, so that frequent matches appear immediately
        while len(found) < self._search.limit and (left := self.left()):
            for partition in left:
                low, high = self._window(partition, size)
                read, at[partition] = self._read(partition, low, high, size if forward else None)
                found += [each for each in read if wanted(each)]
                if len(found) >= MOST_SHOWN or self._spent():
                    break
            if self._spent():
                break
            size = min(size * 2, _WINDOW)
        return sorted(found, key=_order, reverse=not forward)

    def left(self) -> list[int]:
        """Return the partitions that are not finished."""
        at, forward = self._cursor.at, self._search.forward
        return [p for p, each in self._bounds.items() if (at[p] < each.end if forward else at[p] > each.begin)]

    def _window(self, partition: int, size: int) -> tuple[int, int]:
        at, bounds = self._cursor.at[partition], self._bounds[partition]
        return (at, bounds.end) if self._search.forward else (max(bounds.begin, at - size), at)

    def _read(self, partition: int, low: int, high: int, most: int | None) -> tuple[list[Found], int]:
        """Return records of a range in order of their offsets, and the offset at which the next read begins (or ends).

        A forward search reads at most `most` records. A backward search always reads up to the end of the range; if the
        range is too large, the search increases the first offset of the range.
        """
        while True:
            self._low = low
            found: list[Found] = []
            at, size = low, 0
            while at < high and (most is None or len(found) < most):
                piece, at = self._fetched(partition, at, high)
                found += piece
                size += sum(each.size for each in piece)
                if size > _WINDOW_BYTES and at < high:
                    break
            if most is None and at < high and high - low > 1:
                low = high - max((high - low) // 8, 1)
                continue
            if most is not None and len(found) > most:
                found, at = found[:most], found[most - 1].offset + 1
            self._count(found)
            return found, at if self._search.forward else low

    def _fetched(self, partition: int, at: int, high: int) -> tuple[list[Found], int]:
        """Fetch once; return records below `high`, and the offset to continue from."""
        topic = self._search.topic
        key = (topic.name, partition)
        ids = {topic.name: topic.topic_id}
        piece = fetch(self._admin, self._led, {key: at}, ids, committed=self._search.committed)[key]
        # No records: an open transaction begins here, and a reader of committed records cannot read further.
        following = piece.next_offset if piece.next_offset > at else high
        return [each for each in piece.records if each.offset < high], following

    def _count(self, records: Iterable[Found]) -> None:
        for each in records:
            self._records += 1
            self._bytes += each.size
            self._cursor.read += 1
            self.reached_ms = each.timestamp

    def _spent(self) -> bool:
        return time.monotonic() > self._deadline or self._records >= STEP_RECORDS or self._bytes >= STEP_BYTES


def _order(record: Found) -> tuple[int, int, int]:
    return record.timestamp, record.partition, record.offset


def _share(bounds: Mapping[int, Bounds], cursor: Cursor) -> float:
    whole = sum(each.end - each.begin for each in bounds.values())
    if not whole:
        return 1.0
    done = sum(cursor.at[p] - each.begin if cursor.forward else each.end - cursor.at[p] for p, each in bounds.items())
    return min(done / whole, 1.0)
