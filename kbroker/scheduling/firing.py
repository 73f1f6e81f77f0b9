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
from kbroker.protocol.compression import NONE, unpack
from kbroker.protocol.errors import ApiError, Malformed
from kbroker.protocol.large_batch import LargeRecord, build_in_turns
from kbroker.protocol.records import HEADER_SIZE, BatchHeader, Record, enclose, iter_batches, stream_records
from kbroker.schedules.language import Repeat, Schedule, ScheduleError, fired_headers, read_schedule
from kbroker.schedules.marks import Due, Intent
from kbroker.scheduling.index import DueRow
from kbroker.scheduling.raw_records import Delivered, Raw, encoded, raw_records
from kbroker.scheduling.shared import BATCH_RECORDS

_NEAR_BYTES, _FAR_BYTES = 1 << 20, 1 << 16
_NEAR: Final = 1000
"""How many offsets apart two wanted records may be so that they are read together."""
_FIRST_CHUNK, _CHUNK_BYTES = 64, 1 << 20
_LARGE: Final = 1 << 17
"""A record with more bytes goes alone, and its batch is built in slices."""
_UNPACKED: Final = 1 << 22
"""The most bytes of an uncompressed batch that is held as a whole."""
_AT_ONCE: Final = 8

Found = Raw | Record


class SourceGone(Exception):  # noqa: N818 - an outcome
    """Records that an intent names are not in the log any more, or cannot be read."""


@dataclass(slots=True)
class Chosen:
    """The records of one batch, in the order in which they are due."""

    now_ms: int
    """The timestamp of all records."""
    partition: int = -1
    """The target's partition."""
    dues: list[Due] = field(default_factory=list)
    records: list[bytes] = field(default_factory=list)
    """The records in the form that they have in the batch."""
    large: LargeRecord | None = None
    """The only record, if it is large."""
    keys: list[int] = field(default_factory=list)
    """The keys of the schedules, as the index knows them."""
    repeats: list[tuple[Due, Repeat]] = field(default_factory=list)
    size: int = HEADER_SIZE
    lost: list[DueRow] = field(default_factory=list)
    """Rows whose records cannot be read."""

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
            len(self.records),
            self.now_ms,
            self.now_ms,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=base_sequence,
        )
        return memoryview(built)

    def add(self, row: DueRow, record: bytes | LargeRecord, size: int, repeat: Repeat | None) -> None:
        """Add a record of so many bytes."""
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


