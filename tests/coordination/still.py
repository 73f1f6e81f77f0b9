"""A shard under the real runtime, with time that stands still until the test moves it: no sockets, no sleeps."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from kbroker.coordination.encoding import record_batch, split
from kbroker.coordination.runtime import Runtime
from kbroker.coordination.shard import CoordinatorRecord, Outcome, Parked, Shard
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.records import read_records

from .world import FakeWriter, ManualClock

START_MS = 1_700_000_000_000
NEVER_MS = 10**12
ON_PURPOSE = "this is tried on purpose"
S = TypeVar("S", bound=Shard)


class _Loud(logging.Handler):
    """Makes a test fail for errors that the runtime only logs: a shard that raises, except ON_PURPOSE."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and str(error) != ON_PURPOSE:
            raise error


LOG, LOUD = logging.getLogger("kbroker.coordination"), _Loud()


class StillLoop(asyncio.AbstractEventLoop):
    """An event loop that runs ready callbacks when the test says so, and whose timers wait for the test's clock."""

    def __init__(self) -> None:
        self._ready: deque[asyncio.Handle] = deque()

    def get_debug(self) -> bool:
        return False

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> Any:
        return asyncio.Handle(callback, args, self, context)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=self, **options)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        raise AssertionError(context)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Be the running loop, and run what became ready."""
        outer = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        LOG.addHandler(LOUD)
        try:
            yield
            while self._ready:
                handle = self._ready.popleft()
                if not handle.cancelled():
                    handle._run()
        finally:
            LOG.removeHandler(LOUD)
            asyncio._set_running_loop(outer)


class Log(FakeWriter):
    """The log in memory, also as records."""

    def __init__(self, records: Sequence[CoordinatorRecord]) -> None:
        super().__init__()
        self.records: list[CoordinatorRecord] = []
        for piece in split(records):
            self.append(0, record_batch(piece, 0, None, START_MS), START_MS)

    def append(
        self, partition: int, batch: bytes, now_ms: int, *, guard: object = None, transaction_version: int = 0
    ) -> int:
        end = super().append(partition, batch, now_ms)
        found = read_records(memoryview(batch), max_bytes=1 << 30)
        self.records += [
            CoordinatorRecord(bytes(r.key or b""), r.value if r.value is None else bytes(r.value)) for r in found
        ]
        return end


def code_alone(code: ErrorCode, _message: str | None) -> ErrorCode:
    return code


class Asked:
    """A request that may be parked; `answer` is None until it is answered."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    @property
    def answer(self) -> Any:
        if isinstance(self._answer, asyncio.Future):
            return self._answer.result() if self._answer.done() else None
        return self._answer


class Still(Generic[S]):
    """One shard, led from the start with `log` as its log.

    `fail_with` makes appends fail; `lag` keeps what is appended uncommitted until `catch_up`.
    """

    def __init__(self, make_shard: Callable[[int], S], log: Sequence[CoordinatorRecord], now: int = START_MS) -> None:
        self.loop = StillLoop()
        self.clock = ManualClock()
        self.clock.ms = now
        self.writer = Log(log)
        self.runtime: Runtime[S] = Runtime("still", make_shard, self.writer, self.clock, NEVER_MS)
        with self.loop.running():
            self.runtime.lead(0, 1)
        self.shard: S = self.runtime.shard(0)

    # -- the log

    @property
    def log(self) -> list[CoordinatorRecord]:
        return self.writer.records

    @property
    def fail_with(self) -> ErrorCode:
        return getattr(self.writer.fail, "code", ErrorCode.NONE)

    @fail_with.setter
    def fail_with(self, code: ErrorCode) -> None:
        self.writer.fail = None if code is ErrorCode.NONE else ApiError(code)

    @property
    def lag(self) -> bool:
        return self.writer.lag

    @lag.setter
    def lag(self, lag: bool) -> None:
        self.writer.lag = lag

    def catch_up(self, code: ErrorCode = ErrorCode.NONE) -> None:
        """Commit everything that is appended, or fail it with `code`."""
        if code is not ErrorCode.NONE:
            while pending := [future for _, future in self.writer.waiters if not future.done()]:
                with self.loop.running():
                    pending[0].set_exception(ApiError(code))
        with self.loop.running():
            self.writer.commit_to(self.writer.end)

    # -- time

    @property
    def now(self) -> int:
        return self.clock.now_ms()

    @now.setter
    def now(self, ms: int) -> None:
        self.clock.ms = ms

    @property
    def timers(self) -> dict[Hashable, float]:
        known = self.runtime._timers._deadlines
        return {key: deadline for (_, key), deadline in known.items() if isinstance(key, tuple)}

    def fire(self, key: Hashable) -> bool:
        """Fire a timer now, whenever it is due; return whether there was one."""
        there = key in self.timers
        if there:
            with self.loop.running():
                self.runtime._timers.cancel((0, key))
                self.runtime._timers._go_off((0, key))
        return there

    def advance(self, ms: int) -> None:
        """Let time pass, and fire timers in their order."""
        until = self.clock.ms + ms
        while (due := min(self.timers.values(), default=until + 1)) <= until:
            self.clock.ms = max(self.clock.ms, due)
            with self.loop.running():
                self.runtime.tick()
        self.clock.ms = until

    def unload(self) -> None:
        """Let another broker coordinate."""
        with self.loop.running():
            self.runtime.resign(0)

    # -- requests

    def ask(
        self, decide: Callable[[S, int], Outcome], on_error: Callable[[ErrorCode, str | None], Any] = code_alone
    ) -> Any:
        """Return the response to a decision, even if it is sent only after the log has committed it."""
        decided: list[Outcome] = []

        def noted(shard: S, now_ms: int) -> Outcome:
            decided.append(decide(shard, now_ms))
            return decided[0]

        with self.loop.running():
            answer = self.runtime.run(0, noted, on_error)
        return decided[0].reply if isinstance(answer, asyncio.Future) else answer

    def ask_parked(
        self, decide: Callable[[S, Parked, int], Outcome], on_error: Callable[[ErrorCode, str | None], Any]
    ) -> Asked:
        with self.loop.running():
            return Asked(self.runtime.run_parked(0, decide, on_error))
