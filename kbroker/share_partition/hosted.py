"""A share partition in use at the leader of its partition: its loading, its writes, its timers and its waiters.

Owns the steps of a change (decide, write, confirm or undo), the order of writes, and the wait for the first load. Also
owns the lock of a fetch while it reads. Also owns `wake`, the only function that lets waiting fetches try again. The
fetches are woken by new records, released or ended locks, ended delays, records that are done, the end of another
fetch, a load, and the loss of leadership. Never decides about records (share_partition.py), never sends a request.

One write is in progress at a time. A write contains all changes decided since the previous write began. Changes that
are decided during a write are kept separate from the changes of this write. So a failed write undoes only its own
changes, and the result of a later write does not apply to these changes (KAFKA-19476). The writes continue if the
client that requested a change is gone. After an error which proves that other brokers have written meanwhile, the state
is dropped, and read again at its next use.

A record for the dead letter topic takes two writes: first it is archiving, then its dead letter is written, then it is
archived. Dead letters are written one after the other, a limited number of records at a time. If the broker stops
between the two writes, the next load writes the dead letter again. While dead letters wait, the share partition stays
in use.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, NamedTuple, Protocol

from kbroker.clock import Clock
from kbroker.failpoints import passed
from kbroker.long_work import begin, turn
from kbroker.partition import Partition, Waiter
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.share_coordinator.persister import Change, Persister
from kbroker.share_coordinator.state_batches import StateBatch
from kbroker.share_partition.dead_letters import DeadLetters, Letter, cut, stored_letters
from kbroker.share_partition.persister import (
    EARLIEST,
    FENCING,
    LATEST,
    UNKNOWN_START,
    GroupSettings,
    for_clients,
)
from kbroker.share_partition.runs import NO_LOCK
from kbroker.share_partition.share_partition import SharePartition
from kbroker.share_partition.states import AckBatch
from kbroker.share_partition.transitions import Transition

log = logging.getLogger(__name__)
EXPIRY_PAUSE_MS: Final = 20
"""The minimum time between two searches for locks and delays that have ended, in ms."""
LETTERS_AT_ONCE: Final = 100
"""The maximum number of dead letters that are written before their records are archived."""
_START_SECONDS: Final = 1.0
"""The maximum time in seconds for which a changed start offset stays unwritten."""
SHORT_WRITE: Final = 16
"""The maximum number of batches that are written in the same step in which the request is handled."""


class Key(NamedTuple):
    """The name of a share partition."""

    group: str
    topic_id: bytes
    partition: int


RemoteOffsetAt = Callable[[Partition, int], Awaitable[int | None]]
"""Returns the offset of the first remote record that is not older than a timestamp in ms. Raises ApiError."""


class Surroundings(Protocol):
    """The attributes and methods of the table of share partitions that a share partition in use needs."""

    persister: Persister
    dead_letters: DeadLetters
    settings: GroupSettings
    clock: Clock
    remote_offset_at: RemoteOffsetAt | None

    def is_led(self, partition: Partition, topic_id: bytes) -> bool:
        """Whether this broker leads `partition`.

        The partition, or the view with this id, may have been deleted meanwhile.
        """

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work to its end, even if the client that requested it is gone."""

    def schedule(self, hosted: Hosted, delay_ms: float) -> None:
        """Call `expire` after a delay. This replaces an earlier call of `schedule`."""

    def drop(self, hosted: Hosted) -> None:
        """Forget a share partition."""

    def all_stored(self, hosted: Hosted) -> None:
        """Handle the event that the state of a share partition is stored completely."""


class _Write(NamedTuple):
    """A decided change that waits for its write.

    A change that cannot be undone stays in effect, whatever the result of the write is.
    """

    decided: Transition
    can_undo: bool = True
    done: asyncio.Future[ErrorCode] | None = None


