"""One partition with views: reads new batches once for all its filters, finds last matches, and reads for consumers.

Owns the order of scans. New batches are scanned by one task for all filters that are in use; each batch is opened once.
A filter that is used for the first time is scanned backwards for its last match, together with others that wait for
theirs. A consumer that is behind scans in its own request. All of them give way to other work, and remember what they
scanned. Never decides what a client may read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kbroker.log.batch_scan import scan_batches
from kbroker.log.partition_log import PartitionLog
from kbroker.long_work import in_slices, turn
from kbroker.partition import Partition, Waiter
from kbroker.protocol.errors import ApiError, Malformed
from kbroker.protocol.records import BatchHeader, iter_batches, read_marker
from kbroker.views.dispatch import Dispatch
from kbroker.views.opened_batch import OpenedBatch, damaged, opened
from kbroker.views.scanned import Selection
from kbroker.views.shared import Shared

if TYPE_CHECKING:
    from kbroker.filters.filtering import Filter

log = logging.getLogger(__name__)

PIECE: Final = 1 << 20
"""The bytes that are read from the source together."""
FAR: Final = 32 << 20
"""A gap of so many bytes is not scanned forwards for filters that only need their last match."""
IDLE_MS: Final = 60_000
"""After this time in ms without a request, new batches are not scanned for a filter any longer."""
_NOTHING: Final = (b"", -1)
_LARGE: Final = 1 << 16
"""A batch of more bytes is opened beside few others, because it may need much memory."""


class Found(NamedTuple):
    """The result of a read: complete filtered batches, and where the read ended."""

    records: bytes
    end: int
    """The offset behind the last returned batch; without records, the requested offset."""
    is_full: bool
    """Whether a further match did not fit."""
    is_done: bool
    """Whether there is no further match up to the bound."""


class _Last(NamedTuple):
    """The last match in a piece and the end of its batch, the last match below the last stable offset (-1: none).

    `unstable` has the last match of each batch above that offset.
    """

    match: int
    batch_end: int
    stable: int
    unstable: list[int]


class SourceScan:
    """A partition and the filters that its views use."""

    def __init__(self, partition: Partition, shared: Shared) -> None:
        self.partition = partition
        self.log: PartitionLog = partition.log
        self._shared = shared
        self._truncations = self.log.truncations
        self.upto = 0
        """Up to here batches are scanned for the attached selections."""
        self._begun = False
        self.selections: dict[str, Selection] = {}
        self._attached: dict[Selection, None] = {}
        self._dispatch: Dispatch | None = None
        self._by_filter: dict[Filter, Selection] = {}
        self._scan: asyncio.Task[None] | None = None
        self._search: asyncio.Task[None] | None = None
        self._searched: dict[Selection, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._led = self._leadership()
        self._waiting = 0
        self._is_fresh = False
        """Whether a selection is in use that is not attached."""
        self._looked_ms = 0.0

    @property
    def is_current(self) -> bool:
        """Whether the log is still the one that was scanned: neither replaced nor truncated."""
        return self.partition.log is self.log and self._truncations == self.log.truncations

    def _leadership(self) -> tuple[bool, int]:
        return self.partition.leading, self.partition.leader_epoch

    # -- what a consumer may read

    def bound(self, *, committed: bool = False) -> int:
        """Return the end of what consumers can read of the source. Raises OSError."""
        source = self.log
        end = source.last_stable_offset if committed else source.high_watermark
        if source.maturity is not None:
            end = min(end, source.mature_end(self._shared.clock.now_ms()))
        return end

    def use(self, wanted: Filter) -> Selection:
        """Return the selection of a filter, and note that it is in use."""
        found = self.selections.get(wanted.text)
        if found is None:
            found = self.selections[wanted.text] = Selection(wanted, self.upto)
        found.used_ms = self._shared.clock.monotonic_ms()
        self._is_fresh |= not found.attached
        return found

    def drop(self, text: str) -> None:
        """Forget a filter that no view uses any longer."""
        found = self.selections.pop(text)
        if found.attached:
            self._detach(found)
        self._searched.pop(found, None)
        _wake(found)

    # -- waiting

    def wait(self, selection: Selection, waiter: Waiter) -> None:
        """Poke a waiter when the selection may have new matches, or the partition's leadership has changed."""
        if waiter not in selection.waiters:
            selection.waiters[waiter] = None
            self._waiting += 1
            self.partition.waiters[self] = None

    def stop_waiting(self, selection: Selection, waiter: Waiter) -> None:
        """Forget a waiter, if it waits."""
        if waiter in selection.waiters:
            del selection.waiters[waiter]
            self._waiting -= 1
            if not self._waiting:
                self.partition.waiters.pop(self, None)

    def poke(self) -> None:
        """Scan new batches, because the partition has changed and somebody waits."""
        if self._leadership() != self._led or not self.is_current or not self._shared.is_hosted(self.partition):
            self._led = self._leadership()
            self.wake_all()
            return
        self.scan()

    def wake_all(self) -> None:
        """Poke all waiters."""
        for selection in list(self.selections.values()):
            _wake(selection)

    # -- new batches

    def scan(self) -> asyncio.Task[None] | None:
        """Begin to scan new batches; return the task, None if there is nothing to scan."""
        if self._scan is None or self._scan.done():
            try:
                if self._begun and self.upto >= self.bound() and not self._is_fresh:
                    self._set_timer()
                    return None
            except OSError as error:
                self.log.report_failure(error)
                return None
            self._scan = asyncio.get_running_loop().create_task(_task(self._scan_new))
            self._scan.add_done_callback(self._scanned)
        return self._scan

    def _scanned(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            if isinstance(error, OSError):
                self.log.report_failure(error)
            elif not isinstance(error, ApiError):
                log.error("%s-%d: scan for views", *self.partition.key, exc_info=error)
            self.wake_all()
            return
        self._set_timer()

    def _set_timer(self) -> None:
        """Scan again when further records of a source with `delivery.delay.ms` are old enough."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.log.maturity is not None and self._waiting:
            wait_ms = self.log.ms_to_maturity(self._shared.clock.now_ms())
            if wait_ms is not None:
                self._timer = asyncio.get_running_loop().call_later(max(wait_ms, 1) / 1000, self.poke)

    async def _scan_new(self) -> None:
        """Scan up to the end that consumers can read now, for all filters in use."""
        while self.is_current:
            bound = self.bound()
            if not self._begun or self._is_far(bound):
                self._jump(bound)
            self._attach_used()
            if self.upto >= bound:
                return
            if not self._attached:
                self.upto = bound
                return
            self.upto = max(self.upto, self.log.log_start_offset)
            piece = self.log.read(self.upto, PIECE, bound, min_one=True)
            if not piece.size:
                return
            for header, batch in _complete(piece.view()):
                if header.last_offset < self.upto:
                    continue
                if header.last_offset >= bound:
                    break
                if header.record_count and not header.is_control:
                    await self._scan_batch(header, batch)
                self.upto = header.last_offset + 1
                await turn

    def _is_far(self, bound: int) -> bool:
        segments = self.log.segments
        first, last = segments.index_at(self.upto), segments.index_at(max(bound - 1, 0))
        if self.upto >= bound:
            return False
        if last - first > 1:
            return sum(each.size for each in segments[first + 1 : last]) > FAR
        return segments.size > FAR and self._bytes_between(self.upto, bound) > FAR

    def _bytes_between(self, begin: int, end: int) -> int:
        segments = self.log.segments
        first, last = segments.index_at(begin), segments.index_at(end - 1)
        start, stop = segments[first].place_before(begin), segments[last].place_before(end)
        return stop - start if first == last else segments[first].size - start + stop

    def _jump(self, bound: int) -> None:
        """Continue at `bound`; what lies between is searched backwards for each filter when it is needed."""
        for each in list(self._attached):
            self._detach(each)
        self.upto, self._begun, self._is_fresh = bound, True, True

    def _detach(self, selection: Selection) -> None:
        if selection.is_known:
            selection.floor = self.upto
        selection.detach(self.upto)
        self._attached.pop(selection, None)
        self._dispatch = None

    def _is_used(self, selection: Selection, now_ms: float) -> bool:
        return bool(selection.waiters) or now_ms - selection.used_ms < IDLE_MS

    def _attach_used(self) -> None:
        """Attach the selections that are in use, and from time to time detach the others."""
        now_ms = self._shared.clock.monotonic_ms()
        if not self._is_fresh and now_ms - self._looked_ms < IDLE_MS / 4:
            return
        self._is_fresh, self._looked_ms = False, now_ms
        for each in list(self.selections.values()):
            is_used = self._is_used(each, now_ms)
            if each.attached and not is_used:
                self._detach(each)
            elif is_used and not each.attached:
                each.is_known &= each.upto == self.upto
                each.attach(self.upto)
                self._attached[each] = None
                self._dispatch = None
                if not each.is_known:
                    self._find_last(each)

    async def _scan_batch(self, header: BatchHeader, batch: memoryview) -> None:
        found = await self.open(header, batch)
        if self._dispatch is None:
            self._by_filter = {each.filter: each for each in self._attached}
            self._dispatch = Dispatch(self._by_filter)
        by_filter = self._by_filter
        for wanted in self._dispatch.candidates(found.data):
            selection = by_filter[wanted]
            indexes = await self._select(found, wanted)
            if indexes and selection.attached:
                last = found.offset(indexes[-1])
                self._shared.kept.put(self._key(wanted, header), await found.only(indexes), last)
                selection.matched(header.base_offset, last, header.last_offset + 1)
                _wake(selection)
            await turn
        self._shared.scanned += header.record_count

    # -- the last match

    def _find_last(self, selection: Selection) -> None:
        """Begin to search backwards for the last match of a filter."""
        self._searched[selection] = None
        if self._search is None or self._search.done():
            self._search = asyncio.get_running_loop().create_task(_task(self._search_all))
            self._search.add_done_callback(self._searching_ended)

    def _searching_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._searched.clear()
            if isinstance(error, OSError):
                self.log.report_failure(error)
            elif not isinstance(error, ApiError):
                log.error("%s-%d: search for views", *self.partition.key, exc_info=error)
        self.wake_all()

    async def _search_all(self) -> None:
        while self._searched and self.is_current:
            pending = list(self._searched)
            self._searched.clear()
            await self._search_back(pending, self.upto)

    async def _search_back(self, wanted: Iterable[Selection], top: int) -> None:
        """Search backwards from `top`, for several filters at once, until each has a match that is stable."""
        pending = dict.fromkeys(wanted, False)  # whether a match was found, perhaps of an open transaction
        stable, end = self.bound(committed=True), top
        while pending and self.is_current:
            lowest = self.log.log_start_offset
            for each in [each for each in pending if self.selections.get(each.filter.text) is not each]:
                del pending[each]  # no view uses it any longer
            for each in [each for each in pending if max(each.floor, lowest) >= end]:
                if not pending.pop(each):
                    each.empty.add(end, top)
                self._found_last(each)
            if not pending:
                return
            begin, found = await self._search_piece(pending, end, stable)
            for selection, last in found.items():
                if not pending[selection]:
                    selection.empty.add(last.batch_end, top)
                    selection.note(last.match)
                pending[selection] = True
                selection.note_unstable(last.unstable)
                if last.stable >= 0:
                    selection.note_stable(last.stable)
                    del pending[selection]
                    self._found_last(selection)
            end = min(begin, end - 1)

    def _found_last(self, selection: Selection) -> None:
        if selection not in self._searched:  # otherwise it was given up and is used again: batches in between are left
            selection.is_known = True
        _wake(selection)

    async def _search_piece(
        self, pending: Iterable[Selection], end: int, stable: int
    ) -> tuple[int, dict[Selection, _Last]]:
        """Scan about a megabyte before `end`; return its first offset, and the last matches that it has."""
        segments = self.log.segments
        segment = segments[segments.index_at(end - 1)]
        place = segment.find(end)
        stop = segment.size if place is None else place[0]
        start = segment.boundary_before(stop - PIECE) if stop > PIECE else 0
        begin = segment.base_offset
        by_filter = {each.filter: each for each in pending}
        dispatch = Dispatch(by_filter)
        found: dict[Selection, _Last] = {}
        for position, header, batch in scan_batches(segment.handle, start, stop):
            if start and position == start:
                begin = header.base_offset
            if header.base_offset >= end:
                break
            if header.record_count and not header.is_control:
                one = await self.open(header, batch)
                for wanted in dispatch.candidates(one.data):
                    indexes = await self._select(one, wanted)
                    if indexes:
                        selection, match = by_filter[wanted], one.offset(indexes[-1])
                        _, _, known, unstable = found.get(selection) or _Last(-1, -1, -1, [])
                        if match < stable:
                            known = match
                        else:
                            unstable.append(match)
                        found[selection] = _Last(match, header.last_offset + 1, known, unstable)
                    await turn
                self._shared.scanned += header.record_count
            await turn
        return begin, found

    def knows_end(self, selection: Selection) -> bool:
        """Whether the last match is known. Before that, clients must not take any offset for the end."""
        return selection.is_known and selection.attached

    async def caught_up(self, until: float) -> None:
        """Wait for the scan of new batches in progress, if there is one, until a time of the loop's clock."""
        if self._scan is not None and not self._scan.done():
            await _either(self._scan, until)

    async def ends(self, selection: Selection, until: float) -> bool:
        """Wait until the last match of a selection is known; return False after the time `until` of the loop's clock.

        Raises OSError and ApiError.
        """
        loop = asyncio.get_running_loop()
        while self.is_current:
            bound = self.bound()
            if self.knows_end(selection) and self.upto >= bound:
                return True
            if self.use(selection.filter) is not selection:
                return False
            task = self.scan() or self._search
            if task is None:
                return selection.is_known
            if loop.time() >= until:
                return False
            await _either(task, until)
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error
            if self._search is not None and not self._search.done() and not selection.is_known:
                await _either(self._search, until)
        return False

    # -- reading for a consumer

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
        markers: list[bytes] = []  # of aborted transactions, which readers need before later records of the producer
        size, end, position = 0, start, start
        empty_from = start
        while position < bound and self.is_current:
            skipped = selection.skip(max(position, self.log.log_start_offset), self.upto)
            if skipped >= bound:
                position = bound
                break
            if skipped > position:
                markers += await self._markers_in(position, skipped)
            piece = self.log.read(skipped, PIECE, bound, min_one=True)
            if not piece.size:
                break
            position = skipped
            for header, batch in _complete(piece.view()):
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
                if selection.skip(max(header.base_offset, position), self.upto) > header.last_offset:
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
        """Return a batch with the records that match, and the offset of the last one; -1 if there are none."""
        key = self._key(selection.filter, header)
        known = self._shared.kept.get(key)
        if known is not None:
            return known
        found = await self.open(header, batch)
        self._shared.scanned += header.record_count
        indexes = await self._select(found, selection.filter)
        if not indexes:
            return _NOTHING
        got = await found.only(indexes), found.offset(indexes[-1])
        self._shared.kept.put(key, *got)
        return got

    async def first_at(
        self, selection: Selection, start: int, timestamp: int, bound: int, has_time: Callable[[], bool]
    ) -> tuple[int, int, int] | None:
        """Return (offset, timestamp, leader epoch) of the first match from `start` on that is not older.

        Raises TimeoutError when `has_time` returns False, ApiError and OSError.
        """
        position = start
        while position < bound and self.is_current:
            position = selection.skip(max(position, self.log.log_start_offset), self.upto)
            if position >= bound:
                return None
            piece = self.log.read(position, PIECE, bound, min_one=True)
            if not piece.size:
                return None
            for header, batch in _complete(piece.view()):
                if header.last_offset < position:
                    continue
                if header.last_offset >= bound:
                    return None
                position = header.last_offset + 1
                if not header.is_control and header.record_count and header.max_timestamp >= timestamp:
                    found = await self.open(header, batch)
                    for index in await self._select(found, selection.filter):
                        if found.timestamp(index) >= timestamp and found.offset(index) >= start:
                            return found.offset(index), found.timestamp(index), header.leader_epoch
                await turn
                if not has_time():
                    raise TimeoutError
        return None

    # -- batches

    async def open(self, header: BatchHeader, batch: memoryview) -> OpenedBatch:
        """Open a batch; large ones a few at a time. Raises ApiError."""
        if header.size <= _LARGE:
            return await opened(header, batch)
        found: OpenedBatch = await self._shared.openings.run(lambda: opened(header, batch))
        return found

    async def _select(self, found: OpenedBatch, wanted: Filter) -> list[int]:
        try:
            return await found.select(wanted, self.partition.index)
        except Malformed as error:
            raise damaged(found.header) from error

    def _key(self, wanted: Filter, header: BatchHeader) -> tuple[object, ...]:
        return id(self), wanted.text, header.base_offset, header.crc

    async def _markers_in(self, begin: int, end: int) -> list[bytes]:
        """Return the markers of aborted transactions in a range that is not read again. Raises OSError, ApiError."""
        found = []
        for offset in self.log.abort_markers(begin, end):
            piece = self.log.read(offset, 1, end, min_one=True)
            for header, batch in _complete(piece.view()):
                if header.base_offset == offset and header.is_control:  # otherwise compaction has removed it
                    found.append(bytes(batch))
            await turn
        return found

    def close(self) -> None:
        """End all work."""
        for task in (self._scan, self._search):
            if task is not None:
                task.cancel()
        if self._timer is not None:
            self._timer.cancel()
        self.partition.waiters.pop(self, None)
        self.wake_all()


async def _task(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    await in_slices(work())


def _wake(selection: Selection) -> None:
    for waiter in tuple(selection.waiters):
        waiter.poke()


def _aborts(batch: memoryview) -> bool:
    marker = read_marker(batch)
    return marker is not None and not marker.commit


def _complete(view: memoryview) -> Iterator[tuple[BatchHeader, memoryview]]:
    for position, header in iter_batches(view):
        yield header, view[position : position + header.size]


async def _either(task: asyncio.Task[None], until: float) -> None:
    """Wait for a task, at most until a time of the loop's clock. The task continues."""
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
