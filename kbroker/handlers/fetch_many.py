"""Fetch of many partitions: reads in slices, and checks single partitions while it waits.

Owns the last result for each partition of such a request, and the set of partitions that have moved since. An append to
one partition costs each waiting fetch a look at that partition only, however many others it names. Serves no API:
fetch.py passes the request on.

While a request waits it keeps only the sizes of its data, so that no waiting request keeps a deleted file open; the
data is read again for the response.
"""

from __future__ import annotations

import asyncio
from itertools import islice

from kbroker.handlers.fetch_attempt import Fetch, is_due
from kbroker.handlers.registry import RequestContext
from kbroker.long_work import turn
from kbroker.partition import Partition
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse, PartitionData

FEW = 64
"""Most topics and partitions together, including those of the session, of a short request."""
LOOKED_AT = 32
"""Moved partitions that are checked in one go: some 0.1 ms."""


async def fetch_many(ctx: RequestContext, request: FetchRequest, kind: type[Fetch] = Fetch) -> FetchResponse:
    """Read now, or wait."""
    work = kind(ctx, request, prepared=False)
    await work.prepare()
    many = _Many(work)
    try:
        for place in range(len(work.items)):
            many.watch(place)
            many.look(place, is_new=True)
            await turn
        while many.moved and not many.is_satisfied:
            many.look_at_moved()
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
    """The last results of a request's partitions, each by its place in the request."""

    def __init__(self, work: Fetch) -> None:
        self._work = work
        self._found: list[PartitionData | None] = [None] * len(work.items)
        """The last result of each partition; None if it has data to send, which is read again."""
        self._sizes: dict[int, int] = {}
        self._total = 0
        self._urgent: set[int] = set()
        """Places with something that the client must get at once, or where waiting would not add data."""
        self._readable = work.readable
        self.moved: dict[int, None] = {}
        self._watches: list[tuple[Partition, _Watch]] = []
        self._waiting: asyncio.Future[None] | None = None
        self._scheduled = False

    @property
    def is_satisfied(self) -> bool:
        """Whether the response is due."""
        work = self._work
        return is_due(self._total, work.min_bytes, bool(self._urgent), work.hold) or not self._readable

    def watch(self, place: int) -> None:
        """Register for changes of a partition, before the first look at it."""
        partition = self._work.items[place][2]
        if partition is not None and self._work.hold:
            watch = _Watch(self, place)
            self._work.waiters_of(partition)[watch] = None
            self._watches.append((partition, watch))

    def look(self, place: int, *, is_new: bool = False) -> None:
        """Read a partition, and update its size and urgency."""
        key, want, partition = self._work.items[place]
        others = self._total - self._sizes.pop(place, 0)
        left = max(0, self._work.max_bytes - others)
        data = self._work.read(key, want, partition, left, others == 0, is_new)
        size = len(data.records) if data.records else 0
        if size:
            self._sizes[place] = size
        self._total = others + size
        is_told = data.error_code or data.diverging_epoch is not None or data.preferred_read_replica >= 0
        if is_told or (size and data.records.cut_short):
            self._urgent.add(place)
        else:
            self._urgent.discard(place)
        self._found[place] = data
        self.moved.pop(place, None)

    def look_at_moved(self) -> None:
        """Check some of the moved partitions."""
        for place in list(islice(self.moved, LOOKED_AT)):
            self.look(place)

    # -- waiting

    async def wait(self, seconds: float) -> None:
        """Return once there is enough data, or the time is over."""
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
        """Note that a partition has moved, and check it soon, once for all changes within this turn."""
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
            self.look_at_moved()
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
        """Remove all waiters."""
        for partition, watch in self._watches:
            self._work.waiters_of(partition).pop(watch, None)
        self._watches.clear()

    # -- the answer

    async def answer(self) -> FetchResponse:
        """Return the response; partitions with data to send, or that have moved since, are read again."""
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
        return await self._work.answer(found)