class Source:
    """The records of one partition of a schedule topic."""

    def __init__(self, topic: str, index: int, records: PartitionLog) -> None:
        self._topic = topic
        self._index = index
        self._log = records
        self._delivered = Delivered(topic, index)
        self._chunk = _FIRST_CHUNK

    async def choose(
        self,
        rows: Sequence[DueRow],
        target: str,
        partition_of: Callable[[bytes | None, int | None], int],
        most_bytes: int,
        now_ms: int,
    ) -> Chosen:
        """Return the first rows that fit in one batch for one partition of the target.

        `partition_of` returns the partition for a key and a wanted partition, or -1 if it cannot go now. Raises
        OSError.
        """
        chosen = Chosen(now_ms)
        async for chunk, found in self._in_order(rows):
            for number, row in enumerate(chunk):
                if not number % _AT_ONCE:
                    await turn
                record = found.get(row.offset)
                if record is None:
                    chosen.lost.append(row)
                elif not self._choose_one(chosen, row, record, target, partition_of, most_bytes):
                    return chosen
        return chosen

    def _choose_one(
        self,
        chosen: Chosen,
        row: DueRow,
        record: Found,
        target: str,
        partition_of: Callable[[bytes | None, int | None], int],
        most_bytes: int,
    ) -> bool:
        """Add a record if it goes to the batch's partition; return whether there is room for more."""
        delta = len(chosen.records)
        made: bytes | LargeRecord | None = None
        repeat: Repeat | None = None
        if isinstance(record, Raw) and record.end - record.key < _LARGE:
            made = self._delivered.short(record, row.due_ms, delta)
        if made is None:
            made, schedule = self._made(record, target, row.due_ms, chosen.now_ms, delta)
            partition = partition_of(schedule.key, schedule.partition)
            repeat = schedule.repeat
        else:
            assert isinstance(record, Raw)
            partition = partition_of(None if record.has_no_key else record.key_bytes(), None)
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
        now_ms = max(now_ms, *(due.due_ms for due in intent.records))  # the clock may have gone back since
        chosen = Chosen(now_ms, intent.partition)
        async for chunk, found in self._in_order([DueRow(*due, None, 0) for due in intent.records]):
            for row in chunk:
                record = found.get(row.offset)
                if record is None:
                    raise SourceGone(f"the record at offset {row.offset} of {self._topic}-{self._index} is gone")
                made, schedule = self._made(record, intent.topic, row.due_ms, now_ms, len(chosen.records))
                chosen.add(row, made, 0, schedule.repeat)
                await turn
        return chosen

    def _made(
        self, found: Found, target: str, due_ms: int, now_ms: int, delta: int
    ) -> tuple[bytes | LargeRecord, Schedule]:
        """Return the delivered record, and what its headers say."""
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

    async def _in_order(self, rows: Sequence[DueRow]) -> AsyncIterator[tuple[Sequence[DueRow], dict[int, Found]]]:
        """Yield some rows with their records by offset, and then more: few are read ahead, so memory has a bound."""
        start = 0
        while start < len(rows):
            count = self._chunk
            chunk = rows[start : start + count]
            found, size = await self._read([row.offset for row in chunk])
            yield chunk, found
            start += len(chunk)
            self._chunk = max(min(8 * count, _CHUNK_BYTES * len(chunk) // max(size, 1), BATCH_RECORDS), 1)

    async def _read(self, offsets: Sequence[int]) -> tuple[dict[int, Found], int]:
        """Return the records at some offsets, and how many bytes keep them in memory.

        Those that are not there or cannot be read are left out.
        """
        wanted = sorted(offsets)
        found: dict[int, Found] = {}
        place = size = 0
        while place < len(wanted):
            first = wanted[place]
            is_near = place + 1 < len(wanted) and wanted[place + 1] - first < _NEAR
            most = _NEAR_BYTES if is_near else _FAR_BYTES
            try:
                view = self._log.read(first, most, self._log.log_end_offset, min_one=True).view()
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
                    size += header.size
                    place = await self._take(batch, header, wanted, place, found)
                await turn
            if place == before:
                place += 1
        return found, size

    async def _take(
        self, batch: memoryview, header: BatchHeader, wanted: list[int], place: int, found: dict[int, Found]
    ) -> int:
        """Add the wanted records of a batch. Return the place of the first wanted record after the batch."""
        end = place
        while end < len(wanted) and wanted[end] <= header.last_offset:
            end += 1
        try:
            if header.codec == NONE:
                await _take_raw(bytes(batch), HEADER_SIZE, header, wanted[place:end], found)
                return end
            unpacked = await self._unpacked(batch, header)
            if unpacked is not None:
                await _take_raw(unpacked, 0, header, wanted[place:end], found)
            else:
                await self._take_decoded(batch, wanted[place:end], found)
        except Malformed:
            pass  # the rest of the batch cannot be read
        return end

    async def _unpacked(self, batch: memoryview, header: BatchHeader) -> bytes | None:
        """Return the records of a compressed batch; None if they are too many bytes."""
        pieces: list[bytes] = []
        size = 0
        for piece in unpack(header.codec, batch[HEADER_SIZE:], self._log.config.max_decompressed_message_bytes):
            pieces.append(piece)
            size += len(piece)
            if size > _UNPACKED:
                return None
            await turn
        return b"".join(pieces)

    async def _take_decoded(self, batch: memoryview, wanted: list[int], found: dict[int, Found]) -> None:
        most = self._log.config.max_decompressed_message_bytes
        offsets = set(wanted)
        for record in stream_records(batch, max_bytes=most, begin=wanted[0]):
            if record is not None:
                if record.offset > wanted[-1]:
                    return
                if record.offset in offsets:
                    found[record.offset] = record
            await turn


async def _take_raw(
    data: bytes, position: int, header: BatchHeader, wanted: list[int], found: dict[int, Found]
) -> None:
    offsets, last = set(wanted), wanted[-1]
    for number, raw in enumerate(raw_records(data, position, header, wanted[0])):
        if not number % (2 * _AT_ONCE):
            await turn
        if raw is None:
            continue
        if raw.offset > last:
            return
        if raw.offset in offsets:
            found[raw.offset] = raw
