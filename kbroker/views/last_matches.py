"""Searches a partition backwards for the last match of each filter, for all waiting filters at the same time.

Owns the order of the search. The search gives way to other work, and remembers the ranges that it has scanned. Never
reads new batches.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from kbroker.log.batch_scan import scan_batches
from kbroker.log.segment.header_index import HeaderIndex
from kbroker.long_work import begun_in_slices, turn
from kbroker.protocol.errors import ApiError
from kbroker.views import source
from kbroker.views.dispatch import Dispatch
from kbroker.views.scanned import Selection
from kbroker.views.source import Source

log = logging.getLogger(__name__)

RETRY_MS: Final = 1_000
"""The time in ms between a failed search and the next search. This time doubles with each failure."""
_MOST_RETRY_MS: Final = 30_000


class _Last(NamedTuple):
    """The last match in a piece, the end of its batch, and the last match below the last stable offset (-1: none).

    `unstable` has the last match of each batch above that offset.
    """

    match: int
    batch_end: int
    stable: int
    unstable: list[int]


class LastMatches:
    """The search of one partition."""

    def __init__(self, of: Source, selections: dict[str, Selection], wake_all: Callable[[], None]) -> None:
        """`selections` are the selections in use; `wake_all` is called when a search ends."""
        self._source = of
        self._selections = selections
        self._wake_all = wake_all
        self._wanted: dict[Selection, None] = {}
        self._pause_ms = 0
        self._retry_at_ms = 0.0
        self.task: asyncio.Task[None] | None = None
        """The search in progress, or the last search."""

    def find(self, selection: Selection) -> None:
        """Begin to search for the last match of a filter."""
        self._wanted[selection] = None
        if self.task is None or self.task.done():
            self.task = asyncio.get_running_loop().create_task(begun_in_slices(self._search_all))
            self.task.add_done_callback(self._ended)

    def retry(self, selection: Selection) -> None:
        """Search again after a failed search, if the failure is not recent."""
        is_idle = self.task is None or self.task.done()
        if is_idle and self._source.shared.clock.monotonic_ms() >= self._retry_at_ms:
            self.find(selection)

    def forget(self, selection: Selection) -> None:
        """Forget a filter that no view uses any longer."""
        self._wanted.pop(selection, None)

    def close(self) -> None:
        """End the search."""
        if self.task is not None:
            self.task.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is None:
            self._pause_ms = 0
        else:
            self._wanted.clear()
            self._pause_ms = min(max(2 * self._pause_ms, RETRY_MS), _MOST_RETRY_MS)
            self._retry_at_ms = self._source.shared.clock.monotonic_ms() + self._pause_ms
            if isinstance(error, OSError):
                self._source.log.report_failure(error)
            elif not isinstance(error, ApiError):
                log.error("%s-%d: search for views", *self._source.partition.key, exc_info=error)
        self._wake_all()

    async def _search_all(self) -> None:
        while self._wanted and self._source.is_current:
            pending = list(self._wanted)
            self._wanted.clear()
            await self._search_back(pending, self._source.upto)

    async def _search_back(self, wanted: Iterable[Selection], top: int) -> None:
        """Search backwards from `top` for several filters until each has a match below the last stable offset."""
        pending = dict.fromkeys(wanted, False)  # whether a match was found, perhaps of an open transaction
        stable, end = self._source.bound(committed=True), top
        while pending and self._source.is_current:
            lowest = self._source.log.log_start_offset
            for each in [each for each in pending if self._selections.get(each.filter.text) is not each]:
                del pending[each]  # no view uses the filter any longer
            for each in [each for each in pending if max(each.floor, lowest) >= end]:
                if not pending.pop(each):
                    each.empty.add(end, top)
                self._found_last(each)
            if not pending:
                return
            last, index, bits = await self._source.last_possible([each.filter for each in pending], end)
            if last < end:
                end = last
                continue
            begin, found = await self._search_piece(pending, end, stable, index, bits)
            for selection, there in found.items():
                if not pending[selection]:
                    selection.empty.add(there.batch_end, top)
                    selection.note(there.match)
                pending[selection] = True
                selection.note_unstable(there.unstable)
                if there.stable >= 0:
                    selection.note_stable(there.stable)
                    del pending[selection]
                    self._found_last(selection)
            end = min(begin, end - 1)

    def _found_last(self, selection: Selection) -> None:
        # otherwise the filter was dropped and is used again: the batches appended in between are not scanned yet
        if selection not in self._wanted:
            selection.is_known = True
        selection.wake()

    async def _search_piece(
        self, pending: Iterable[Selection], end: int, stable: int, index: HeaderIndex | None, bits: int
    ) -> tuple[int, dict[Selection, _Last]]:
        """Scan about a megabyte before `end`; return its first offset, and the last matches in the scanned part."""
        segments = self._source.log.segments
        segment = segments[segments.index_at(end - 1)]
        place = segment.find(end)
        stop = segment.size if place is None else place[0]
        if index is not None:
            start = _begin(index, bits, end, stop)
        else:
            start = segment.boundary_before(stop - source.PIECE) if stop > source.PIECE else 0
        begin = segment.base_offset
        by_filter = {each.filter: each for each in pending}
        dispatch = Dispatch(by_filter)
        found: dict[Selection, _Last] = {}
        for position, header, batch in scan_batches(segment.handle, start, stop):
            if start and position == start:
                begin = header.base_offset
            if header.base_offset >= end:
                break
            if index is not None and not bits >> index.block_at(header.base_offset) & 1:
                continue
            if header.record_count and not header.is_control:
                one = await self._source.open(header, batch)
                for wanted in await dispatch.candidates(one.data, header.record_count):
                    indexes = await self._source.select(one, wanted)
                    if indexes:
                        selection, match = by_filter[wanted], one.offset(indexes[-1])
                        _, _, known, unstable = found.get(selection) or _Last(-1, -1, -1, [])
                        if match < stable:
                            known = match
                        else:
                            unstable.append(match)
                        found[selection] = _Last(match, header.last_offset + 1, known, unstable)
                    await turn
                self._source.shared.scanned += header.record_count
            await turn
        return begin, found


def _begin(index: HeaderIndex, bits: int, end: int, stop: int) -> int:
    """Go back from `end` over adjacent blocks that may have a match, up to about a megabyte; return their start."""
    block = index.block_at(end - 1)
    while block and bits >> (block - 1) & 1 and stop - index.position_of(block - 1) <= source.PIECE:
        block -= 1
    return index.position_of(block)
