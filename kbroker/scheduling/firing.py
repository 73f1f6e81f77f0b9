"""Builds the batches that a schedule topic delivers: its due records, in the form that their targets get.

Owns the choice of the records for one batch, and the form of a delivered record: its key, its value, and its headers
without the headers of schedules. finding.py reads the records. Never decides which records are due, and never sends.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Final

from kbroker.log import record_walk
from kbroker.log.partition_log import PartitionLog
from kbroker.long_work import turn
from kbroker.protocol.large_batch import LargeRecord, build_in_turns
from kbroker.protocol.records import HEADER_SIZE, Record, enclose
from kbroker.schedules.language import Repeat, Schedule, ScheduleError, fired_headers, read_schedule
from kbroker.schedules.marks import Due, Dues, Intent
from kbroker.scheduling.finding import Finder, Found
from kbroker.scheduling.index import DueRow, DueRows
from kbroker.scheduling.lanes import MISSING, Choice
from kbroker.scheduling.raw_records import Delivered, Raw, encoded

_LARGE: Final = 1 << 17
"""A record with more bytes has a batch of its own, and this batch is built in slices."""


class SourceGone(Exception):  # noqa: N818 - an outcome
    """Records that an intent names are no longer in the log, or cannot be read."""


@dataclass(slots=True)
class Chosen:
    """The records of one batch, in the order in which they are due."""

    now_ms: int
    """The timestamp of all records."""
    partition: int = -1
    """The target's partition."""
    dues: Dues = field(default_factory=Dues)
    records: list[bytes] = field(default_factory=list)
    """The records in the batch's form. Each element contains one or more records."""
    large: LargeRecord | None = None
    """The batch's only record, if this record is large."""
    keys: list[int] = field(default_factory=list)
    """The keys of the schedules, as hashes (see index.key_hash)."""
    repeats: list[tuple[Due, Repeat]] = field(default_factory=list)
    size: int = HEADER_SIZE
    lost: list[DueRow] = field(default_factory=list)
    """Rows (of the index) whose records cannot be read."""
    homeless: list[DueRow] = field(default_factory=list)
    """Rows whose records name a partition that the target lacks."""

    async def batch(self, producer_id: int, base_sequence: int) -> memoryview:
        """Return the batch."""
        if self.large is not None:
            return await build_in_turns(
                [self.large], producer_id=producer_id, producer_epoch=0, base_sequence=base_sequence
            )
        await turn
        payload = b"".join(self.records)
        built = enclose(
            payload,
            len(self.dues),
            self.now_ms,
            self.now_ms,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=base_sequence,
        )
        return memoryview(built)

    def add(self, row: DueRow, record: bytes | LargeRecord, size: int, repeat: Repeat | None) -> None:
        """Add a record with its size in bytes."""
        if isinstance(record, bytes):
            self.records.append(record)
        else:
            self.large = record
        self.size += size
        due = Due._make(row[:2])
        self.dues.append(due)
        if row.key is not None:
            self.keys.append(row.key)
        if repeat is not None:
            self.repeats.append((due, repeat))

    def add_many(self, rows: DueRows, begin: int, fates: bytes, records: bytes) -> None:
        """Add the `records` of the rows from number `begin` on, without the rows whose element in `fates` is 0."""
        end = begin + len(fates)
        places: Sequence[int] = range(begin, end)
        offsets, times = rows.offsets[begin:end], rows.times[begin:end]
        if 0 in fates:
            places = list(compress(places, fates))
            offsets, times = array("q", compress(offsets, fates)), array("q", compress(times, fates))
        self.dues.offsets.extend(offsets)
        self.dues.times.extend(times)
        self.keys += rows.keys(places)
        self.records.append(records)
        self.size += len(records)


