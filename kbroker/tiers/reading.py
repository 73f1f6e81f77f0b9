"""Reads partitions from remote storage: batches from an offset on, aborted transactions, and offsets by their time.

Owns the steps from an offset to the bytes: leader epoch and offset determine the segment, the segment's offset index
determines the place in it, and the cache returns the chunk. A request waits for a chunk for a limited time. Then the
fetch of the chunk continues without the request, so that the next request finds the chunk. Never decides what a client
may read.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from contextlib import suppress
from typing import Final, NamedTuple, TypeVar

from kbroker.log.log_slice import LogSlice
from kbroker.log.partition_log import PartitionLog
from kbroker.log.segment.index_files import OFFSET_ENTRY, TIME_ENTRY
from kbroker.log.segment.transaction_index import TXN_ENTRY
from kbroker.long_work import turn
from kbroker.protocol.errors import ApiError, ErrorCode, Malformed
from kbroker.protocol.records import HEADER_SIZE, MAGIC, BatchHeader, compute_crc, parse_header, stream_records
from kbroker.remote.object_format import Part
from kbroker.remote.segment import RemoteSegment
from kbroker.remote.segment_objects import SegmentObject
from kbroker.remote.store_errors import DamagedObjectError, StoreError
from kbroker.tiers.chunk_cache import AHEAD, CHUNK_BYTES, Chunk, ChunkCache, ChunkKey, LostChunkError
from kbroker.tiers.metadata import Owner
from kbroker.tiers.shared import Shared
from kbroker.tiers.tiered_partition import object_name

logger = logging.getLogger(__name__)

_MAGIC_AT: Final = 16
_MOST_SILENT: Final = 1_000
_SILENCE_S: Final = 300.0
_MOST_UNPACKED: Final = 1 << 30
_T = TypeVar("_T")


class RemoteData(NamedTuple):
    """The result of a read: batches, and the aborted transactions in them. The last batch may be incomplete."""

    records: LogSlice | bytes
    aborted: list[tuple[int, int]]


NOT_YET: Final = RemoteData(b"", [])
"""The result while the bytes are still being fetched."""


class _Known(NamedTuple):
    """A segment that was read before, with its indexes."""

    of: SegmentObject
    offsets: bytes
    times: bytes
    aborted: bytes
    """The index of aborted transactions, in the order of their markers."""

    @property
    def size(self) -> int:
        """The size in bytes of the indexes in memory."""
        return len(self.offsets) + len(self.times) + len(self.aborted) + 500


class RemoteReader:
    """Reads remote segments for all partitions of a broker."""

    def __init__(self, shared: Shared, directory: str) -> None:
        """`directory` is the directory of the cached chunks."""
        settings = shared.settings
        self._shared = shared
        self._known: OrderedDict[bytes, _Known] = OrderedDict()
        self._index_bytes = 0
        self._openings: dict[bytes, asyncio.Task[_Known]] = {}
        self.chunks = ChunkCache(directory, settings.cache_bytes, settings.reads_at_once)
        self._opening = asyncio.Semaphore(settings.reads_at_once)
        self._silent_until: dict[Owner, float] = {}
        """For partitions with a failed read: no log line names them before this time of the loop's clock."""

    def limit(self, at_once: int) -> None:
        """Set the maximum number of concurrent fetches from the store."""
        self._opening = asyncio.Semaphore(at_once)
        self.chunks.limit(at_once)

    # -- records

    async def read(
        self,
        owner: Owner,
        log: PartitionLog,
        offset: int,
        most: int,
        *,
        min_one: bool,
        committed: bool,
        until: float,
    ) -> RemoteData:
        """Return batches, beginning with the batch that contains an offset; or return `NOT_YET`.

        The result has at most `most` bytes; with `min_one` it has at least one batch. Waits until a time of the loop's
        clock. Raises ApiError: OFFSET_OUT_OF_RANGE if the records are deleted, KAFKA_STORAGE_ERROR if the store fails
        or has lost the records.
        """
        try:
            found = await self._read(owner, log, offset, most, until, min_one=min_one, committed=committed)
        except (TimeoutError, LostChunkError):
            return NOT_YET
        except (StoreError, OSError) as error:
            if offset < log.earliest_offset:  # deleted meanwhile
                raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE) from error
            self._shared.counts.read_errors += 1
            self._log_failure(owner, offset, error)
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        self._shared.counts.read_bytes += len(found.records)
        return found

    async def _read(
        self, owner: Owner, log: PartitionLog, offset: int, most: int, until: float, *, min_one: bool, committed: bool
    ) -> RemoteData:
        segment = self.find(owner, log, offset)
        known = await self._open(owner, segment, until)
        position, header = await self._batch_at(known, segment, offset, until)
        if most < header.size and not min_one:
            return NOT_YET
        records = await self._bytes_from(known, position, header, max(most, header.size), until)
        if position // CHUNK_BYTES + AHEAD >= _chunk_count(known):
            self._prepare(owner, log, segment.end_offset + 1)
        if not (committed and known.aborted):
            return RemoteData(records, [])
        end = segment.end_offset + 1
        end = min(end, segment.start_offset + _offset_after(known.offsets, position + len(records)))
        return RemoteData(records, await _aborted_in(known.aborted, offset, end))

    def _prepare(self, owner: Owner, log: PartitionLog, offset: int) -> None:
        """Open the segment that a reader needs next; if it is open already, fetch its first chunk."""
        tier = log.tier
        if tier is None or offset >= min(tier.end_offset, log.log_start_offset):
            return  # the next records are on the local disk
        with suppress(ApiError, TimeoutError):
            segment = self.find(owner, log, offset)
            known = self._known.get(segment.id)
            if known is None:
                self._opening_of(owner, segment)
            else:
                first = ChunkKey(segment.id, 0)
                self.chunks.bring_ahead(first, lambda: self._fetch(known, first))

    def _log_failure(self, owner: Owner, offset: int, error: Exception) -> None:
        """Log a failed read, at most once in some minutes for each partition: clients retry all the time."""
        now = asyncio.get_running_loop().time()
        if now < self._silent_until.get(owner, 0.0):
            return
        if len(self._silent_until) >= _MOST_SILENT:
            self._silent_until.clear()
        self._silent_until[owner] = now + _SILENCE_S
        logger.warning("%s cannot be read from remote storage at offset %d: %s", owner, offset, error)

    def find(self, owner: Owner, log: PartitionLog, offset: int) -> RemoteSegment:
        """Return the segment that contains an offset.

        Raises ApiError, and TimeoutError while the segment is unknown.
        """
        try:
            segments = self._shared.metadata.segments(owner)
        except ApiError:  # the metadata are being loaded
            raise TimeoutError from None
        found = segments.find(log.leader_epochs.epoch_for_offset(offset), offset)
        if found is None:
            tier = log.tier
            is_known = tier is not None and log.earliest_offset <= offset < tier.end_offset
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR if is_known else ErrorCode.OFFSET_OUT_OF_RANGE)
        return found

    async def _bytes_from(
        self, known: _Known, position: int, header: BatchHeader, most: int, until: float
    ) -> LogSlice | bytes:
        """Return at most `most` bytes of one chunk, from a batch on.

        If the batch is in several chunks, return only this batch.
        """
        number, start = divmod(position, CHUNK_BYTES)
        if start + header.size > CHUNK_BYTES:
            return await self._bytes(known, position, header.size, until)
        chunk = await self._chunk(known, number, until)
        size = min(most, chunk.size - start)
        if not chunk.is_file:
            return chunk.read(start, size)
        piece = LogSlice(chunk, start, size)
        _ = piece.fd  # from now on the file stays readable, even if the cache removes it
        return piece

    async def _batch_at(
        self, known: _Known, segment: RemoteSegment, offset: int, until: float
    ) -> tuple[int, BatchHeader]:
        """Return the place and the header of the batch that contains an offset. Raises DamagedObjectError."""
        position = _indexed(known.offsets, offset - segment.start_offset)
        for begin in (position, 0) if position else (0,):  # an index only makes reads faster
            place = begin
            while (header := await self._header(known, place, until)) is not None:
                if header.base_offset > offset and place == begin and begin:
                    break
                if header.last_offset >= offset:
                    return place, header
                place += header.size
                await turn
        raise DamagedObjectError(f"a remote segment of {segment.size} bytes has no batch with offset {offset}")

    async def _header(self, known: _Known, position: int, until: float) -> BatchHeader | None:
        """Return the header of the batch at a place; None if there is no batch."""
        end = known.of.layout.lengths[Part.LOG]
        if position + HEADER_SIZE > end:
            return None
        data = await self._bytes(known, position, HEADER_SIZE, until)
        if data[_MAGIC_AT] != MAGIC:
            return None
        header = parse_header(data)
        is_whole = header.size >= HEADER_SIZE and position + header.size <= end and header.last_offset_delta >= 0
        return header if is_whole else None

    async def _bytes(self, known: _Known, position: int, size: int, until: float) -> bytes:
        parts = []
        while size:
            number, start = divmod(position, CHUNK_BYTES)
            chunk = await self._chunk(known, number, until)
            part = chunk.read(start, min(size, CHUNK_BYTES - start))
            if not part:
                raise DamagedObjectError("a remote segment ends within a batch")
            parts.append(part)
            position += len(part)
            size -= len(part)
            await turn
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _chunk(self, known: _Known, number: int, until: float) -> Chunk:
        segment_id = known.of.layout.segment_id
        key = ChunkKey(segment_id, number)
        found = self.chunks.get(key)
        if found is None:
            if self.chunks.coming >= self._shared.settings.reads_waiting:
                raise TimeoutError
            found = await _within(self.chunks.bring(key, lambda: self._fetch(known, key)), until)
        for following in range(number + 1, min(number + 1 + AHEAD, _chunk_count(known))):
            ahead = ChunkKey(segment_id, following)
            self.chunks.bring_ahead(ahead, lambda ahead=ahead: self._fetch(known, ahead))  # type: ignore[misc]
        return found

    async def _fetch(self, known: _Known, key: ChunkKey) -> memoryview:
        start = key.number * CHUNK_BYTES
        size = min(CHUNK_BYTES, known.of.layout.lengths[Part.LOG] - start)
        return await known.of.read(Part.LOG, start, size, deadline_s=self._shared.deadline_s)

    # -- segments

    async def _open(self, owner: Owner, segment: RemoteSegment, until: float) -> _Known:
        known = self._known.get(segment.id)
        if known is not None:
            self._known.move_to_end(segment.id)
            return known
        return await _within(self._opening_of(owner, segment), until)

    def _opening_of(self, owner: Owner, segment: RemoteSegment) -> asyncio.Task[_Known]:
        """Return the task that opens a segment. Raises TimeoutError if too many segments are being opened."""
        task = self._openings.get(segment.id)
        if task is None:
            if len(self._openings) >= self._shared.settings.reads_waiting:
                raise TimeoutError
            task = self._openings[segment.id] = asyncio.get_running_loop().create_task(self._opened(owner, segment))
            task.add_done_callback(lambda done: self._was_opened(segment.id, done))
        return task

    async def _opened(self, owner: Owner, segment: RemoteSegment) -> _Known:
        async with self._opening:
            return await self._opened_now(owner, segment)

    async def _opened_now(self, owner: Owner, segment: RemoteSegment) -> _Known:
        shared = self._shared
        of = await SegmentObject.open(
            shared.store,
            object_name(shared, owner, segment),
            segment.id,
            footer=segment.custom,
            deadline_s=shared.deadline_s,
        )
        parts = {}
        for part in (Part.OFFSET_INDEX, Part.TIME_INDEX, Part.TRANSACTION_INDEX):
            there = of.layout.lengths[part]
            parts[part] = await of.whole(part, deadline_s=shared.deadline_s) if there else b""
        return _Known(of, parts[Part.OFFSET_INDEX], parts[Part.TIME_INDEX], parts[Part.TRANSACTION_INDEX])

    def _was_opened(self, segment_id: bytes, done: asyncio.Task[_Known]) -> None:
        del self._openings[segment_id]
        if done.cancelled() or done.exception() is not None:
            return
        known = self._known[segment_id] = done.result()
        self._index_bytes += known.size
        while self._index_bytes > self._shared.settings.index_bytes and len(self._known) > 1:
            self._index_bytes -= self._known.popitem(last=False)[1].size

    # -- offsets by time

    async def first_at(
        self, owner: Owner, log: PartitionLog, timestamp: int, until: float
    ) -> tuple[int, int, int] | None:
        """Return (offset, timestamp, leader epoch) of the first remote record that is not older than `timestamp`.

        Return None if there is no such record. Raises ApiError and TimeoutError.
        """
        tier = log.tier
        if tier is None:
            return None
        offset = log.earliest_offset
        try:
            while offset < min(tier.end_offset, log.log_start_offset):  # both offsets grow meanwhile
                segment = self.find(owner, log, offset)
                if segment.max_timestamp_ms >= timestamp:
                    known = await self._open(owner, segment, until)
                    found = await self._first_in(known, segment, offset, timestamp, until)
                    if found is not None:
                        return found
                offset = segment.end_offset + 1
                await turn
        except (StoreError, OSError) as error:
            self._shared.counts.read_errors += 1
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        return None

    async def _first_in(
        self, known: _Known, segment: RemoteSegment, offset: int, timestamp: int, until: float
    ) -> tuple[int, int, int] | None:
        begin = max(_by_time(known.times, timestamp), offset - segment.start_offset)
        place, size = _indexed(known.offsets, begin), 0
        while (header := await self._header(known, place := place + size, until)) is not None:
            size = header.size
            await turn
            if header.max_timestamp < timestamp or header.last_offset < offset:
                continue
            batch = memoryview(await self._bytes(known, place, header.size, until))
            if compute_crc(batch) != header.crc:
                raise DamagedObjectError("a batch in a remote segment has another CRC than its header says")
            try:
                for record in stream_records(batch, max_bytes=_MOST_UNPACKED):
                    if record is None:
                        await turn
                    elif record.timestamp >= timestamp and record.offset >= offset:
                        return record.offset, record.timestamp, header.leader_epoch
            except Malformed as error:
                raise DamagedObjectError(f"a batch in a remote segment cannot be read: {error}") from error
        return None

    def close(self) -> None:
        """End the fetches, and remove the cached chunks."""
        for task in list(self._openings.values()):
            task.cancel()
        self.chunks.close()


