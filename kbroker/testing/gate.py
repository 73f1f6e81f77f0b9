"""A broker's entrance: what a frame meets before the dispatcher, in the order gate, interceptor, dispatcher.

Owns who is asked first, and the waiting while a broker's content is another from one moment to the next. Never changes
a request, and knows nothing of what happens meanwhile.
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
    """One broker's; used on its loop. Nobody else diverts the frames of its server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._interceptor: Run | None = None
        self._opened = asyncio.Event()
        self._opened.set()

    def intercept(self, run: Run | None) -> None:
        """Have frames go to something before the dispatcher, once the gate is open; None: to the dispatcher."""
        self._interceptor = run
        self._divert()

    @contextlib.contextmanager
    def shut(self) -> Iterator[None]:
        """Have requests wait until this is left."""
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
        """Have a frame wait; as Dispatcher.run."""
        entry, _, _ = self._server.dispatcher.head(context, frame)
        if entry.version != context.version:  # of ApiVersions: answered in another version
            return self._behind(context, frame, out, spill)
        work = Work(entry, len(frame))
        work.keeps_frame = work.keeps_waiting = True
        work.steps = self._steps(context, work, memoryview(bytes(frame)))  # it is received into again
        return work

    async def _steps(self, context: RequestContext, work: Work, frame: memoryview) -> Framed:
        await self.passed()
        return await steps_behind(self._behind, context, work, frame)

    def _behind(self, context: RequestContext, frame: memoryview, out: bytearray, spill: Spill) -> Work | None:
        run = self._interceptor or self._server.dispatcher.run
        return run(context, frame, out, spill)


async def steps_behind(run: Run, context: RequestContext, work: Work, frame: memoryview) -> Framed:
    """Run a frame; what the client has used of its quotas is then what `work` has."""
    out, spill = bytearray(), cast("Spill", [])
    inner = run(context, frame, out, spill)
    if inner is not None:
        answer = await inner.steps
        work.metering, work.pause_ms = inner.metering, inner.pause_ms
        return answer
    return (out, spill) if out else None
