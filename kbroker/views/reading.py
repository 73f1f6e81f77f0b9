"""Reads a partition for the consumers of a view: filtered batches from an offset on, and matches by their timestamps.

Owns the choice of batches that a reader opens: it opens no batch that was scanned or filtered before. A reader scans in
its own request, gives way to other work, and remembers the ranges that it has scanned. Never waits for new batches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from kbroker.long_work import turn
from kbroker.protocol.records import BatchHeader, read_marker
from kbroker.views import source
from kbroker.views.scanned import Selection
from kbroker.views.source import Possible, Source, complete

_NOTHING: Final = (b"", -1)


class Found(NamedTuple):
    """The result of a read: complete filtered batches, and the offset at which the read ended."""

    records: bytes
    end: int
    """The offset after the last returned batch; the requested offset if there are no records."""
    is_full: bool
    """Whether a further match was left out, because it exceeded `limit`."""
    is_done: bool
    """Whether there is no further match up to the bound."""


class Reader:
    """Reads one partition through the filters of its views."""

    def __init__(self, of: Source) -> None:
        self._source = of

    async def read(
        self,
        selection: Selection,
        start: int,
        limit: int,
        bound: int,
        *,
        min_one: bool,
        has_time: Callable[[], bool],
    ) -> Found:
        """Return filtered batches from `start` up to `bound`: at most `limit` bytes, or one batch with `min_one`.

        Ends at `bound`, or when `has_time` returns False. Raises ApiError and OSError.
        """
        parts: list[bytes] = []
        # the markers of aborted transactions, which readers need before later records of the producer
        markers: list[bytes] = []
        size, end, position = 0, start, start
        empty_from = start
        while position < bound and self._source.is_current:
            skipped = selection.skip(max(position, self._source.log.log_start_offset), self._source.upto)
            possible = Possible(skipped, source.PIECE)
            if skipped < bound:
                possible = await self._source.next_possible(selection.filter, skipped, bound, has_time)
                skipped = possible.offset
            if skipped >= bound:
                position = bound
                break
            if skipped > position:
                markers += await self._markers_in(position, skipped)
            piece = self._source.log.read(skipped, possible.size, bound, min_one=True)
            if not piece.size:
                break
            position = skipped
            for header, batch in complete(piece.view()):
                if header.last_offset < position:
                    continue
                if header.last_offset >= bound:
                    position = bound
                    break
                if header.is_control:
                    if _aborts(batch):
                        markers.append(bytes(batch))
                    position = header.last_offset + 1
                    continue
                is_skipped = selection.skip(max(header.base_offset, position), self._source.upto) > header.last_offset
                if is_skipped or not possible.has(header.base_offset):
                    position = header.last_offset + 1
                    continue
                got, last = await self._filtered(selection, header, batch) if header.record_count else _NOTHING
                if last >= start:
                    selection.note(last)
                    added = len(got) + sum(map(len, markers))
                    if size + added > limit and (size or not min_one):
                        selection.empty.add(empty_from, header.base_offset)
                        return Found(b"".join(parts), end, is_full=True, is_done=False)
                    parts += [*markers, got]
                    markers = []
                    size += added
                    selection.empty.add(empty_from, header.base_offset)
                    end = empty_from = header.last_offset + 1
                position = header.last_offset + 1
                await turn
                if not has_time():
                    selection.empty.add(empty_from, position)
                    return Found(b"".join(parts), end, is_full=False, is_done=position >= bound)
        if position > empty_from:
            selection.empty.add(empty_from, min(position, bound))
        return Found(b"".join(parts), end, is_full=False, is_done=True)

    async def _filtered(self, selection: Selection, header: BatchHeader, batch: memoryview) -> tuple[bytes, int]:
        """Return a batch with the records that match, and the offset of the last match; -1 if there is none."""
        key = self._source.key(selection.filter, header)
        known = self._source.shared.kept.get(key)
        if known is not None:
            return known
        found = await self._source.open(header, batch)
        self._source.shared.scanned += header.record_count
        indexes = await self._source.select(found, selection.filter)
        if not indexes:
            return _NOTHING
        got = await found.only(indexes), found.offset(indexes[-1])
        self._source.shared.kept.put(key, *got)
        return got

    async def first_at(
        self, selection: Selection, start: int, timestamp: int, bound: int, has_time: Callable[[], bool]
    ) -> tuple[int, int, int] | None:
        """Return (offset, timestamp, leader epoch) of the first match from `start` on with at least this time.

        Raises TimeoutError when `has_time` returns False, ApiError and OSError.
        """
        position = start
        while position < bound and self._source.is_current:
            position = selection.skip(max(position, self._source.log.log_start_offset), self._source.upto)
            possible = await self._source.next_possible(selection.filter, position, bound, has_time)
            position = possible.offset
            if position >= bound:
                return None
            piece = self._source.log.read(position, possible.size, bound, min_one=True)
            if not piece.size:
                return None
            for header, batch in complete(piece.view()):
                if header.last_offset < position:
                    continue
                if header.last_offset >= bound:
                    return None
                position = header.last_offset + 1
                is_old = header.max_timestamp < timestamp
                if not (header.is_control or is_old) and header.record_count and possible.has(header.base_offset):
                    found = await self._source.open(header, batch)
                    for index in await self._source.select(found, selection.filter):
                        if found.timestamp(index) >= timestamp and found.offset(index) >= start:
                            return found.offset(index), found.timestamp(index), header.leader_epoch
                await turn
                if not has_time():
                    raise TimeoutError
        return None

    async def _markers_in(self, begin: int, end: int) -> list[bytes]:
        """Return the markers of aborted transactions in a range that the reader skips. Raises OSError, ApiError."""
        found = []
        for offset in self._source.log.abort_markers(begin, end):
            piece = self._source.log.read(offset, 1, end, min_one=True)
            for header, batch in complete(piece.view()):
                if header.base_offset == offset and header.is_control:  # otherwise compaction has removed the marker
                    found.append(bytes(batch))
            await turn
        return found


def _aborts(batch: memoryview) -> bool:
    marker = read_marker(batch)
    return marker is not None and not marker.commit