def _chunk_count(known: _Known) -> int:
    return -(-known.of.layout.lengths[Part.LOG] // CHUNK_BYTES)


def _indexed(index: bytes, relative_offset: int) -> int:
    """Return the position of the last entry of an offset index at or before an offset; 0 without such an entry."""
    count = len(index) // OFFSET_ENTRY.size
    place = bisect_right(
        range(count), relative_offset, key=lambda each: OFFSET_ENTRY.unpack_from(index, each * OFFSET_ENTRY.size)[0]
    )
    return int(OFFSET_ENTRY.unpack_from(index, (place - 1) * OFFSET_ENTRY.size)[1]) if place else 0


def _offset_after(index: bytes, position: int) -> int:
    """Return a relative offset that is greater than the offsets of all records before a position.

    If no such offset is known, return a very large number.
    """
    count = len(index) // OFFSET_ENTRY.size
    place = bisect_left(
        range(count), position, key=lambda each: OFFSET_ENTRY.unpack_from(index, each * OFFSET_ENTRY.size)[1]
    )
    return int(OFFSET_ENTRY.unpack_from(index, place * OFFSET_ENTRY.size)[0]) if place < count else 1 << 40


async def _aborted_in(index: bytes, start: int, end: int) -> list[tuple[int, int]]:
    """Return (producer id, first offset) of the aborted transactions that overlap [start, end)."""
    count = len(index) // TXN_ENTRY.size
    place = bisect_left(range(count), start, key=lambda each: TXN_ENTRY.unpack_from(index, each * TXN_ENTRY.size)[3])
    found = []
    for at in range(place * TXN_ENTRY.size, count * TXN_ENTRY.size, TXN_ENTRY.size):
        _, producer_id, first, _, stable = TXN_ENTRY.unpack_from(index, at)
        if first < end:
            found.append((producer_id, first))
        if stable >= end:
            break
        await turn
    return found


def _by_time(index: bytes, timestamp: int) -> int:
    """Return the relative offset of the last entry of a time index that is older than a timestamp; otherwise 0."""
    count = len(index) // TIME_ENTRY.size
    place = bisect_right(
        range(count), timestamp - 1, key=lambda each: TIME_ENTRY.unpack_from(index, each * TIME_ENTRY.size)[0]
    )
    return int(TIME_ENTRY.unpack_from(index, (place - 1) * TIME_ENTRY.size)[1]) if place else 0


async def _within(task: asyncio.Task[_T], until: float) -> _T:
    """Return a task's result, or raise TimeoutError at a time of the loop's clock. The task then continues."""
    if not task.done():
        loop = asyncio.get_running_loop()
        waiting = loop.create_future()

        def wake(_task: object = None) -> None:
            if not waiting.done():
                waiting.set_result(None)

        timer = loop.call_at(until, wake)
        task.add_done_callback(wake)
        try:
            await waiting
        finally:
            timer.cancel()
            task.remove_done_callback(wake)
        if not task.done():
            raise TimeoutError
    return task.result()
