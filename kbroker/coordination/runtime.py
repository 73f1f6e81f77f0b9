"""The runtime of replicated state machines, which runs the shards of each coordinator.

Owns the steps around a decision: choosing the shard of a partition, appending and replaying its records (shard_log.py),
waiting for the high watermark, and answering. Also owns the timers, and the loading (loading.py schedules it) and
unloading of partitions. Never decides anything itself. In this package, only runtime.py, loading.py and timers.py use
asyncio.

A shard is pure: it takes a request and the time, does no I/O, and returns an `Outcome`. The order is

    decide -> timers and answers to others -> append -> replay -> wait for the high watermark -> `after` and the reply

In this order, a failed append has changed nothing that the log should contain. A decision that writes nothing is
answered when everything written before it is committed: immediately, if no write waits. An outcome with `replay` false
has one of two reasons. Either the shard has already changed its state in memory, and `after` reverts the change if the
append fails (for example a membership: if it is lost, the members only have to join again). Or `after` changes the
state once the records are committed (transactions). Loading a partition calls the same `replay`, in slices that leave
the event loop time for other work.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterator
from functools import partial
from typing import Any, Generic, TypeVar

from kbroker.clock import Clock
from kbroker.coordination.loading import LoadQueue
from kbroker.coordination.shard import Outcome, Parked, Schedule, Shard, Writer, answerable
from kbroker.coordination.shard_log import ReplayError, ShardLog
from kbroker.coordination.timers import Timers
from kbroker.protocol.errors import ApiError, ErrorCode

log = logging.getLogger(__name__)

_RELOAD = "load again"

S = TypeVar("S", bound=Shard)
R = TypeVar("R")
OnError = Callable[[ErrorCode, "str | None"], Any]


class _Waiting:
    """An appended decision that waits for the high watermark, or an answer that has to wait for earlier decisions."""

    __slots__ = ("after", "done", "end", "future", "moves", "on_error", "parked", "reply")

    def __init__(
        self, end: int, after: Callable[[ErrorCode, int], Outcome] | None = None, *, moves: bool = False
    ) -> None:
        self.end = end
        self.after = after
        self.moves = moves  # only `after` applies the appended records to the shard
        self.done = False
        self.reply: Any = None
        self.future: asyncio.Future[Any] | None = None
        self.parked: Parked | None = None
        self.on_error: OnError | None = None


class _Partition(Generic[S]):
    """One partition that this broker leads: its shard, and the decisions that wait in it."""

    __slots__ = ("active", "attempts", "epoch", "failed", "last_end", "shard", "waiter", "waiting")

    def __init__(self, shard: S, epoch: int, attempts: int = 0) -> None:
        self.shard = shard
        self.epoch = epoch
        self.active = False
        self.failed = False
        self.attempts = attempts
        self.last_end = 0
        self.waiting: deque[_Waiting] = deque()
        self.waiter: asyncio.Future[None] | None = None


class Runtime(Generic[S]):
    """Runs the shards of one coordinator topic."""

    def __init__(self, name: str, make_shard: Callable[[int], S], writer: Writer, clock: Clock, write_timeout_ms: int):
        self._name = name
        self._make_shard = make_shard
        self._writer = writer
        self._log = ShardLog(name, writer)
        self._clock = clock
        self._write_timeout_ms = write_timeout_ms
        self._partitions: dict[int, _Partition[S]] = {}
        self._timers = Timers(clock, self._on_timer, name)
        self._loads = LoadQueue(name)
        self._closed = False

    # -- leadership

    def lead(self, partition: int, epoch: int) -> None:
        """Start to coordinate a partition: load it, immediately if the load is short. A stale epoch is ignored."""
        held = self._partitions.get(partition)
        if held is not None and held.epoch >= epoch:
            return
        if held is not None and not held.failed:
            held.epoch = epoch
            return
        self._begin_load(partition, _Partition(self._make_shard(partition), epoch))

    def _begin_load(self, partition: int, state: _Partition[S]) -> None:
        self._partitions[partition] = state
        self._loads.begin(self._load(partition, state), lambda: self._partitions.get(partition) is state)

    def resign(self, partition: int) -> None:
        """Stop coordinating a partition: all waiting requests fail with NOT_COORDINATOR."""
        state = self._partitions.pop(partition, None)
        if state is not None:
            was_active, state.active = state.active, False
            self._unload(partition, state, was_active=was_active)

    def _unload(self, partition: int, state: _Partition[S], *, was_active: bool) -> None:
        """Fail the waiting requests with NOT_COORDINATOR: their partition is no longer active."""
        if state.waiter is not None:
            state.waiter.cancel()
            state.waiter = None
        waiting, state.waiting = state.waiting, deque()
        for entry in waiting:
            self._finish(partition, state, entry, ErrorCode.NOT_COORDINATOR)
        if was_active:
            try:
                self._settle(partition, state.shard.on_unloaded(self._clock.now_ms()))
            except Exception:
                log.exception("%s %d: not all waiting requests could be answered", self._name, partition)
        self._timers.forget(lambda key: key[0] == partition)

    def resign_all(self) -> None:
        for partition in list(self._partitions):
            self.resign(partition)

    def close(self) -> None:
        self._closed = True
        self._loads.close()
        self.resign_all()
        self._timers.close()

    def tick(self) -> None:
        """Run the timers that are due. Only needed if a caller advances the clock."""
        self._timers.run()

    def shards(self) -> Iterator[tuple[int, S | None]]:
        """Yield (partition, shard) for all partitions coordinated here; the shard is None while it is loading."""
        self._run_due()
        for partition, state in self._partitions.items():
            if not state.failed:
                yield partition, state.shard if state.active else None

    def loaded(self) -> list[S]:
        """Return the loaded shards, without running timers."""
        return [state.shard for state in self._partitions.values() if state.active]

    def states(self) -> dict[str, int]:
        """Return the number of partitions in each state, by the names of Kafka's metric num-partitions."""
        counts = dict.fromkeys(("active", "loading", "failed"), 0)
        for state in self._partitions.values():
            counts["failed" if state.failed else "active" if state.active else "loading"] += 1
        return counts

    def unreadable(self) -> dict[int, int]:
        """Return, for each partition, the number of records that the last load could not read."""
        return {each: count for each, count in self._log.unreadable.items() if each in self._partitions}

    @property
    def is_loaded(self) -> bool:
        """Whether every partition that this broker leads is loaded. A partition whose load failed is not loaded."""
        return all(state.active for state in self._partitions.values())

    def shard(self, partition: int) -> S:
        """Return an active shard. Raises ApiError if the shard is loading or this broker does not coordinate it."""
        return self._active(partition).shard

    def replayed(self, partition: int) -> tuple[S, int] | None:
        """Return an active shard that has replayed its complete log, and the log's end offset. May run in any thread.

        Return None if there is no such shard, and while a decision waits for the high watermark, even if the client of
        that decision is gone.
        """
        state = self._partitions.get(partition)
        try:
            if state is None or not state.active or self._writer.end_offset(partition) > (end := state.last_end):
                return None
        except ApiError:  # this broker does not lead the partition
            return None
        return None if state.waiting else (state.shard, end)

    def epoch(self, partition: int) -> int:
        """Return the leader epoch in which a partition is coordinated here; raises ApiError as `shard` does."""
        return self._active(partition).epoch

    def _run_due(self) -> None:
        """Run the timers that are due, for at most TURN_MS, so that callers do not see expired state.

        The event loop alone continues work in slices: calls of this method must not speed this work up.
        """
        if self._timers.first <= self._clock.monotonic_ms():
            self._timers.run()

    def _active(self, partition: int) -> _Partition[S]:
        if self._timers.first <= self._clock.monotonic_ms():  # _run_due, inlined
            self._timers.run()
        state = self._partitions.get(partition)
        if state is not None and state.active:
            return state
        if self._closed:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if state is None or state.failed:
            raise ApiError(ErrorCode.NOT_COORDINATOR)
        raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)

    # -- loading

    def catch_up(self, partition: int) -> None:
        """If other writers have appended to a partition, replay their records; the partition is loading meanwhile.

        Called before each decision, and only for a topic to which clients may write.
        """
        state = self._partitions.get(partition)
        if state is not None and state.active and self._writer.end_offset(partition) > state.last_end:
            state.active = False
            self._loads.begin(self._load(partition, state), lambda: self._partitions.get(partition) is state)

    async def _load(self, partition: int, state: _Partition[S]) -> None:
        """Replay the log, yielding every few records, then serve. A failed load is retried later.

        The last appends of the previous leader may be lost until all in-sync replicas have them. Serving therefore
        waits for the in-sync replicas, but not for the high watermark. The high watermark does not advance while fewer
        replicas are in sync than min.insync.replicas. Clients can then still read committed state, but nothing can be
        written.
        """
        try:
            end = state.last_end = await self._log.replay(partition, state.shard, state.last_end)
            awaitable = self._writer.copied(partition, end)
            if awaitable is None:
                self._begin(partition, state)
            else:
                state.waiter = asyncio.ensure_future(awaitable)
                state.waiter.add_done_callback(partial(self._on_loaded_copied, partition, state))
        except Exception as err:  # noqa: BLE001 - logged below
            self._load_failed(partition, state, err)

    def _on_loaded_copied(self, partition: int, state: _Partition[S], done: asyncio.Future[None]) -> None:
        # the result is always retrieved, because asyncio would warn otherwise
        error = None if done.cancelled() else done.exception()
        if done.cancelled() or self._partitions.get(partition) is not state:
            return
        state.waiter = None
        try:
            if error is not None:
                raise error
            self._begin(partition, state)
        except Exception as err:  # noqa: BLE001 - logged below
            self._load_failed(partition, state, err)

    def _begin(self, partition: int, state: _Partition[S]) -> None:
        """Serve a loaded partition."""
        state.active = True
        self._settle(partition, state.shard.on_loaded(self._clock.now_ms()))
        if state.active:
            state.attempts = 0

    def _load_failed(self, partition: int, state: _Partition[S], error: Exception) -> None:
        self._load_later(partition, state, error, f"cannot be loaded (attempt {state.attempts + 1})")

    def _load_later(self, partition: int, state: _Partition[S], error: BaseException, problem: str) -> None:
        """Retry a failed load, at growing intervals. The failure may be temporary, for example a full file table."""
        delay_ms = self._loads.failed(partition, state.attempts, error, problem)
        state.active, state.failed = False, True
        self._timers.forget(lambda key: key[0] == partition)
        self._timers.schedule((partition, _RELOAD), delay_ms)

    def _reload(self, partition: int, state: _Partition[S]) -> None:
        if state.failed:
            again = _Partition(self._make_shard(partition), state.epoch, state.attempts + 1)
            self._begin_load(partition, again)

    # -- decisions

    def run(
        self, partition: int, decide: Callable[[S, int], Outcome], on_error: Callable[[ErrorCode, str | None], R]
    ) -> R | Awaitable[R]:
        """Decide and write.

        Return the reply, or an awaitable of the reply if the high watermark has not reached the write.
        """
        now_ms = self._clock.now_ms()
        try:
            state = self._active(partition)
            outcome = decide(state.shard, now_ms)
        except Exception as err:  # noqa: BLE001 - named by `_refusal`
            return on_error(*self._refusal(partition, err))
        code, entry = self._apply(partition, state, outcome, now_ms, is_asked=True)
        if code is not ErrorCode.NONE:
            return on_error(answerable(code), None)
        if entry is None:
            reply: R = outcome.reply
            return reply
        entry.reply = outcome.reply
        entry.on_error = on_error
        entry.future = asyncio.get_running_loop().create_future()
        return entry.future

    def _refusal(self, partition: int, error: Exception) -> tuple[ErrorCode, str | None]:
        """Return the error for a decision that raised."""
        if isinstance(error, ApiError):
            return answerable(error.code), error.message
        log.error("%s %d: a decision failed", self._name, partition, exc_info=error)
        return ErrorCode.UNKNOWN_SERVER_ERROR, None

    def run_parked(
        self,
        partition: int,
        decide: Callable[[S, Parked, int], Outcome],
        on_error: Callable[[ErrorCode, str | None], R],
    ) -> R | Awaitable[R]:
        """Decide about a request that the shard may park; return its answer or an awaitable of the answer."""
        parked, now_ms = Parked(), self._clock.now_ms()
        try:
            state = self._active(partition)
            outcome = decide(state.shard, parked, now_ms)
        except Exception as err:  # noqa: BLE001 - named by `_refusal`
            return on_error(*self._refusal(partition, err))
        held = _withhold(parked, outcome) if state.waiting and not outcome.writes else None
        code, entry = self._apply(partition, state, outcome, now_ms, is_asked=held is not None)
        if code is not ErrorCode.NONE:
            parked.complete(on_error(answerable(code), None))
        elif entry is not None and (held is not None or outcome.writes):
            # Only this entry belongs to the parked request, so only the error of this entry is an answer to the
            # request.
            entry.parked, entry.reply = parked, held
            entry.on_error = on_error
        if parked.answer is not None:
            answer: R = parked.answer
            return answer
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        parked.wake = lambda response: None if future.done() else future.set_result(response)
        return future

    def read(
        self, partition: int, query: Callable[[S, int], R], on_error: Callable[[ErrorCode, str | None], R]
    ) -> R | Awaitable[R]:
        """Return the result of `query` once all state that the query may have read is committed."""
        now_ms = self._clock.now_ms()
        try:
            state = self._active(partition)
            reply = query(state.shard, now_ms)
        except ApiError as err:
            return on_error(err.code, err.message)
        if not state.waiting:
            return reply
        entry = _Waiting(state.last_end)
        entry.reply = reply
        entry.on_error = on_error
        entry.future = asyncio.get_running_loop().create_future()
        self._wait(partition, state, entry)
        return entry.future

    async def read_divided(
        self,
        partition: int,
        query: Callable[[S, int], Coroutine[Any, Any, R]],
        on_error: Callable[[ErrorCode, str | None], R],
    ) -> R | Awaitable[R]:
        """Run a long query like `read`. The result may or may not include decisions that are made meanwhile."""
        try:
            state = self._active(partition)
            reply = await query(state.shard, self._clock.now_ms())
            if self._active(partition) is not state:
                raise ApiError(ErrorCode.NOT_COORDINATOR)
        except ApiError as err:
            return on_error(err.code, err.message)
        return self.read(partition, lambda _shard, _now_ms: reply, on_error)

    def _apply(
        self, partition: int, state: _Partition[S], outcome: Outcome, now_ms: int, *, is_asked: bool = False
    ) -> tuple[ErrorCode, _Waiting | None]:
        """Write an outcome. Return its error, and the entry, if any, that waits for the high watermark.

        If an outcome has an answer (`is_asked`) or an `after`, the outcome waits until all earlier writes are
        committed, even if it writes nothing: the answer and `after` may depend on these writes (Kafka:
        CoordinatorRuntime.waitForPendingWrites).
        """
        self._deliver(partition, outcome)
        if not outcome.writes:
            if state.waiting and (is_asked or outcome.after is not None):
                behind = _Waiting(state.last_end, outcome.after)
                self._wait(partition, state, behind)
                return ErrorCode.NONE, behind
            if outcome.after is not None:
                self._settle(partition, outcome.after(ErrorCode.NONE, now_ms))
            return ErrorCode.NONE, None
        code = outcome.refused or ErrorCode.NONE
        if not code:
            try:
                code, end = self._log.append(partition, state.epoch, state.shard, outcome, now_ms)
                state.last_end = max(state.last_end, end)
            except ReplayError as err:
                return self._fail(partition, state, outcome, now_ms, err), None
        if code is not ErrorCode.NONE:
            if outcome.after is not None:
                self._settle(partition, outcome.after(code, now_ms))
            return code, None
        awaitable: Awaitable[None] | None = None
        if not state.waiting:
            found = self._committed(partition, state.last_end)
            if found is None or isinstance(found, ErrorCode):
                code = found or ErrorCode.NONE
                if outcome.after is not None:
                    try:
                        then = outcome.after(code, now_ms)
                    except Exception as err:
                        if outcome.replay or code is not ErrorCode.NONE:
                            raise
                        return self._fail_and_reload(partition, state, err), None
                    self._settle(partition, then)
                return code, None
            awaitable = found
        entry = _Waiting(state.last_end, outcome.after, moves=not outcome.replay)
        self._wait(partition, state, entry)
        if awaitable is not None:
            self._watch(partition, state, entry, awaitable)
        return ErrorCode.NONE, entry

    def _fail(
        self, partition: int, state: _Partition[S], outcome: Outcome, now_ms: int, error: ReplayError
    ) -> ErrorCode:
        """Discard a shard whose state lacks records of its log, and load it again. Return the error for the request."""
        state.active = False
        code = ErrorCode.NOT_COORDINATOR
        if outcome.after is not None:
            try:
                self._deliver(partition, outcome.after(code, now_ms))
            except Exception:
                # `after` works on state that may be half changed. A failure of `after` must not prevent the new load.
                log.exception("%s %d: the work after a decision failed", self._name, partition)
        return self._fail_and_reload(partition, state, error.__cause__ or error)

    def _fail_and_reload(self, partition: int, state: _Partition[S], error: BaseException) -> ErrorCode:
        state.active = False
        self._unload(partition, state, was_active=True)
        self._load_later(partition, state, error, "cannot apply what it has appended")
        return ErrorCode.NOT_COORDINATOR

    def _deliver(self, partition: int, outcome: Outcome) -> None:
        for timer in outcome.timers:
            if timer.__class__ is Schedule:
                self._timers.schedule((partition, timer.key), timer.delay_ms)
            else:
                self._timers.cancel((partition, timer.key))
        for parked, answer in outcome.replies:
            parked.complete(answer)

    def _settle(self, partition: int, outcome: Outcome) -> None:
        """Apply the outcome of a timer, an `after`, or a load, which belongs to no request."""
        state = self._partitions.get(partition)
        if state is None or not state.active:
            self._deliver(partition, outcome)
            return
        self._apply(partition, state, outcome, self._clock.now_ms())

    # -- the high watermark

    def _committed(self, partition: int, offset: int) -> Awaitable[None] | ErrorCode | None:
        """Return an awaitable of the commit, an error if waiting is pointless, or None if the commit has happened."""
        try:
            return self._writer.committed(partition, offset)
        except ApiError as err:
            return err.code

    def _wait(self, partition: int, state: _Partition[S], entry: _Waiting) -> None:
        state.waiting.append(entry)
        self._timers.schedule((partition, entry), self._write_timeout_ms)

    def _watch(self, partition: int, state: _Partition[S], entry: _Waiting, awaitable: Awaitable[None]) -> None:
        """Wait until the first entry is committed. No later entry can be committed before that."""
        state.waiter = asyncio.ensure_future(awaitable)
        state.waiter.add_done_callback(partial(self._on_committed, partition, state, entry))

    def _advance(self, partition: int, state: _Partition[S]) -> None:
        """Finish, in order, the entries that the high watermark has passed; then wait for the next entry."""
        while state.waiting and state.waiter is None:
            entry = state.waiting[0]
            awaitable = self._committed(partition, entry.end)
            if awaitable is None or isinstance(awaitable, ErrorCode):
                state.waiting.popleft()
                self._finish(partition, state, entry, awaitable or ErrorCode.NONE)
            else:
                self._watch(partition, state, entry, awaitable)

    def _on_committed(self, partition: int, state: _Partition[S], entry: _Waiting, done: asyncio.Future[None]) -> None:
        error = None if done.cancelled() else done.exception()
        if done.cancelled() or self._partitions.get(partition) is not state:
            return
        state.waiter = None
        if error is not None:
            code = getattr(error, "code", ErrorCode.UNKNOWN_SERVER_ERROR)
            log.warning("%s %d: offset %d was not committed: %s", self._name, partition, entry.end, error)
        else:
            code = ErrorCode.NONE
        if state.waiting and state.waiting[0] is entry:
            state.waiting.popleft()
            self._finish(partition, state, entry, code)
        self._advance(partition, state)

    def _finish(self, partition: int, state: _Partition[S], entry: _Waiting, code: ErrorCode) -> None:
        if entry.done:
            return
        entry.done = True
        self._timers.cancel((partition, entry))
        if entry.after is not None:
            try:
                outcome = entry.after(code, self._clock.now_ms())
                if state.active:
                    self._settle(partition, outcome)
                else:
                    self._deliver(partition, outcome)
            except Exception as err:
                if entry.moves and code is ErrorCode.NONE and state.active:
                    code = self._fail_and_reload(partition, state, err)
                else:
                    # The waiting request must be answered, and the entries after it must continue.
                    log.exception("%s %d: the work after a decision failed", self._name, partition)
                    code = code or ErrorCode.UNKNOWN_SERVER_ERROR
        if entry.future is not None and not entry.future.done():
            if code is ErrorCode.NONE or entry.on_error is None:
                entry.future.set_result(entry.reply)
            else:
                entry.future.set_result(entry.on_error(answerable(code), None))
        if entry.parked is not None and entry.on_error is not None:
            if code is not ErrorCode.NONE:
                entry.parked.complete(entry.on_error(answerable(code), None))
            elif entry.reply is not None:
                entry.parked.complete(entry.reply)

    def _on_timer(self, key: tuple[int, Hashable]) -> None:
        """Handle a timer. If the handler raises, the timer expires again (see Timers)."""
        partition, inner = key
        state = self._partitions.get(partition)
        if state is None:
            return
        if inner is _RELOAD:
            self._reload(partition, state)
        elif not state.active:
            return
        elif isinstance(inner, _Waiting):
            self._finish(partition, state, inner, ErrorCode.REQUEST_TIMED_OUT)
        else:
            self._settle(partition, state.shard.on_timer(inner, self._clock.now_ms()))


def _withhold(parked: Parked, outcome: Outcome) -> Any:
    """Remove the answer to a request from an outcome and return the answer; None if there is none."""
    own = next((answer for token, answer in outcome.replies if token is parked), None)
    if own is not None:
        outcome.replies = [reply for reply in outcome.replies if reply[0] is not parked]
    return own
