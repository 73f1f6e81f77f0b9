"""A gate before the dispatcher: requests wait while a broker's content is another from one moment to the next.

Owns the waiting. Never changes a request, and knows nothing of what happens meanwhile.
"""

from __future__ import annotations

import asyncio
from typing import cast

from kbroker.handlers.registry import RequestContext
from kbroker.network.dispatch import Dispatcher, Run, Steps, Work
from kbroker.protocol.compiler import Spill


class Gate:
    """Closed until `open`; used on the broker's loop. `run` takes the place of Dispatcher.run."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._behind: Run = dispatcher.entrance
        self._opened = asyncio.Event()

    def open(self) -> None:
        """Let go on who waits."""
        self._opened.set()

    def run(self, context: RequestContext, frame: memoryview, out: bytearray, spill: Spill) -> Work | None:
        """Have a frame wait; as Dispatcher.run."""
        entry, _, _ = self._dispatcher.head(context, frame)
        if entry.version != context.version:  # of ApiVersions: answered in another version
            return self._behind(context, frame, out, spill)
        work = Work(entry, len(frame))
        work.keeps_frame = work.keeps_waiting = True
        work.steps = self._steps(context, work, memoryview(bytes(frame)))  # it is received into again
        return work

    def _steps(self, context: RequestContext, work: Work, frame: memoryview) -> Steps:
        yield self._opened.wait()
        out, spill = bytearray(), cast("Spill", [])
        inner = self._behind(context, frame, out, spill)
        if inner is not None:
            answer = yield from inner.steps
            work.metering, work.pause_ms = inner.metering, inner.pause_ms
            return answer
        return (out, spill) if out else None
