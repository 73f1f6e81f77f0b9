"""A broker's entrance: each frame passes the gate, the interceptor and the dispatcher, in this order.

Owns this order, and the wait of requests while a broker's content is replaced. Never changes a request, and never knows
why the gate is shut.
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
    """The entrance of one broker, used on its loop. Only this class diverts the frames of the broker's server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._interceptor: Run | None = None
        self._opened = asyncio.Event()
        self._opened.set()

    def intercept(self, run: Run | None) -> None:
        """Send frames through an interceptor (None: directly to the dispatcher) once the gate is open."""
        self._interceptor = run
        self._divert()

    @contextlib.contextmanager
    def shut(self) -> Iterator[None]:
        """Hold all requests until the context ends."""
        self._opened.clear()
        self._divert()
        try:
            yield
        finally:
            self._opened.set()
            self._divert()

    async def passed(self) -> None:
        """Return once the gate is open."""
        while not self._opened.is_set():
            await self._opened.wait()

    def _divert(self) -> None:
        self._server.divert(self._interceptor if self._opened.is_set() else self._wait)

    def _wait(self, context: RequestContext, frame: memoryview, out: bytearray, spill: Spill) -> Work | None:
        """Hold a frame until the gate is open; same interface as Dispatcher.run."""
        entry, _, _ = self._server.dispatcher.head(context, frame)
        if entry.version != context.version:  # an ApiVersions request in an unknown version
            return self._behind(context, frame, out, spill)
        work = Work(entry, len(frame))
        work.keeps_frame = work.keeps_waiting = True
        work.steps = self._steps(context, work, memoryview(bytes(frame)))  # the receive buffer is reused
        return work

    async def _steps(self, context: RequestContext, work: Work, frame: memoryview) -> Framed:
        await self.passed()
        return await steps_behind(self._behind, context, work, frame)

    def _behind(self, context: RequestContext, frame: memoryview, out: bytearray, spill: Spill) -> Work | None:
        run = self._interceptor or self._server.dispatcher.run
        return run(context, frame, out, spill)


async def steps_behind(run: Run, context: RequestContext, work: Work, frame: memoryview) -> Framed:
    """Run a frame, and copy to `work` how much it used of the client's quotas."""
    out, spill = bytearray(), cast("Spill", [])
    inner = run(context, frame, out, spill)
    if inner is not None:
        answer = await inner.steps
        work.metering, work.pause_ms = inner.metering, inner.pause_ms
        return answer
    return (out, spill) if out else None
