"""Long work on the event loop: coroutines that yield to other work. If they need much memory, only a few run at a time.

Owns `turn`, which yields; the runners of such coroutines; the length of a slice; and the queue of work that takes
memory while it runs. Never decides which work is first: network/turns.py decides for connections.

All work shares the event loop. Work that can take longer than about a millisecond (a list of a hundred thousand names,
a batch of a million records) is a coroutine that awaits `turn` once per element. Its runner sends None until the slice
is over, and continues in a later turn of the event loop. Between two `turn`s nothing else runs. During a `turn`
everything may change, so look up state again after it.

A connection runs its request this way (network/connection.py), without a task; a task uses `in_slices`. Therefore such
a coroutine may await futures, but nothing that needs the current task: no asyncio.timeout, no task group. Code that is
not a coroutine (a callback, a step of a state machine) uses `for_a_while`. Work on another thread alternates between
equal times of work and rest (`Pauses`), so that the event loop gets the interpreter when it needs it. A thread that
often gives the interpreter away holds `ShortTurns`, so that a busy event loop returns it soon.
"""

from __future__ import annotations

import heapq
import sys
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Iterator
from itertools import islice
from time import perf_counter, sleep
from types import coroutine
from typing import Any, ClassVar, Generic, TypeVar, cast

_T = TypeVar("_T")
_U = TypeVar("_U")
SLICE_SECONDS = 0.001
"""The time in seconds for which work runs before other work has a turn."""
SORTED_AT_ONCE = 2_000
"""The number of names that are sorted between two turns.

This takes about a millisecond.
"""
WORK_BESIDE_SECONDS = 0.0005
"""The maximum time in seconds for which work on another thread runs without a pause.

The pause then takes the same time.
"""


class _Turn:
    """Awaited to let other work run first: yields a bare None to the runner, which may continue immediately."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, None]:
        yield


turn = _Turn()


def whole(work: Coroutine[Any, Any, _T]) -> _T:
    """Run work to its end without a pause. Use it for short work that never waits, or while the event loop is idle."""
    while True:
        try:
            work.send(None)
        except StopIteration as end:
            result: _T = end.value
            return result


def step(work: Coroutine[Any, Any, object]) -> bool:
    """Run work until it next awaits `turn`, and return whether the work has ended.

    The work must await nothing but `turn`.
    """
    if getattr(work, "cr_frame", work) is None:
        return True
    try:
        work.send(None)
    except StopIteration:
        return True
    return False


def for_a_while(
    call: Callable[[], bool], seconds: float = SLICE_SECONDS, clock: Callable[[], float] | None = None
) -> bool:
    """Call `call` for a slice of time, at least once, while it returns True. Return whether there is more to do."""
    now = clock or perf_counter
    until = now() + seconds
    while call():
        if now() >= until:
            return True
    return False


async def in_slices(work: Coroutine[Any, Any, _T]) -> _T:
    """Run work to its end, in a task, in slices of a millisecond. The event loop is free between the slices."""
    return await _sliced(work)


async def begun_in_slices(work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
    """Call `work` and run its coroutine as `in_slices` does.

    A task that is cancelled before its start leaves no unawaited coroutine.
    """
    return await in_slices(work())


def begin(work: Coroutine[Any, Any, _T]) -> Coroutine[Any, Any, _T] | None:
    """Run work to its first turn or wait. Return the remaining work, for a task, or None if the work has ended.

    Raises the work's errors.
    """
    try:
        waits = work.send(None)
    except StopIteration:
        return None
    return _rest(work, waits)


async def _rest(work: Coroutine[Any, Any, _T], waits: object) -> _T:
    return await _sliced(work, waits, has_begun=True)


@coroutine
def _sliced(
    work: Coroutine[Any, Any, _T], waits: object = None, *, has_begun: bool = False
) -> Generator[Any, None, _T]:
    failed: BaseException | None = None
    until = perf_counter() + SLICE_SECONDS
    try:
        while True:
            if not has_begun:
                waits = work.send(None) if failed is None else work.throw(failed)
                failed = None
                if waits is None and perf_counter() < until:
                    continue
            has_begun = False
            try:
                yield waits
            except BaseException as error:  # noqa: BLE001 - the task is cancelled: the work may have to clean up
                failed = error
            until = perf_counter() + SLICE_SECONDS
    except StopIteration as end:
        result: _T = end.value
        return result
    finally:
        work.close()


async def awaited(answer: _T | Awaitable[_T]) -> _T:
    """Return an answer. If the answer is an awaitable, wait for its result first."""
    if hasattr(answer, "__await__"):
        return await cast("Awaitable[_T]", answer)
    return answer


def then(answer: _T | Awaitable[_T], finish: Callable[[_T], _U]) -> _U | Awaitable[_U]:
    """Return `finish` of an answer.

    For an awaitable answer, return an awaitable that applies `finish` to the result.
    """

    async def later() -> _U:
        return finish(await cast("Awaitable[_T]", answer))

    return later() if hasattr(answer, "__await__") else finish(answer)


async def each(items: Iterable[_U], make: Callable[[_U], _T]) -> list[_T]:
    """Return the result of `make` for each item; other work may run after each item."""
    made = []
    for item in items:
        made.append(make(item))
        await turn
    return made


async def every(items: Iterable[_U], work: Callable[[_U], Coroutine[Any, Any, _T]]) -> list[_T]:
    """Return the result of `work` for each item; the work for one item may itself be long."""
    made = []
    for item in items:
        made.append(await work(item))
        await turn
    return made


async def in_order(names: Iterable[str]) -> Iterator[str]:
    """Return an iterator of the sorted names. Pieces are sorted first, and merged while the caller consumes names."""
    left = iter(names)
    pieces = []
    while piece := sorted(islice(left, SORTED_AT_ONCE)):
        pieces.append(piece)
        await turn
    return heapq.merge(*pieces)


class Pauses:
    """Releases the interpreter at short intervals. Never used on the event loop's own thread."""

    def __init__(self) -> None:
        self._until = perf_counter() + WORK_BESIDE_SECONDS

    def rest(self) -> None:
        """Rest if work has run for half a millisecond since the last rest."""
        if perf_counter() > self._until:
            sleep(WORK_BESIDE_SECONDS)
            self._until = perf_counter() + WORK_BESIDE_SECONDS


