"""Fetch (key 1), versions 4-18: record batches from the page cache, with long polls and fetch sessions.

The response is a list of slices of segment files; this module reads no byte of a record. If there is not enough data
yet, the request waits until its partitions have `min_bytes`, a partition changes in another way, or `max_wait_ms` is
over. A short request (`DelayedFetch`) then reads all its partitions again.

For a request with many partitions, this module owns the last result of each partition, and the set of partitions that
have changed since then. Such a request reads a few partitions at a time. After an append to one partition, a waiting
fetch checks only that partition, however many others it names. A waiting request keeps only the sizes of its data, so
that it keeps no deleted file open. It reads the data again for the response.
"""

from __future__ import annotations

import asyncio
import math
from itertools import islice

from kbroker.handlers.fetch_attempt import Fetch, is_due
from kbroker.handlers.registry import Reply, RequestContext, handles
from kbroker.handlers.slow_fetch import SlowFetch
from kbroker.long_work import turn
from kbroker.partition import Partition
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse, PartitionData

FEW = 64
"""The maximum number of topics and partitions together in a short request, including those of its session."""
READ_AT_ONCE = 32
"""The maximum number of changed partitions that are checked before other tasks get a turn: about 0.1 ms."""


def _on_error(_request: FetchRequest, code: int, _message: str | None) -> FetchResponse:
    return FetchResponse(error_code=code)