class Hosted:
    """One share partition in use. All methods belong to the event loop."""

    __slots__ = (
        "_around", "_is_expiring", "_is_sending", "_is_writing", "_letters", "_seen_epoch", "_start_timer",
        "_state_epoch", "_stored_start", "_timed_for", "_was_refused", "_writes", "failure", "fetch_lock", "key",
        "leader_epoch", "partition", "state", "waiters",
    )  # fmt: skip

    def __init__(self, key: Key, partition: Partition, around: Surroundings) -> None:
        """Create the share partition, and begin to load it."""
        self.key = key
        self.partition = partition
        self.leader_epoch = self._seen_epoch = partition.leader_epoch
        self.state: SharePartition | None = None
        """The state; None before it is loaded, and after it was dropped."""
        self.failure = ErrorCode.NONE
        """The reason for which the share partition was dropped, or NONE."""
        self.fetch_lock: Waiter | None = None
        """The fetch that currently reads and acquires records."""
        self.waiters: dict[Waiter, None] = {}
        self._around = around
        self._state_epoch = 0
        self._stored_start = -1
        self._start_timer: asyncio.TimerHandle | None = None
        self._writes: list[_Write] = []
        self._is_writing = False
        self._letters: list[Letter] = []
        self._is_sending = False
        self._is_expiring = False
        self._timed_for = NO_LOCK
        self._was_refused = False
        partition.waiters[self] = None
        around.spawn(self._load())

    # -- waiting

    def wake(self) -> None:
        """Let all waiting fetches try again."""
        for waiter in tuple(self.waiters):
            waiter.poke()

    def poke(self) -> None:
        """Handle a change of the partition: new records, or the end of its leadership."""
        if not self.is_led():
            self.fail(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif self.waiters:
            self.wake()

    def is_led(self) -> bool:
        """Whether this broker has led the partition without interruption, and still does.

        A leader gets a new epoch when a follower leaves. If an epoch was skipped, another broker may have led the
        partition in that epoch, and may have stored changes that this broker does not know.
        """
        epoch = self.partition.leader_epoch
        if epoch > self._seen_epoch + 1 or not self._around.is_led(self.partition, self.key.topic_id):
            return False
        self._seen_epoch = epoch
        return True

    @property
    def is_idle(self) -> bool:
        """Whether the state is stored completely: no write is in progress, and no write is waiting."""
        return not (self._is_writing or self._writes or self._is_sending or self._letters)

    def fail(self, code: ErrorCode) -> None:
        """End the use: forget the state, and notify the waiters. Later calls do nothing."""
        if self.failure:
            return
        self.failure = code
        self.state = None
        if self._start_timer is not None:
            self._start_timer.cancel()
        self.partition.waiters.pop(self, None)
        writes, self._writes = self._writes, []
        for write in writes:
            _answer(write, code)
        self._letters.clear()
        self._around.drop(self)
        self.wake()

    # -- loading

    async def _load(self) -> None:
        group, topic_id, index = self.key
        try:
            found = await self._around.persister.read(group, topic_id, index, self.leader_epoch)
            if found.error_code:
                raise ApiError(for_clients(found.error_code))
            self._state_epoch, start = found.state_epoch, found.start_offset
            state = SharePartition(start if start != UNKNOWN_START else await self._first_offset())
            await state.load(found.batches)
        except ApiError as err:
            self.fail(err.code)
        except Exception:
            log.exception("the share partition %s of group %s cannot be loaded", self.partition.key, group)
            self.fail(ErrorCode.UNKNOWN_SERVER_ERROR)
        else:
            if not self.failure:
                self.state = state
                self.wake()
                self._send(stored_letters(found.batches, self._around.settings.limits(group).delivery_count))

    async def _first_offset(self) -> int:
        """Return the first offset for a group that has consumed no records yet (share.auto.offset.reset)."""
        wanted = self._around.settings.auto_offset_reset(self.key.group)
        records = self.partition.log
        if wanted == LATEST:
            await self._high_watermark_known()
            return await records.readable_end(self._around.clock.now_ms())
        if wanted == EARLIEST:
            return records.earliest_offset
        if self._around.remote_offset_at is not None and records.tier is not None:
            offset = await self._around.remote_offset_at(self.partition, wanted)
            if offset is not None:
                return offset
        found = await records.find_timestamp(wanted)
        readable_end = await records.readable_end(self._around.clock.now_ms())
        return readable_end if found is None else min(found[0], readable_end)

    async def _high_watermark_known(self) -> None:
        """Wait until a new leader knows which records its predecessor had committed.

        Otherwise, the answer for "latest" could be too low.
        """
        if not self.partition.knows_high_watermark:
            try:
                await self.partition.committed(self.partition.log.log_end_offset)
            except ApiError:
                raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER) from None

    # -- changes

    async def acknowledge(self, member: str, batches: Sequence[AckBatch]) -> asyncio.Future[ErrorCode] | None:
        """Acknowledge records. Raises ApiError. The future ends when the change is stored or has failed.

        Return None if there is nothing to store.
        """
        decided = await self._usable().acknowledge(
            member, batches, self._around.settings.limits(self.key.group), self._around.clock.monotonic_ms()
        )
        self.watch_locks()
        if not decided.batches:
            return None
        if self.failure:
            raise ApiError(self.failure)
        done: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        self._write(_Write(decided, done=done))
        return done

    async def release(self, member: str) -> None:
        """Release all records that a member has acquired. An error is not reported: the locks then end by timeout."""
        if self.state is not None:
            limits = self._around.settings.limits(self.key.group)
            decided = await self.state.release(member, limits)
            if decided.batches and not self.failure:
                self._write(_Write(decided))

    def store_start(self) -> None:
        """Store the start offset soon, because records that do not match a filter were archived without a write.

        Otherwise these records would stay in the group's lag until the next acknowledgement.
        """
        if self._start_timer is None and self.state is not None:
            self._start_timer = asyncio.get_running_loop().call_later(_START_SECONDS, self._store_start)

    def _store_start(self) -> None:
        self._start_timer = None
        if self.state is not None and self.state.start > self._stored_start:
            self._write(_Write(Transition(self._around.settings.limits(self.key.group)), can_undo=False))

    def _usable(self) -> SharePartition:
        if self.state is None:
            raise ApiError(self.failure or ErrorCode.INVALID_RECORD_STATE)
        return self.state

    # -- writes

    def _write(self, write: _Write) -> None:
        self._writes.append(write)
        if not self._is_writing:
            self._is_writing = True
            work = self._write_all()
            # A short write to this broker's own log ends immediately, without a task.
            rest = begin(work) if len(write.decided.batches) <= SHORT_WRITE else work
            if rest is not None:
                self._around.spawn(rest)

    async def _write_all(self) -> None:
        """Write the decided changes, one write after the other, until none is left."""
        writes: list[_Write] = []
        try:
            while self._writes and self.state is not None:
                writes, self._writes = self._writes, []
                await self._write_once(self.state, writes)
        except Exception:  # the changes can be neither confirmed nor undone, so load the state again
            log.exception("the state of group %s for %s is given up", self.key.group, self.partition.key)
            self.fail(ErrorCode.UNKNOWN_SERVER_ERROR)
        finally:
            self._is_writing = False
            for write in writes:  # the changes of a write that was cancelled because the broker stops
                _answer(write, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self._note_idle()

    def _note_idle(self) -> None:
        if self.is_idle:
            self._around.all_stored(self)

    async def _write_once(self, state: SharePartition, writes: list[_Write]) -> None:
        """Write some changes together; confirm them, or undo them if the write fails."""
        code = await self._store(state, writes)
        now_ms = self._around.clock.monotonic_ms()
        for write in writes:
            if self.state is not None and write.can_undo:
                await state.settle(write.decided, now_ms, is_stored=not code)
            _answer(write, code)
        if self.state is None:
            return
        if code in FENCING:
            self.fail(code)
            return
        if not code:
            state.advance()
        self.watch_locks()
        self.wake()
        for write in writes:
            if not code or not write.can_undo:
                self._send(write.decided.letters)

    async def _store(self, state: SharePartition, writes: list[_Write]) -> ErrorCode:
        """Write the state batches of some changes; return the error code for clients."""
        batches: list[StateBatch] = []
        for write in writes:
            if batches:
                await turn
            batches += write.decided.batches
        group, topic_id, index = self.key
        try:
            change = Change(self._state_epoch, self.leader_epoch, state.start, state.complete_count, batches)
            done = await self._around.persister.write(group, topic_id, index, change)
        except Exception:
            log.exception("the state of group %s for %s cannot be stored", group, self.partition.key)
            return ErrorCode.UNKNOWN_SERVER_ERROR
        if not done.error_code:
            self._stored_start = change.start_offset
        return for_clients(done.error_code)

    # -- dead letters

    def _send(self, letters: Sequence[Letter]) -> None:
        """Append dead letters to the queue, and write the queue."""
        self._letters += letters
        if self._letters and not self._is_sending:
            self._is_sending = True
            self._around.spawn(self._send_all())

    async def _send_all(self) -> None:
        try:
            while self._letters and self.state is not None:
                letters = cut(self._letters, LETTERS_AT_ONCE)
                await self._around.dead_letters.write(self.key.group, self.partition, letters)
                passed("share.dead_letters_written")
                if self.state is not None:
                    await self._bury(self.state, letters)
        except Exception:
            log.exception("the dead letters of group %s about %s are given up", self.key.group, self.partition.key)
            self.fail(ErrorCode.UNKNOWN_SERVER_ERROR)  # the next load finds the dead letters again
        finally:
            self._is_sending = False
        self._note_idle()

    async def _bury(self, state: SharePartition, letters: Sequence[Letter]) -> None:
        decided = await state.bury(letters)
        if decided.batches and not self.failure:
            self._write(_Write(decided, can_undo=False))
            self.wake()

    # -- the end of locks and delays

    def watch_locks(self) -> None:
        """Set the timer for the next end of a lock or delay."""
        if self.state is not None and self.state.next_deadline < self._timed_for and not self._is_expiring:
            self._timed_for = self.state.next_deadline
            self._around.schedule(self, max(self._timed_for - self._around.clock.monotonic_ms(), 0.0))

    def expire(self) -> None:
        """End the locks and delays whose time is over."""
        if self.state is not None and not self._is_expiring:
            self._is_expiring = True
            self._around.spawn(self._expire(self.state))

    async def _expire(self, state: SharePartition) -> None:
        clock = self._around.clock
        try:
            decided = await state.expire(clock.monotonic_ms(), self._around.settings.limits(self.key.group))
        finally:
            self._is_expiring = False
            self._timed_for = NO_LOCK
        if self.failure:
            return
        if decided.batches:
            self._write(_Write(decided, can_undo=False))
        if decided.batches or decided.has_freed:
            self.wake()
        if state.next_deadline < NO_LOCK:
            self._timed_for = max(state.next_deadline, clock.monotonic_ms() + EXPIRY_PAUSE_MS)
            self._around.schedule(self, self._timed_for - clock.monotonic_ms())

    # -- fetches

    def lock(self, fetch: Waiter) -> bool:
        """Lock the share partition for a fetch, if no other fetch has locked it. The fetch has to call `unlock`."""
        if self.state is None:
            return False
        if self.fetch_lock is not None:
            self._was_refused = True
            return False
        self.fetch_lock = fetch
        return True

    def unlock(self, fetch: Waiter) -> None:
        """End the lock of a fetch, and wake the fetches that were refused. Does nothing if `fetch` has no lock."""
        if self.fetch_lock is not fetch:
            return
        self.fetch_lock = None
        self.watch_locks()
        if self._was_refused:
            self._was_refused = False
            for waiter in tuple(self.waiters):
                if waiter is not fetch:
                    waiter.poke()


def _answer(write: _Write, code: ErrorCode) -> None:
    if write.done is not None and not write.done.done():
        write.done.set_result(code)
