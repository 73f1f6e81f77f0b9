"""One partition with views: the filters in use, and the scan of new batches, once for all of them.

Owns the order of scans. New batches are scanned by one task for all filters that are in use; each batch is opened once.
For a filter that is used for the first time, last_matches.py searches backwards for its last match. A consumer of older
batches scans in its own request (reading.py). All scans give way to other work, and remember the ranges that they have
scanned. Never decides which records a client may read.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from kbroker.log.partition_log import PartitionLog
from kbroker.long_work import begun_in_slices, turn
from kbroker.partition import Partition, Waiter
from kbroker.protocol.errors import ApiError
from kbroker.protocol.records import BatchHeader
from kbroker.views import source
from kbroker.views.dispatch import Dispatch
from kbroker.views.last_matches import LastMatches
from kbroker.views.reading import Reader
from kbroker.views.scanned import Selection
from kbroker.views.shared import Shared
from kbroker.views.source import Source, complete

if TYPE_CHECKING:
    from kbroker.filters.filtering import Filter

log = logging.getLogger(__name__)

FAR: Final = 32 << 20
"""The maximum size in bytes of a gap that is scanned forwards for filters that need only their last match."""
IDLE_MS: Final = 60_000
"""The time in ms without a request after which new batches are no longer scanned for a filter."""


class SourceScan:
    """A partition and the filters that its views use."""

    def __init__(self, partition: Partition, shared: Shared) -> None:
        self.partition = partition
        self.log: PartitionLog = partition.log
        self._shared = shared
        self.source: Final = Source(partition, shared)
        self.reader: Final = Reader(self.source)
        self._begun = False
        self.selections: dict[str, Selection] = {}
        self._last_matches: Final = LastMatches(self.source, self.selections, self.wake_all)
        self._attached: dict[Selection, None] = {}
        self._dispatch: Dispatch | None = None
        self._by_filter: dict[Filter, Selection] = {}
        self._scan: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._led = self._leadership()
        self._waiting = 0
        self._is_fresh = False
        """Whether any selection is in use that is not attached."""
        self._looked_ms = 0.0

    @property
    def is_current(self) -> bool:
        """Whether the scanned log was neither replaced nor truncated."""
        return self.source.is_current

    @property
    def upto(self) -> int:
        """The offset up to which batches are scanned for the attached selections."""
        return self.source.upto

    def bound(self, *, committed: bool = False) -> int:
        """Return the end of the source's records that consumers can read. Raises OSError."""
        return self.source.bound(committed=committed)

    def _leadership(self) -> tuple[bool, int]:
        return self.partition.leading, self.partition.leader_epoch

    # -- filters in use

    def use(self, wanted: Filter) -> Selection:
        """Return the selection of a filter, and note that it is in use."""
        found = self.selections.get(wanted.text)
        if found is None:
            found = self.selections[wanted.text] = Selection(wanted, self.upto)
        found.used_ms = self._shared.clock.monotonic_ms()
        self._is_fresh |= not found.attached
        if found.attached and not found.is_known:
            self._last_matches.retry(found)
        return found

    def drop(self, text: str) -> None:
        """Forget a filter that no view uses any longer."""
        found = self.selections.pop(text)
        if found.attached:
            self._detach(found)
        self._last_matches.forget(found)
        found.wake()

    # -- waiting

    def wait(self, selection: Selection, waiter: Waiter) -> None:
        """Notify a waiter when the selection may have new matches, or the partition's leadership has changed."""
        if waiter not in selection.waiters:
            selection.waiters[waiter] = None
            self._waiting += 1
            self.partition.waiters[self] = None

    def stop_waiting(self, selection: Selection, waiter: Waiter) -> None:
        """Forget a waiter, if there is such a waiter."""
        if waiter in selection.waiters:
            del selection.waiters[waiter]
            self._waiting -= 1
            if not self._waiting:
                self.partition.waiters.pop(self, None)

    def poke(self) -> None:
        """Scan new batches, because the partition has changed and there are waiters."""
        if self._leadership() != self._led or not self.is_current or not self._shared.is_hosted(self.partition):
            self._led = self._leadership()
            self.wake_all()
            return
        self.scan()

    def wake_all(self) -> None:
        """Poke all waiters."""
        for selection in list(self.selections.values()):
            selection.wake()

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
            self._scan = asyncio.get_running_loop().create_task(begun_in_slices(self._scan_new))
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
        """Scan up to the end of the records that consumers can read now, for all filters in use."""
        while self.is_current:
            bound = self.bound()
            if not self._begun or self._is_far(bound):
                self._jump(bound)
            self._attach_used()
            if self.upto >= bound:
                return
            if not self._attached:
                self.source.upto = bound
                return
            self.source.upto = max(self.upto, self.log.log_start_offset)
            piece = self.log.read(self.upto, source.PIECE, bound, min_one=True)
            if not piece.size:
                return
            for header, batch in complete(piece.view()):
                if header.last_offset < self.upto:
                    continue
                if header.last_offset >= bound:
                    break
                if header.record_count and not header.is_control:
                    await self._scan_batch(header, batch)
                self.source.upto = header.last_offset + 1
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
        """Continue at `bound`. The skipped part is searched backwards for each filter when this is needed."""
        for each in list(self._attached):
            self._detach(each)
        self.source.upto, self._begun, self._is_fresh = bound, True, True

    def _detach(self, selection: Selection) -> None:
        if selection.is_known:
            selection.floor = self.upto
        selection.detach(self.upto)
        self._attached.pop(selection, None)
        self._dispatch = None

    def _is_used(self, selection: Selection, now_ms: float) -> bool:
        return bool(selection.waiters) or now_ms - selection.used_ms < IDLE_MS

    def _attach_used(self) -> None:
        """Attach the selections that are in use. From time to time, detach the selections that are no longer in use."""
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
                    self._last_matches.find(each)

    async def _scan_batch(self, header: BatchHeader, batch: memoryview) -> None:
        found = await self.source.open(header, batch)
        if self._dispatch is None:
            self._by_filter = {each.filter: each for each in self._attached}
            self._dispatch = Dispatch(self._by_filter)
        by_filter = self._by_filter
        for wanted in await self._dispatch.candidates(found.data, header.record_count):
            selection = by_filter[wanted]
            indexes = await self.source.select(found, wanted)
            if indexes and selection.attached:
                last = found.offset(indexes[-1])
                self._shared.kept.put(self.source.key(wanted, header), await found.only(indexes), last)
                selection.matched(header.base_offset, last, header.last_offset + 1)
                selection.wake()
            await turn
        self._shared.scanned += header.record_count

    # -- the last match

    def knows_end(self, selection: Selection) -> bool:
        """Whether the last match is known. Before that, clients must not treat any offset as the end."""
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
            task = self.scan() or self._last_matches.task
            if task is None:
                return selection.is_known
            if loop.time() >= until:
                return False
            await _either(task, until)
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error
            search = self._last_matches.task
            if search is not None and not search.done() and not selection.is_known:
                await _either(search, until)
        return False

    def close(self) -> None:
        """End all work."""
        self._last_matches.close()
        if self._scan is not None:
            self._scan.cancel()
        if self._timer is not None:
            self._timer.cancel()
        self.partition.waiters.pop(self, None)
        self.wake_all()


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
