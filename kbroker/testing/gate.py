"""The entrance of a broker. Each frame passes the gate, the interceptor and the dispatcher, in this order.

Owns this order, and the wait of requests while a broker's content is replaced. Never changes a request. Does not know
the reason why the gate is shut.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import cast

from kbroker.handlers.registry import RequestContext
from kbroker.network.dispatch import Framed, Run, Work
from kbroker.network.server import Server
from kbroker.protocol.compiler import Spill


class Entrance:
    """The entrance of one broker, used on its loop. Only this class redirects the frames of the broker's server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._interceptor: Run | None = None
        self._opened = asyncio.Event()
        self._opened.set()

    def intercept(self, run: Run | None) -> None:
        """Send frames to an interceptor when the gate is open. Without an interceptor they go to the dispatcher."""
        self._interceptor = run
        self._divert()

    @contextlib.contextmanager
    def shut(self) -> Iterator[None]:
        """Delay all requests until the `with` block ends."""
        self._opened.clear()
        self._divert()
        try:
            yield
        finally:
            self._opened.set()
            self._divert()

    async def passed(self) -> None:
        """Return when the gate is open."""
        while not self._opened.is_set():
            await self._opened.wait()

    def _divert(self) -> None:
        self._server.divert(self._interceptor if self._opened.is_set() else self._wait)

    def _wait(self, context: RequestContext, frame: memoryview, out: bytearray, spill: Spill) -> Work | None:
        """Delay a frame until the gate is open. The interface is that of Dispatcher.run."""
        entry, _, _ = self._server.dispatcher.head(context, frame)
        if entry.version != context.version:  # an ApiVersions request in an unknown version
            return self._behind(context, frame, out, spill)
        work = Work(entry, len(frame))
        work.keeps_frame = work.keeps_waiting = True
        work.steps = self._steps(context, work, memoryview(bytes(frame)))  # copied: the receive buffer is reused
        return work

    async def _steps(self, context: RequestContext, work: Work, frame: memoryview) -> Framed:
        await self.passed()
        return await steps_behind(self._behind, context, work, frame)

    def _behind(self, context: RequestContext, frame: memoryview, out: bytearray, spill: Spill) -> Work | None:
        run = self._interceptor or self._server.dispatcher.run
        return run(context, frame, out, spill)


async def steps_behind(run: Run, context: RequestContext, work: Work, frame: memoryview) -> Framed:
    """Run a frame, and copy its use of the client's quotas to `work`."""
    out, spill = bytearray(), cast("Spill", [])
    inner = run(context, frame, out, spill)
    if inner is not None:
        answer = await inner.steps
        work.metering, work.pause_ms = inner.metering, inner.pause_ms
        return answer
    return (out, spill) if out else None
