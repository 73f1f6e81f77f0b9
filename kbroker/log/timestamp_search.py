"""The search for an offset by its timestamp (ListOffsets), which needs single records.

Owns this search over the segments of a log, in slices: a stored batch may have any uncompressed size. Never changes a
log's content, but repairs indexes if necessary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kbroker.log.batch_scan import scan_headers
from kbroker.log.checks_at_first_read import ends_well, proven_end
from kbroker.log.files import read_at
from kbroker.log.log_segments import LogExtent, Segments
from kbroker.log.record_walk import record_slices
from kbroker.log.segment.segment import Segment
from kbroker.long_work import turn
from kbroker.protocol.errors import ApiError, ErrorCode, Malformed
from kbroker.protocol.records import BatchHeader, compute_crc, wrap

_MAX_DECOMPRESSED = 1 << 30  # batches were checked at the append: only a broken file exceeds this
_I64 = 2**63
_SEGMENTS = 8  # the number of segments between two pauses: a segment's first check opens three files
# the number of bytes of skipped batches that are checked; only a search among unordered timestamps skips more
_CHECKED_BYTES = 1 << 20


Found = tuple[int, int, int]
"""The offset, the timestamp in ms, and the leader epoch of a record."""


class TimestampSearch:
    """The search in one log. It works in slices, and each slice uses the log's current content."""

    __slots__ = ("_segments",)

    def __init__(self, segments: Segments) -> None:
        self._segments = segments

    async def first_at(self, timestamp: int, extent: Callable[[], LogExtent]) -> Found | None:
        """Find the first record with a timestamp of at least `timestamp`. Raises ApiError(CORRUPT_MESSAGE)."""
        passed = 0
        while True:
            start = max(extent().start_offset, passed)
            found = await self._first_batch(timestamp, extent, start)
            if found is None:
                return None
            header, batch = found
            record = await _search(header, batch, timestamp, start)
            if record is not None:
                return record
            passed = header.last_offset + 1
            await turn

    async def _first_batch(
        self, timestamp: int, extent: Callable[[], LogExtent], start: int
    ) -> tuple[BatchHeader, bytes] | None:
        """Return the first batch from `start` on whose largest timestamp is at least `timestamp`."""
        segments = self._segments
        for index in _places(segments, segments.index_at(start - 1) if start else 0):
            if index is None:
                await turn
            elif not _is_older(segments, index, timestamp):
                for found in _batches_at(segments, extent(), index, timestamp, start):
                    return found
        return None

    async def largest(self, extent: Callable[[], LogExtent]) -> Found | None:
        """Find the first record with the largest timestamp (-1 if no record has one).

        Raises ApiError (CORRUPT_MESSAGE).
        """
        segments = self._segments
        while True:
            timestamp, segment = await self._newest()
            if timestamp < 0:  # no record has a timestamp: the answer is the first record, as in UnifiedLog
                return await self.first_at(timestamp, extent)
            start = segment.base_offset
            while (index := segments.index_of(segment)) >= 0:  # negative if deleted or compacted meanwhile
                found = next(_batches_at(segments, extent(), index, timestamp, start), None)
                if found is None:
                    return None
                header, batch = found
                record = await _search(header, batch, timestamp, 0)
                if record is not None:
                    return record
                start = header.last_offset + 1
                await turn
            await turn

    async def _newest(self) -> tuple[int, Segment]:
        """Return the largest timestamp, or -1 if there is none, and the first segment that contains it."""
        segments = self._segments
        largest, newest = -1, segments.active
        for index in _places(segments, 0):
            if index is None:
                await turn
            elif segments[index].max_timestamp > largest:
                largest, newest = segments[index].max_timestamp, segments[index]
        return largest, newest


def _places(segments: Segments, index: int) -> Iterator[int | None]:
    """Yield the indexes of all segments from `index` on; yield None as pauses for other work.

    Even if the segments change meanwhile, no later segment is omitted.
    """
    count = 0
    while True:
        following = segments.bases[index + 1] if index + 1 < len(segments) else None
        yield index
        if following is None:
            return
        count += 1
        index += 1
        if count % _SEGMENTS == 0:
            yield None
            index = segments.index_at(following)


def _is_older(segments: Segments, index: int, timestamp: int) -> bool:
    """Whether a closed segment certainly has only smaller timestamps; False if its end is not proven."""
    segment = segments[index]
    if segment is segments.active or segment.max_timestamp >= timestamp or segment.indexes.damaged:
        return False
    return not segment.found.unproven or segment.found.end_proven


def _batches_at(
    segments: Segments, extent: LogExtent, index: int, timestamp: int, start_offset: int
) -> Iterator[tuple[BatchHeader, bytes]]:
    """Yield (header, bytes) of a segment's batches from `start_offset` on.

    Yield only batches whose largest timestamp is at least `timestamp`. The result also depends on the skipped batches.
    Therefore this function checks the CRCs of the skipped batches that existed at the start, up to a limited number of
    bytes. Raises ApiError(CORRUPT_MESSAGE).
    """
    segment = segments[index]
    anchor = segment.place_by_time(timestamp, start_offset)
    if segment.indexes.damaged or not ends_well(segments, extent, index):
        raise ApiError(ErrorCode.CORRUPT_MESSAGE)
    if anchor is None:
        return
    file, end, passed_over = segment.handle, anchor, 0
    for place, header in scan_headers(file, anchor, segment.size):
        end = place + header.size
        wanted = header.max_timestamp >= timestamp and header.last_offset >= start_offset
        if not wanted and (passed_over > _CHECKED_BYTES or place >= segment.found.unchecked):
            continue
        batch = read_at(file.fd, header.size, place)
        passed_over += header.size
        if place < segment.found.unchecked and compute_crc(batch) != header.crc:
            raise ApiError(ErrorCode.CORRUPT_MESSAGE)
        if wanted:
            if proven_end(segments, extent, index, anchor, place, place) <= place:
                raise ApiError(ErrorCode.CORRUPT_MESSAGE)
            yield header, batch
    if end < segment.size:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE)


async def _search(header: BatchHeader, batch: bytes, timestamp: int, start_offset: int) -> Found | None:
    """Return the batch's first record with a timestamp of at least `timestamp`. Raises ApiError(CORRUPT_MESSAGE)."""
    base = header.base_timestamp
    try:
        for found in record_slices(memoryview(batch), header, _MAX_DECOMPRESSED):
            if found is None:
                await turn
                continue
            if not header.timestamp_type:
                stamps = list(found.stamps())
                if base + max(stamps) < timestamp and base + min(stamps) >= -_I64:
                    await turn
                    continue
            for delta, stamp, _, _ in found.rows():
                time = header.max_timestamp if header.timestamp_type else wrap(base + stamp)
                if time >= timestamp and header.base_offset + delta >= start_offset:
                    return header.base_offset + delta, time, header.leader_epoch
            await turn
    except Malformed as error:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
    return None