class Source:
    """The records of one partition of a schedule topic."""

    def __init__(self, topic: str, index: int, records: PartitionLog) -> None:
        self._topic = topic
        self._index = index
        self._finder = Finder(records)
        self._delivered = Delivered(topic, index)

    async def choose(self, rows: DueRows, target: str, choice: Choice, most_bytes: int, now_ms: int) -> Chosen:
        """Return the first rows that fit in one batch for one partition of the target.

        `choice` chooses this partition. Raises OSError.
        """
        chosen = Chosen(max([now_ms, *rows.times]))  # the clock may have gone back since a row became due
        with self._finder:
            await self._choose(chosen, rows, target, choice, most_bytes)
        return chosen

    async def _choose(self, chosen: Chosen, rows: DueRows, target: str, choice: Choice, most_bytes: int) -> None:
        async for chunk, found in self._finder.in_order(rows):
            places = array("q", [found.places.get(offset, -1) for offset in chunk.offsets])
            number = 0
            while number < len(chunk):
                await turn
                passed = self._choose_many(chosen, chunk, found, places, number, choice, most_bytes)
                if passed:
                    number += passed
                    continue
                row = chunk[number]
                number += 1
                record = found.get(row.offset)
                if record is None:
                    chosen.lost.append(row)
                elif not self._choose_one(chosen, row, record, target, choice, most_bytes):
                    return

    def _choose_many(
        self,
        chosen: Chosen,
        rows: DueRows,
        found: Found,
        places: array[int],
        begin: int,
        choice: Choice,
        most_bytes: int,
    ) -> int:
        """Add the records that compiled code can deliver, if there is compiled code.

        Return the number of rows that are done.
        """
        room = most_bytes - chosen.size
        if record_walk.deliver is None or chosen.partition < 0 or places[begin] < 0 or room <= 0:
            return 0
        records, fates = record_walk.deliver(
            found.data(places[begin]),
            places,
            rows.offsets,
            rows.times,
            begin,
            self._delivered.shape,
            chosen.partition,
            choice.count,
            choice(None, None) == chosen.partition,
            len(chosen.dues),
            room,
        )
        if records:
            chosen.add_many(rows, begin, fates, records)
        return len(fates)

    def _choose_one(
        self,
        chosen: Chosen,
        row: DueRow,
        record: Raw | Record,
        target: str,
        choice: Choice,
        most_bytes: int,
    ) -> bool:
        """Add a record if its target is the batch's partition; return whether the batch has room for more records."""
        delta = len(chosen.dues)
        made: bytes | LargeRecord | None = None
        repeat: Repeat | None = None
        if isinstance(record, Raw) and record.end - record.key < _LARGE:
            made = self._delivered.short(record, row.due_ms, delta)
        if made is None:
            made, schedule = self._made(record, target, row.due_ms, chosen.now_ms, delta)
            partition = choice(schedule.key, schedule.partition)
            repeat = schedule.repeat
        else:
            assert isinstance(record, Raw)
            partition = choice(None if record.has_no_key else record.key_bytes(), None)
        if partition == MISSING:
            chosen.homeless.append(row)
        if partition < 0 or chosen.partition not in (-1, partition):
            return True
        size = len(made) if isinstance(made, bytes) else most_bytes
        if chosen.dues and chosen.size + size > most_bytes:
            return False
        chosen.partition = partition
        chosen.add(row, made, size, repeat)
        return True

    async def again(self, intent: Intent, now_ms: int) -> Chosen:
        """Return the records of an intent. Raises SourceGone, OSError."""
        dues = Dues.of(intent.records)
        now_ms = max([now_ms, *dues.times])  # the clock may have gone back meanwhile
        chosen = Chosen(now_ms, intent.partition)
        async for chunk, found in self._finder.in_order(DueRows(dues.offsets, dues.times, None, None)):
            for row in chunk:
                record = found.get(row.offset)
                if record is None:
                    raise SourceGone(f"the record at offset {row.offset} of {self._topic}-{self._index} is gone")
                made, schedule = self._made(record, intent.topic, row.due_ms, now_ms, len(chosen.dues))
                chosen.add(row, made, 0, schedule.repeat)
                await turn
        return chosen

    def _made(
        self, found: Raw | Record, target: str, due_ms: int, now_ms: int, delta: int
    ) -> tuple[bytes | LargeRecord, Schedule]:
        """Return the delivered record, and the schedule in its headers."""
        if isinstance(found, Raw):
            key, value, headers = found.key_bytes(), found.value_bytes(), found.read_headers()
            stamp_ms = found.stamp_ms
        else:
            key, value, headers, stamp_ms = found.key, found.value, found.headers, found.timestamp
        try:
            schedule = read_schedule(key, headers, stamp_ms, target)
        except ScheduleError:
            schedule = None
        if schedule is None:
            schedule = Schedule(stamp_ms, None, target, None, key)
        own = fired_headers(headers, self._topic, self._index, found.offset, due_ms)
        size = len(schedule.key or b"") + len(value or b"") + sum(len(content or b"") for _, content in own)
        if size >= _LARGE and not delta:
            return (now_ms, schedule.key, value, own), schedule
        return encoded(schedule.key, value, own, delta), schedule