class ShortTurns:
    """From its creation until `end`, the interpreter switches between threads every 0.5 ms instead of Python's 5 ms.

    A thread that waits for the disk or the network needs the interpreter after each wait. With Python's interval, the
    thread gets the interpreter from a busy event loop only after 5 ms. Until `end`, no single call into C may take
    long.
    """

    _lock: ClassVar = threading.Lock()
    _held: ClassVar[int] = 0
    _before: ClassVar[float] = 0.0

    def __init__(self) -> None:
        self._has_ended = False
        with self._lock:
            if not ShortTurns._held:
                ShortTurns._before = sys.getswitchinterval()
                sys.setswitchinterval(min(ShortTurns._before, WORK_BESIDE_SECONDS))
            ShortTurns._held += 1

    def end(self) -> None:
        """Stop requiring the short interval."""
        with self._lock:
            if self._has_ended:
                return
            self._has_ended = True
            ShortTurns._held -= 1
            if not ShortTurns._held:
                sys.setswitchinterval(ShortTurns._before)


class _Job(Generic[_T]):
    __slots__ = ("begin", "done", "error", "result", "work")

    def __init__(self, begin: Callable[[], Coroutine[Any, Any, _T]]) -> None:
        self.begin = begin
        self.work: Coroutine[Any, Any, _T] | None = None
        self.done = False
        self.result: _T
        self.error: Exception | None = None

    def step(self) -> None:
        assert self.work is not None
        try:
            self.work.send(None)
        except StopIteration as end:
            self.result, self.done = end.value, True
        except Exception as error:  # noqa: BLE001 - raised where the result is waited for
            self.error, self.done = error, True

    def outcome(self) -> _T:
        """Return the result, or raise the error."""
        error, self.error = self.error, None
        try:
            if error is not None:
                raise error
            return self.result
        finally:
            del error


class FewAtOnce(Generic[_T]):
    """Runs at most `most` jobs at a time; other jobs wait, and start in the order of their arrival.

    A waiting caller runs steps of the active jobs, so that its slice is not wasted.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._active: deque[_Job[_T]] = deque()
        self._waiting: deque[_Job[_T]] = deque()

    def __len__(self) -> int:
        """Return the number of jobs that run or wait."""
        return len(self._active) + len(self._waiting)

    async def run(
        self, begin: Callable[[], Coroutine[Any, Any, _T]], begun: Coroutine[Any, Any, _T] | None = None
    ) -> _T:
        """Run the work that `begin` creates, as soon as it may start.

        `begun` is that work, if the caller has already started it. If the work may start immediately, `begun` is used
        instead of a call of `begin`. Otherwise `begun` is closed.
        """
        job = _Job(begin)
        if len(self._active) < self._most:
            job.work = begun or begin()
            self._active.append(job)
        else:
            self._waiting.append(job)
            if begun is not None:
                begun.close()
        try:
            while not job.done:
                self._step()
                await turn
        finally:
            self._leave(job)
        try:
            return job.outcome()
        finally:
            del job  # otherwise the error refers to this frame, and the frame to the job: this cycle would keep memory

    def _step(self) -> None:
        job = self._active[0]
        self._active.rotate(-1)
        job.step()
        if job.done:
            self._leave(job)

    def _leave(self, job: _Job[_T]) -> None:
        """Remove a job that has ended or was cancelled, and start the next jobs."""
        if job.work is not None:
            job.work.close()
            job.work = None
        for line in (self._active, self._waiting):
            if job in line:
                line.remove(job)
        while self._waiting and len(self._active) < self._most:
            following = self._waiting.popleft()
            following.work = following.begin()
            self._active.append(following)