class DelayedFetch:
    """A waiting Fetch (a long poll): it waits on its partitions, and on a timer."""

    __slots__ = ("_fetch", "_loop", "_maturity", "_scheduled", "_timer", "_until", "future")

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[FetchResponse] = self._loop.create_future()
        self.future.add_done_callback(self._forget)
        self._scheduled = False
        for partition in fetch.partitions:
            fetch.waiters_of(partition)[self] = None
        fetch.traffic.delayed_fetches += 1
        self._until = self._loop.time() + fetch.max_wait_ms / 1000
        self._timer = self._loop.call_at(self._until, self._try, True)
        self._maturity = self._when_mature()

    def _when_mature(self) -> asyncio.TimerHandle | None:
        """Set a timer for the time at which the next record is old enough (`delivery.delay.ms`).

        Return None if this time is unknown, or later than the end of the wait.
        """
        seconds = self._fetch.matures_in_ms / 1000
        if seconds == math.inf or self._loop.time() + seconds >= self._until:
            return None
        return self._loop.call_later(seconds, self._try, False)

    def poke(self) -> None:
        """Schedule one new attempt for all changes within this iteration of the event loop."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._try, False)

    def _try(self, last: bool) -> None:
        self._scheduled = False
        if self.future.done():
            return
        try:
            answer = self._fetch.attempt(last=last)
        except Exception as err:  # noqa: BLE001 - only the future can pass it on; error responses are made elsewhere
            self.future.set_exception(err)
            return
        if answer is not None:
            self.future.set_result(answer)
            return
        if self._maturity is not None:
            self._maturity.cancel()
        self._maturity = self._when_mature()

    def _forget(self, _future: asyncio.Future[FetchResponse]) -> None:
        self._timer.cancel()
        if self._maturity is not None:
            self._maturity.cancel()
        self._fetch.traffic.delayed_fetches -= 1
        for partition in self._fetch.partitions:
            self._fetch.waiters_of(partition).pop(self, None)


@handles(FetchRequest, FetchResponse, "4-18", _on_error)
def fetch(ctx: RequestContext, request: FetchRequest, kind: type[Fetch] = Fetch) -> Reply[FetchResponse]:
    """Read now, or wait for more data. `kind` may be a subclass that reads fewer partitions than requested."""
    left = FEW - len(request.topics) - len(request.forgotten_topics_data)
    session = ctx.services.fetch_sessions.get(request.session_id) if request.session_id else None
    if session is not None:
        left -= len(session.partitions)
    for topic in request.topics if left >= 0 else ():
        left -= len(topic.partitions)
    for forgotten in request.forgotten_topics_data if left >= 0 else ():
        left -= len(forgotten.partitions)
    if left < 0:
        return _fetch_many(ctx, request, kind)
    work = kind(ctx, request)
    work.prepare()
    if work.views or work.remote:
        return SlowFetch(work, ctx.services).run()
    answer = work.attempt(last=False)
    return answer if answer is not None else DelayedFetch(work).future


async def _fetch_many(ctx: RequestContext, request: FetchRequest, kind: type[Fetch]) -> FetchResponse:
    """Read many partitions now, or wait for more data."""
    work = kind(ctx, request)
    await work.prepare_many()
    if work.views or work.remote:
        return await SlowFetch(work, ctx.services).run()
    many = _Many(work)
    try:
        for place in range(len(work.items)):
            many.watch(place)
            many.read(place, is_new=True)
            await turn
        while many.moved and not many.is_satisfied:
            many.read_moved()
            await turn
        if not many.is_satisfied:
            await many.wait(work.max_wait_ms / 1000)
    finally:
        many.forget()
    return await many.answer()


class _Watch:
    """The waiter on one partition of a request."""

    __slots__ = ("_many", "_place")

    def __init__(self, many: _Many, place: int) -> None:
        self._many = many
        self._place = place

    def poke(self) -> None:
        self._many.poke(self._place)


class _Many:
    """The last results of a request's partitions, by the partition's position in the request."""

    def __init__(self, work: Fetch) -> None:
        self._work = work
        self._found: list[PartitionData | None] = [None] * len(work.items)
        """The last result of each partition. None if the partition has data to send: this data is read again later."""
        self._sizes: dict[int, int] = {}
        self._total = 0
        self._urgent: set[int] = set()
        """The positions of urgent results, which must be sent immediately, or to which a wait would add no data."""
        self._readable = False
        self.moved: dict[int, None] = {}
        self._maturing: dict[int, asyncio.TimerHandle] = {}
        """The timers of partitions with records that are not old enough yet (`delivery.delay.ms`)."""
        self._watches: list[tuple[Partition, _Watch]] = []
        self._waiting: asyncio.Future[None] | None = None
        self._scheduled = False

    @property
    def is_satisfied(self) -> bool:
        """Whether the response is due."""
        work = self._work
        return is_due(self._total, work.min_bytes, bool(self._urgent), work.hold) or not self._readable

    def watch(self, place: int) -> None:
        """Register for changes of a partition, before the partition is read for the first time."""
        partition = self._work.items[place][2]
        if partition is None:
            return
        self._readable = True
        if self._work.hold:
            watch = _Watch(self, place)
            self._work.waiters_of(partition)[watch] = None
            self._watches.append((partition, watch))

    def read(self, place: int, *, is_new: bool = False) -> None:
        """Read a partition, and update its size and urgency."""
        key, want, partition = self._work.items[place]
        others = self._total - self._sizes.pop(place, 0)
        left = max(0, self._work.max_bytes - others)
        self._work.matures_in_ms = math.inf
        data = self._work.read(key, want, partition, left, others == 0, is_new)
        self._poke_when_mature(place)
        size = len(data.records) if data.records else 0
        if size:
            self._sizes[place] = size
        self._total = others + size
        is_urgent = data.error_code or data.diverging_epoch is not None or data.preferred_read_replica >= 0
        if is_urgent or self._work.has_moved or (size and data.records.cut_short):
            self._urgent.add(place)
        else:
            self._urgent.discard(place)
        self._found[place] = data
        self.moved.pop(place, None)

    def _poke_when_mature(self, place: int) -> None:
        timer = self._maturing.pop(place, None)
        if timer is not None:
            timer.cancel()
        seconds = self._work.matures_in_ms / 1000
        if self._work.hold and seconds * 1000 < self._work.max_wait_ms:
            self._maturing[place] = asyncio.get_running_loop().call_later(seconds, self.poke, place)

    def read_moved(self) -> None:
        """Read some of the changed partitions again."""
        for place in list(islice(self.moved, READ_AT_ONCE)):
            self.read(place)

    # -- waiting

    async def wait(self, seconds: float) -> None:
        """Return when there is enough data, or `max_wait_ms` is over."""
        loop = asyncio.get_running_loop()
        for place in self._sizes:
            self._found[place] = None
        self._waiting = loop.create_future()
        timer = loop.call_later(seconds, self._finish)
        self._work.traffic.delayed_fetches += 1
        try:
            await self._waiting
        finally:
            self._work.traffic.delayed_fetches -= 1
            timer.cancel()

    def poke(self, place: int) -> None:
        """Record that a partition has changed, and schedule one check for all changes in this iteration of the loop."""
        self.moved[place] = None
        if self._waiting is not None and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self._scheduled = False
        waiting = self._waiting
        if waiting is None or waiting.done():
            return
        try:
            self.read_moved()
        except Exception as err:  # noqa: BLE001 - passed on to the waiting request
            waiting.set_exception(err)
            return
        for place in self._sizes:
            self._found[place] = None
        if self.is_satisfied:
            self._finish()
        elif self.moved:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._go_on)

    def _finish(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def forget(self) -> None:
        """Remove all waiters and timers."""
        for timer in self._maturing.values():
            timer.cancel()
        self._maturing.clear()
        for partition, watch in self._watches:
            self._work.waiters_of(partition).pop(watch, None)
        self._watches.clear()

    # -- the answer

    async def answer(self) -> FetchResponse:
        """Read again the partitions that have data to send or have changed, and return the response."""
        found: list[PartitionData] = []
        size = 0
        for place, data in enumerate(self._found):
            if data is None or place in self.moved:
                left = max(0, self._work.max_bytes - size)
                data = self._work.read(*self._work.items[place], left, size == 0, False)
            if data.records:
                size += len(data.records)
            found.append(data)
            await turn
        return await self._work.answer_many(found)
