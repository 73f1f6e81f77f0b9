"""The choice of records for a share group that reads a view or has a filter: the group gets the matches.

Owns this choice within the batches of one fetch. Records that do not match are archived. Never changes the state of a
record.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Final

from kbroker.filters.filtering import Filter
from kbroker.long_work import turn
from kbroker.protocol.errors import Malformed
from kbroker.protocol.records import parse_header
from kbroker.share_partition.states import Acquired, Span
from kbroker.views.opened_batch import OpenedBatch, damaged
from kbroker.views.source_scan import SourceScan

SHARE_FILTER: Final = "share.filter"
"""The config of a group that selects records by a filter."""


class Matching:
    """The matching records of some batches. All filters must match."""

    def __init__(self, scan: SourceScan, filters: Sequence[Filter]) -> None:
        self._scan = scan
        self._filters = filters
        self._batches: list[tuple[OpenedBatch, list[int]]] = []
        self._offsets: list[int] = []

    async def add(self, batch: memoryview) -> None:
        """Add the next batch of the partition. Raises ApiError for a damaged batch."""
        header = parse_header(batch)
        if header.is_control or not header.record_count:
            return
        opened = await self._scan.source.open(header, batch)
        indexes: list[int] | None = None
        try:
            for each in self._filters:
                found = await opened.select(each, self._scan.partition.index)
                indexes = found if indexes is None else sorted(set(indexes).intersection(found))
        except Malformed as error:
            raise damaged(header) from error
        if indexes:
            self._batches.append((opened, indexes))
            self._offsets += [opened.offset(index) for index in indexes]

    async def others(self, got: Sequence[Acquired]) -> list[Span]:
        """Return the offsets of the acquired ranges that are not matches, in order."""
        spans: list[Span] = []
        for first, last, _ in got:
            at = first
            for offset in self._offsets[bisect_left(self._offsets, first) : bisect_right(self._offsets, last)]:
                if offset > at:
                    spans.append(Span(at, offset - 1))
                at = offset + 1
            if at <= last:
                spans.append(Span(at, last))
            await turn
        return spans

    async def records(self, got: Sequence[Acquired]) -> bytes:
        """Return the batches with the matching records of acquired ranges."""
        firsts, lasts = [each.first_offset for each in got], [each.last_offset for each in got]
        parts = []
        for opened, indexes in self._batches:
            kept = []
            for index in indexes:
                offset = opened.offset(index)
                place = bisect_right(firsts, offset) - 1
                if place >= 0 and offset <= lasts[place]:
                    kept.append(index)
            if kept:
                parts.append(await opened.only(kept))
            await turn
        return b"".join(parts)
