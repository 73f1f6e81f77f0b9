"""Reads the log of a schedule topic: the records that are schedules, and the marks of the leader.

Converts bytes to events of the index, in slices. Only committed records count, and records of aborted transactions do
not. Marks count as soon as they are replicated, even while a transaction that began before them is open. Never writes.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

from kbroker.log.batch_scan import scan_headers
from kbroker.log.files import read_at
from kbroker.log.partition_log import PartitionLog
from kbroker.long_work import turn
from kbroker.protocol.compression import NONE
from kbroker.protocol.errors import Malformed
from kbroker.protocol.partitioner import partition_of
from kbroker.protocol.records import (
    HEADER_SIZE,
    BatchHeader,
    Record,
    compute_crc,
    iter_batches,
    read_marker,
    stream_records,
)
from kbroker.schedules.language import Schedule, ScheduleError, read_schedule
from kbroker.schedules.marks import Begin, Mark, Pause, read_marks
from kbroker.scheduling.index import Cancel, Event, Lane, Marked, NewLane, Positions, Put, key_hash
from kbroker.scheduling.raw_records import raw_records

log = logging.getLogger(__name__)
T = TypeVar("T")
_READ_BYTES: Final = 1 << 20
_AT_ONCE: Final = 1000
"""The number of events that are replayed together: making their JSON takes some ms, and blocks the event loop."""


@dataclass(slots=True)
class Context:
    """The data that a reader needs in addition to the log."""

    salt: bytes
    lanes: dict[Lane, int]
    """The numbers of all lanes."""
    partitions: Callable[[str], int]
    """A function that returns the number of partitions of a topic; 0 if the topic is unknown."""
    most_bytes: int
    """The maximum size in bytes of a batch's records."""
    unreadable: int = 0
    """The number of records that should be schedules, but are not valid."""

    def lane(self, lane: Lane, events: list[Event]) -> int:
        """Return the number of a lane; a new lane gets its number now."""
        number = self.lanes.get(lane)
        if number is None:
            number = self.lanes[lane] = len(self.lanes)
            events.append(NewLane(number, lane))
        return number


async def read_events(
    records: PartitionLog, at: Positions, stable: int, context: Context
) -> AsyncIterator[tuple[list[Event], Positions]]:
    """Yield the events of the records and marks before `stable`, in pieces, with the positions after each piece.

    Raises OSError, ApiError.
    """
    events: list[Event] = []
    offset = at.records_to
    while offset < stable:
        piece = records.read(offset, _READ_BYTES, stable, min_one=True)
        if not len(piece):
            break
        aborted = _Aborted(records.aborted_in(piece))
        for position, header in iter_batches(view := piece.view()):
            if header.last_offset < offset:
                continue
            batch = view[position : position + header.size]
            if header.is_control:
                at = _take_control(header, batch, at, aborted, events)
            elif at.active and not aborted.contains(header):
                async for reached in _take_records(header, batch, at, context, events):
                    at = _moved(at, reached, header)
                    yield events[:], at
                    events.clear()
            offset = header.last_offset + 1
            at = _moved(at, offset, header)
            await turn
            if len(events) >= _AT_ONCE:
                yield events, at
                events = []
    if offset < stable and not at.records_to >= stable:
        # Compaction leaves no gaps here, but a log whose records were deleted may end with a gap.
        at = at._replace(records_to=stable, marks_to=max(stable, at.marks_to))
    yield events, at


def _moved(at: Positions, offset: int, header: BatchHeader) -> Positions:
    """Return the positions after all records before `offset`. The offset is in the batch or at the batch's end."""
    if offset > at.marks_to:
        at = at._replace(marks_to=offset, epoch=header.leader_epoch)
    return at._replace(records_to=offset)


async def read_marks_ahead(
    records: PartitionLog, at: Positions, high: int
) -> AsyncIterator[tuple[list[Event], Positions]]:
    """Yield the marks between the last stable offset and the high watermark, but not the records in this range."""
    events: list[Event] = []
    offset = at.marks_to
    while offset < high:
        piece = records.read(offset, _READ_BYTES, high, min_one=True)
        if not len(piece):
            break
        for position, header in iter_batches(view := piece.view()):
            if header.last_offset < offset:
                continue
            if header.is_control and header.producer_id < 0:
                for place, mark in _marks(header, view[position : position + header.size]):
                    if not isinstance(mark, Begin | Pause):
                        events.append(Marked(place, mark))
            offset = header.last_offset + 1
            at = at._replace(marks_to=offset, epoch=header.leader_epoch)
            await turn
            if len(events) >= _AT_ONCE:
                yield events, at
                events = []
    yield events, at


