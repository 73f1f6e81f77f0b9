"""Fetch (key 1), versions 4-18: record batches from the page cache, with long polls and fetch sessions.

The response is a list of slices of segment files; no byte of a record passes through here. A request that cannot be
satisfied yet waits on its partitions (`DelayedFetch`) until `min_bytes` are there, something changes, or `max_wait_ms`
is over. fetch_many.py handles requests with many partitions.
"""

from __future__ import annotations

import asyncio

from kbroker.handlers.fetch_attempt import Fetch
from kbroker.handlers.fetch_many import FEW, fetch_many
from kbroker.handlers.registry import Reply, RequestContext, handles
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse


def _on_error(_request: FetchRequest, code: int, _message: str | None) -> FetchResponse:
    return FetchResponse(error_code=code)


class DelayedFetch:
    """A waiting Fetch (a long poll): it waits on its partitions, and on a timer."""

    __slots__ = ("_fetch", "_loop", "_scheduled", "_timer", "future")

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[FetchResponse] = self._loop.create_future()
        self.future.add_done_callback(self._forget)
        self._scheduled = False
        for partition in fetch.partitions:
            fetch.waiters_of(partition)[self] = None
        fetch.traffic.delayed_fetches += 1
        self._timer = self._loop.call_later(fetch.max_wait_ms / 1000, self._try, True)

    def poke(self) -> None:
        """Try again soon, once for all changes within this turn of the loop."""
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

    def _forget(self, _future: asyncio.Future[FetchResponse]) -> None:
        self._timer.cancel()
        self._fetch.traffic.delayed_fetches -= 1
        for partition in self._fetch.partitions:
            self._fetch.waiters_of(partition).pop(self, None)


@handles(FetchRequest, FetchResponse, "4-18", _on_error)
def fetch(ctx: RequestContext, request: FetchRequest, kind: type[Fetch] = Fetch) -> Reply[FetchResponse]:
    """Read now, or wait; `kind` may be a class that reads less than requested."""
    left = FEW - len(request.topics) - len(request.forgotten_topics_data)
    session = ctx.services.fetch_sessions.get(request.session_id) if request.session_id else None
    if session is not None:
        left -= len(session.partitions)
    for topic in request.topics if left >= 0 else ():
        left -= len(topic.partitions)
    for forgotten in request.forgotten_topics_data if left >= 0 else ():
        left -= len(forgotten.partitions)
    if left < 0:
        return fetch_many(ctx, request, kind)
    work = kind(ctx, request)
    answer = work.attempt(last=False)
    return answer if answer is not None else DelayedFetch(work).future
