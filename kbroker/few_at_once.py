"""Long work that takes memory while it runs: a few jobs at once, the others in the order of arrival.

Owns the queue. A caller that waits does steps of the active jobs, so that no slice of time is spent on waiting. Never
knows what the work is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from kbroker.long_work import turn

_T = TypeVar("_T")


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
    """Runs work, `most` pieces of it at a time."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._active: deque[_Job[_T]] = deque()
        self._waiting: deque[_Job[_T]] = deque()

    def __len__(self) -> int:
        """Number of jobs that run or wait."""
        return len(self._active) + len(self._waiting)

    async def run(
        self, begin: Callable[[], Coroutine[Any, Any, _T]], begun: Coroutine[Any, Any, _T] | None = None
    ) -> _T:
        """Run the work of `begin` in its turn; `begun`, the same work already begun, is used if that is at once."""
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
            del job  # or an error, which refers to this frame, and the job would keep each other, with all their memory

    def _step(self) -> None:
        job = self._active[0]
        self._active.rotate(-1)
        job.step()
        if job.done:
            self._leave(job)

    def _leave(self, job: _Job[_T]) -> None:
        """Remove a job that has ended or was cancelled, and start the next ones."""
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
