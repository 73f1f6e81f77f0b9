"""What a handler does between two turns, in one process and without a socket.

Owns running a request through its handler step by step. Never judges.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import CoroutineType, FrameType
from typing import Any, Self

from kbroker.handlers.registry import APIS, CloseConnection, RequestContext
from kbroker.long_work import awaited
from kbroker.protocol.errors import ApiError


@dataclass(slots=True)
class Run:
    """One request at its handler: the most expensive step, the sum and number of all steps, and the response."""

    longest: float = 0
    total: float = 0
    steps: int = 0
    answer: Any = None


class Stopwatch:
    """Measures CPU seconds of this thread, which other processes do not prolong."""

    def __enter__(self) -> Self:
        self._start = time.thread_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.spent = time.thread_time() - self._start


class Counter:
    """Counts the interpreter's steps (opcodes), which are the same in each run: garbage collection is off."""

    def __enter__(self) -> Self:
        self.spent = 0
        gc.disable()
        sys.settrace(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        gc.enable()

    def _called(self, frame: FrameType, event: str, _argument: Any) -> Any:
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self._traced

    def _traced(self, _frame: FrameType, event: str, _argument: Any) -> Any:
        self.spent += event == "opcode"
        return self._traced


async def run(context: RequestContext, request: Any, version: int, meter: Callable[[], Any] = Stopwatch) -> Run:
    """Run a request; what it awaits is awaited, without counting those steps on the loop."""
    api = APIS[type(request).KEY]
    context.version = version
    done = Run()

    def step(work: Callable[[], Any]) -> Any:
        with meter() as measured:
            result = work()
        done.steps += 1
        done.total += measured.spent
        done.longest = max(done.longest, measured.spent)
        return result

    async def whole(work: Callable[[], Any]) -> Any:
        """Run one call, and the complete coroutine that it may return."""
        answer = step(work)
        if not isinstance(answer, CoroutineType):
            return await awaited(answer)
        end: list[Any] = []

        def advance() -> Any:
            try:
                return answer.send(None)
            except StopIteration as over:
                end.append(over.value)
                return None

        while not end:
            waits = step(advance)
            if waits is not None:
                await asyncio.wait([waits], timeout=60)
        return end[0]

    try:
        answer = await whole(lambda: api.handler(context, request))
    except ApiError as error:
        code, message = error.code, error.message
        answer = await whole(lambda: api.on_error(request, code, message))
    except CloseConnection:
        answer = None
    done.answer = answer
    return done