class _Aborted:
    """The aborted transactions in a slice."""

    def __init__(self, transactions: list[tuple[int, int]]) -> None:
        self._coming = sorted(((first, producer) for producer, first in transactions), reverse=True)
        self._open: set[int] = set()

    def contains(self, header: BatchHeader) -> bool:
        """Whether a batch belongs to an aborted transaction."""
        self._begin(header)
        return header.is_transactional and header.producer_id in self._open

    def end(self, header: BatchHeader) -> None:
        """Move past the marker that ends a transaction."""
        self._begin(header)
        self._open.discard(header.producer_id)

    def _begin(self, header: BatchHeader) -> None:
        while self._coming and self._coming[-1][0] <= header.base_offset:
            self._open.add(self._coming.pop()[1])


def _take_control(
    header: BatchHeader, batch: memoryview, at: Positions, aborted: _Aborted, events: list[Event]
) -> Positions:
    if header.producer_id >= 0:
        marker = _safely(read_marker, batch, header)
        if marker is not None:
            aborted.end(header)
        return at
    for offset, mark in _marks(header, batch):
        if isinstance(mark, Begin):
            at = at._replace(active=True, target=mark.target)
        elif isinstance(mark, Pause):
            at = at._replace(active=False)
        elif offset >= at.marks_to:
            events.append(Marked(offset, mark))
    return at


def _safely(read: Callable[[memoryview], T], batch: memoryview, header: BatchHeader) -> T | None:
    try:
        return read(batch)
    except Malformed as error:
        log.error("the control batch at offset %d is left out: %s", header.base_offset, error)
        return None


def _marks(header: BatchHeader, batch: memoryview) -> list[tuple[int, Mark]]:
    def read(data: memoryview) -> list[tuple[int, Mark]]:
        _check(data, header)
        return list(read_marks(data))

    return _safely(read, batch, header) or []


def _check(batch: memoryview, header: BatchHeader) -> None:
    """Raise Malformed unless a batch has the right checksum."""
    if compute_crc(batch) != header.crc:
        raise Malformed("its checksum is wrong")


async def _take_records(
    header: BatchHeader, batch: memoryview, at: Positions, context: Context, events: list[Event]
) -> AsyncIterator[int]:
    """Add the events of a batch's records. When there are many events, yield the offset after the last record.

    A batch has up to some million records. The events of all of them would need hundreds of MB and one long step.
    """
    try:
        _check(batch, header)
        if header.codec == NONE:
            for raw in raw_records(bytes(batch), HEADER_SIZE, header, at.records_to):
                await turn
                if raw is not None:
                    key, headers = raw.key_bytes(), raw.read_headers() if raw.has_value() else ()
                    value = b"" if raw.has_value() else None
                    take_record(Record(raw.offset, raw.stamp_ms, key, value, headers), at.target, context, events)
                    if len(events) >= _AT_ONCE:
                        yield raw.offset + 1
            return
        for record in stream_records(batch, max_bytes=context.most_bytes, begin=at.records_to):
            await turn
            if record is not None and record.offset >= at.records_to:
                take_record(record, at.target, context, events)
                if len(events) >= _AT_ONCE:
                    yield record.offset + 1
    except Malformed as error:
        context.unreadable += 1
        log.error("schedules in the batch at offset %d are left out: %s", header.base_offset, error)


def take_record(record: Record, target: str, context: Context, events: list[Event]) -> None:
    """Add the event of a record that is a schedule or cancels a schedule. The value's content is not read."""
    key = record.key
    if record.value is None:
        if key is not None:
            events.append(Cancel(key_hash(key, context.salt)))
        return
    try:
        schedule = read_schedule(key, record.headers, record.timestamp, target)
    except ScheduleError:
        schedule = None
    if schedule is None:
        context.unreadable += 1
        return
    number = context.lane(lane_of(schedule, context.partitions), events)
    hashed = None if key is None else key_hash(key, context.salt)
    events.append(Put(record.offset, number, schedule.due_ms, hashed))


def lane_of(schedule: Schedule, partitions: Callable[[str], int]) -> Lane:
    """Return the lane of a schedule, which depends on the current number of partitions of the schedule's target."""
    if schedule.partition is not None:
        return Lane(schedule.topic, schedule.partition)
    count = partitions(schedule.topic) if schedule.key is not None else 0
    if not count or schedule.key is None:
        return Lane(schedule.topic, -1)
    return Lane(schedule.topic, partition_of(schedule.key, count))


def first_toggle(records: PartitionLog, stable: int) -> Iterator[Begin | Pause | None]:
    """Yield None from time to time, so that other work can run.

    Then yield the first Begin or Pause mark, if there is one.
    """
    for segment in list(records.segments):
        for number, (position, header) in enumerate(scan_headers(segment.handle, 0, segment.size)):
            if not number % 64:
                yield None
            if header.base_offset >= stable:
                return
            if header.is_control and header.producer_id < 0 and header.last_offset >= records.log_start_offset:
                batch = memoryview(read_at(segment.handle.fd, header.size, position))
                for _, mark in _marks(header, batch):
                    if isinstance(mark, Begin | Pause):
                        yield mark
                        return
