"""Builds the batches that a schedule topic delivers: its due records, as their targets get them.

Owns the reading of source records by their offsets, in slices and within a bound of memory, and the form of a delivered
record: its key, its value, and its headers without those of schedules. Never decides what is due, and never sends.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from kbroker.log.partition_log import PartitionLog
from kbroker.long_work import turn
from kbroker.protocol.errors import ApiError, Malformed
from kbroker.protocol.large_batch import LargeRecord, build_in_turns
from kbroker.protocol.records import HEADER_SIZE, Record, iter_batches, stream_records
from kbroker.schedules.language import Repeat, Schedule, ScheduleError, fired_headers, read_schedule
from kbroker.schedules.marks import Due, Intent
from kbroker.scheduling.index import DueRow

_NEAR_BYTES, _FAR_BYTES = 1 << 20, 1 << 16
_NEAR: Final = 1000
"""How many offsets apart two wanted records may be so that they are read together."""
_FIRST_CHUNK, _CHUNK_BYTES = 16, 1 << 18
_A_RECORD, _A_HEADER = 64, 16
"""More bytes than the numbers of a record, and of a header, need in a batch."""


class SourceGone(Exception):  # noqa: N818 - an outcome
    """Records that an intent names are not in the log any more, or cannot be read."""


@dataclass(slots=True)
class Chosen:
    """The records of one batch, in the order in which they are due."""

    partition: int = -1
    """The target's partition."""
    dues: list[Due] = field(default_factory=list)
    records: list[LargeRecord] = field(default_factory=list)
    keys: list[int] = field(default_factory=list)
    """The keys of the schedules, as the index knows them."""
    repeats: list[tuple[Due, Repeat]] = field(default_factory=list)
    size: int = HEADER_SIZE
    lost: list[DueRow] = field(default_factory=list)
    """Rows whose records cannot be read."""

    async def batch(self, producer_id: int, base_sequence: int) -> memoryview:
        """Return the batch."""
        return await build_in_turns(
            self.records, producer_id=producer_id, producer_epoch=0, base_sequence=base_sequence
        )


class Source:
    """The records of one partition of a schedule topic."""

    def __init__(self, topic: str, index: int, records: PartitionLog) -> None:
        self._topic = topic
        self._index = index
        self._log = records

    async def choose(
        self,
        rows: Sequence[DueRow],
        target: str,
        partition_of: Callable[[Schedule], int],
        most_bytes: int,
        now_ms: int,
    ) -> Chosen:
        """Return the first rows that fit in one batch for one partition of the target.

        `partition_of` returns the partition for a schedule, or -1 if it cannot go now. Raises OSError.
        """
        chosen = Chosen()
        async for row, record in self._in_order(rows):
            if record is None:
                chosen.lost.append(row)
                continue
            schedule = _schedule(record, target)
            partition = partition_of(schedule)
            if partition < 0 or chosen.partition not in (-1, partition):
                continue
            made = self._fired(record, schedule, row.due_ms, now_ms)
            size = _size_of(made)
            if chosen.records and chosen.size + size > most_bytes:
                break
            chosen.partition = partition
            chosen.size += size
            chosen.records.append(made)
            due = Due(row.offset, row.due_ms)
            chosen.dues.append(due)
            if row.key is not None:
                chosen.keys.append(row.key)
            if schedule.repeat is not None:
                chosen.repeats.append((due, schedule.repeat))
            await turn
        return chosen

    async def again(self, intent: Intent, now_ms: int) -> Chosen:
        """Return the records of an intent. Raises SourceGone, OSError."""
        found = Chosen(intent.partition)
        async for row, record in self._in_order([DueRow(*due, None, 0) for due in intent.records]):
            if record is None:
                raise SourceGone(f"the record at offset {row.offset} of {self._topic}-{self._index} is gone")
            schedule = _schedule(record, intent.topic)
            found.records.append(self._fired(record, schedule, row.due_ms, now_ms))
            due = Due(row.offset, row.due_ms)
            found.dues.append(due)
            if schedule.repeat is not None:
                found.repeats.append((due, schedule.repeat))
            await turn
        return found

    def _fired(self, record: Record, schedule: Schedule, due_ms: int, now_ms: int) -> LargeRecord:
        headers = fired_headers(record.headers, self._topic, self._index, record.offset, due_ms)
        return now_ms, schedule.key, record.value, headers

    async def _in_order(self, rows: Sequence[DueRow]) -> AsyncIterator[tuple[DueRow, Record | None]]:
        """Yield rows with their records, in the order of the rows. Few are read ahead, so that memory has a bound."""
        start, count = 0, _FIRST_CHUNK
        while start < len(rows):
            chunk = rows[start : start + count]
            found = await self._read([row.offset for row in chunk])
            size = 0
            for row in chunk:
                record = found.pop(row.offset, None)
                size += len(record.value or b"") if record is not None else 0
                yield row, record
            start += len(chunk)
            count = min(2 * count, len(rows)) if size < _CHUNK_BYTES else max(count // 2, 1)

    async def _read(self, offsets: Sequence[int]) -> dict[int, Record]:
        """Return the records at some offsets. Those that are not there or cannot be read are left out."""
        wanted = sorted(offsets)
        found: dict[int, Record] = {}
        place = 0
        while place < len(wanted):
            first = wanted[place]
            is_near = place + 1 < len(wanted) and wanted[place + 1] - first < _NEAR
            try:
                piece = self._log.read(
                    first, _NEAR_BYTES if is_near else _FAR_BYTES, self._log.log_end_offset, min_one=True
                )
                view = piece.view()
            except ApiError:
                place += 1  # it is below the log's start, or damaged
                continue
            before = place
            for position, header in iter_batches(view):
                while place < len(wanted) and wanted[place] < header.base_offset:
                    place += 1
                if place == len(wanted) or (place > before and wanted[place] - wanted[place - 1] >= _NEAR):
                    break
                if wanted[place] <= header.last_offset:
                    batch = view[position : position + header.size]
                    place = await self._take(batch, header.last_offset, wanted, place, found)
                await turn
            if place == before:
                place += 1
        return found

    async def _take(
        self, batch: memoryview, last_offset: int, wanted: list[int], place: int, found: dict[int, Record]
    ) -> int:
        """Add the wanted records of a batch. Return the place of the first wanted record after the batch."""
        most = self._log.config.max_decompressed_message_bytes
        end = place
        while end < len(wanted) and wanted[end] <= last_offset:
            end += 1
        try:
            for record in stream_records(batch, max_bytes=most, begin=wanted[place]):
                if record is None:
                    await turn
                    continue
                while place < end and wanted[place] < record.offset:
                    place += 1
                if place == end:
                    break
                if record.offset == wanted[place]:
                    found[record.offset] = record
                    place += 1
                await turn
        except Malformed:
            pass  # the rest of the batch cannot be read
        return end


def _schedule(record: Record, target: str) -> Schedule:
    try:
        schedule = read_schedule(record.key, record.headers, record.timestamp, target)
    except ScheduleError:
        schedule = None
    return schedule or Schedule(record.timestamp, None, target, None, record.key)


def _size_of(record: LargeRecord) -> int:
    """Return at least the bytes that a record needs in a batch."""
    _, key, value, headers = record
    size = _A_RECORD + len(key or b"") + len(value or b"")
    return size + sum(4 * len(name) + len(content or b"") + _A_HEADER for name, content in headers)
