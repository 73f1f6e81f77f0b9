"""A partition of a cluster: its work as leader and as follower, and the callers that wait for other replicas.

Owns the leader's knowledge of its followers (`Leadership`), the resulting high watermark, and the waiting callers. A
produce request with acks=all waits for the high watermark, DeleteRecords waits for the low watermark, and a follower's
fetch waits for the log's end. Never sends requests: `PartitionContext.propose` sends proposals to the controller, and
fetchers.py copies records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container
from dataclasses import dataclass, field
from functools import partial
from heapq import heapify, heappop, heappush

from kbroker.clock import Clock
from kbroker.log.append_info import CLIENT, AppendInfo, AppendOrigin
from kbroker.log.partition_log import PartitionLog
from kbroker.log.producers.producer_state import UNCHECKED
from kbroker.log.record_validation import Opened
from kbroker.partition import GiveUp, Notify, Partition, Readable, Waiter
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.wire import Buffer
from kbroker.replica_manager.replication_quota import ReplicationQuota
from kbroker.replication.leadership import Granted, Leadership, Proposal, compare_epochs, needed_in_sync

_FEW_DEAD = 64
"""The maximum number of cancelled waits in the queue before they are removed."""


@dataclass(slots=True)
class PartitionContext:
    """The shared state of all partitions of a broker."""

    node_id: int
    clock: Clock
    max_lag_ms: int
    """replica.lag.time.max.ms"""
    live_brokers: Callable[[], Container[int]]
    propose: Callable[[ReplicatedPartition, Proposal], None]
    """A function that is called with a new set of in-sync replicas, which the controller has to grant."""
    sent: ReplicationQuota = field(default_factory=ReplicationQuota)
    """Counts the bytes that this broker, as leader, sends to throttled replicas."""

    def now_ms(self) -> int:
        """Return the time, in ms, with which this broker decides whether followers lag."""
        return int(self.clock.monotonic_ms())


class _Wait:
    """One wait. `notify` is called once, with the outcome, unless the wait is cancelled first."""

    __slots__ = ("notify",)

    def __init__(self, notify: Notify) -> None:
        self.notify: Notify | None = notify


class Waits:
    """Waits, ordered by offset with the lowest offset first.

    Cancelled waits never use more memory than the other waits.
    """

    __slots__ = ("_count", "_dead", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, _Wait]] = []
        self._count = 0
        self._dead = 0

    def __bool__(self) -> bool:
        return bool(self._heap)

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, offset: int, notify: Notify) -> GiveUp:
        """Wait for an offset; return the function that cancels the wait."""
        wait = _Wait(notify)
        self._count += 1
        heappush(self._heap, (offset, self._count, wait))
        return partial(self._give_up, wait)

    def _give_up(self, wait: _Wait) -> None:
        if wait.notify is None:
            return
        wait.notify = None
        self._dead += 1
        if self._dead > _FEW_DEAD and self._dead * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].notify is not None]
            heapify(self._heap)
            self._dead = 0

    def finish(self, reached: int, code: Callable[[int], ErrorCode]) -> None:
        """Finish all waits for offsets up to `reached`; the outcome of each wait is `code(offset)`."""
        while self._heap and self._heap[0][0] <= reached:
            offset, _, wait = heappop(self._heap)
            self._finish(wait, code(offset))

    def fail(self, code: ErrorCode) -> None:
        """Finish all waits with this error."""
        heap, self._heap = self._heap, []
        for _, _, wait in heap:
            self._finish(wait, code)

    def _finish(self, wait: _Wait, code: ErrorCode) -> None:
        if wait.notify is None:
            self._dead = max(self._dead - 1, 0)
            return
        notify, wait.notify = wait.notify, None
        notify(code)


def _future() -> tuple[asyncio.Future[None], Notify]:
    """Return a future, and a function that sets its outcome."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def notify(code: ErrorCode) -> None:
        if future.done():
            return
        if code is ErrorCode.NONE:
            future.set_result(None)
        else:
            future.set_exception(ApiError(code))

    return future, notify


class ReplicatedPartition(Partition):
    """A partition with a replica on this broker. `alone` means that the partition has no other replicas."""

    __slots__ = (
        "_context",
        "_end_waiters",
        "acks",
        "copies",
        "deletions",
        "is_throttled_follower",
        "is_throttled_leader",
        "leadership",
    )

    is_replicated = True

    def __init__(
        self, topic: str, topic_id: bytes, index: int, partition_log: PartitionLog, context: PartitionContext
    ) -> None:
        super().__init__(topic, topic_id, index, partition_log)
        self._context = context
        self.alone = False
        self.leadership = Leadership(context.node_id)
        self.acks = Waits()
        """The waits for the high watermark."""
        self.copies = Waits()
        """The waits until all in-sync replicas have an offset, even if these are too few to move the high watermark."""
        self.deletions = Waits()
        """The waits for the low watermark."""
        self._end_waiters: dict[Waiter, None] = {}
        self.is_throttled_leader = False
        """Whether the leader limits the rate at which followers that are not in sync copy its log (KIP-73)."""
        self.is_throttled_follower = False
        """Whether this follower limits the rate at which it copies the log while it is not in sync (KIP-73)."""

    @property
    def end_waiters(self) -> dict[Waiter, None]:
        return self._end_waiters

    @property
    def knows_high_watermark(self) -> bool:
        return self.log.high_watermark >= self.leadership.epoch_start

    def check_epoch(self, epoch: int) -> ErrorCode:
        return compare_epochs(epoch, self.leader_epoch)

    def check_follower(self, broker: int, leader_epoch: int) -> ErrorCode:
        if broker in self.leadership.replicas and broker != self._context.node_id:
            return ErrorCode.NONE
        return ErrorCode.UNKNOWN_LEADER_EPOCH if leader_epoch >= 0 else ErrorCode.NOT_LEADER_OR_FOLLOWER

    # --- requests of the controller

    def knows_newer(self, state: Granted) -> bool:
        """Whether this partition knows a newer state than the controller's `state`."""
        return state.partition_epoch < self.leadership.partition_epoch

    def lead(self, state: Granted, replicas: tuple[int, ...]) -> None:
        """Lead the partition in the leader epoch of the controller's state."""
        context = self._context
        try:
            self.log.finish_truncation()
        except OSError as error:
            self.log.report_failure(error)  # from now on the log refuses appends
        end = self.log.log_end_offset
        # If leader epochs were skipped, other brokers may have led meanwhile. Then the known end offsets of the
        # followers are outdated, because the followers may have been truncated in the meantime.
        is_new_leader = not self.leading or state.leader_epoch > self.leader_epoch + 1
        begins = self.leadership.lead(state, replicas, end, context.now_ms(), is_new_leader=is_new_leader)
        if begins:
            self.log.leader_epochs.begin(state.leader_epoch, end)
        self.leader_epoch = state.leader_epoch
        self.leader = context.node_id
        if not self.leading:
            self.begin_counting()
        self.leading = True
        self._take_isr()
        self.advance()
        self.poke()

    def follow(self, state: Granted, replicas: tuple[int, ...], leader: int) -> None:
        """Follow a new leader, or no leader (-1), and notify waiting callers."""
        self.leadership.follow(state, replicas)
        self.leader_epoch = state.leader_epoch
        self.leader = leader
        self.count()
        self.leading = False
        if self.log.tier is not None:
            self.log.tier.is_led = False
        self._take_isr()
        self.poke()

    def granted(self, proposal: Proposal, state: Granted) -> None:
        """Apply the controller's result of a proposal."""
        if self.leading and self.leadership.granted(proposal, state):
            self._take_isr()
            self.advance()

    def refused(self, proposal: Proposal, error: ErrorCode) -> bool:
        """Handle a refused proposal; return whether to send it again."""
        again = self.leadership.refused(proposal, error)
        if self.leading and self.leadership.proposed is None:
            self.advance()  # the high watermark no longer waits for the refused follower
        return again and self.leading

    def set_min_isr(self, configured: int) -> None:
        """Apply min.insync.replicas, but require at most the number of replicas."""
        self.min_isr = needed_in_sync(configured, len(self.replicas))

    def _take_isr(self) -> None:
        self.replicas, self.isr = self.leadership.replicas, tuple(sorted(self.leadership.isr))
        self.alone = self.leading and self.replicas == (self._context.node_id,) == self.isr
        self.set_min_isr(self.log.config.min_insync_replicas)

    def poke(self) -> None:
        """Notify all waiting callers that the leadership or the log has changed."""
        super().poke()
        for waiter in tuple(self._end_waiters):
            waiter.poke()
        if not self.leading:
            self.acks.fail(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            self.copies.fail(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            self.deletions.fail(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    # --- as leader

    def append(
        self,
        records: Buffer,
        acks: int,
        now_ms: int,
        origin: AppendOrigin = CLIENT,
        guard: object = UNCHECKED,
        transaction_version: int = 0,
        opened: Opened | None = None,
    ) -> AppendInfo:
        """Append as leader, as on a single node. Move the high watermark if no other replica is in sync."""
        info = super().append(records, acks, now_ms, origin, guard, transaction_version, opened)
        if not self.alone:
            for waiter in tuple(self._end_waiters):
                waiter.poke()
            if len(self.isr) == 1:
                self.advance()  # with other replicas, the high watermark moves when followers have fetched the records
        return info

    def follower_fetched(self, replica: int, offset: int, log_start_offset: int) -> ErrorCode:
        """Record that a follower has all records before `offset`. Return an error if the follower is not a replica."""
        context, log, leadership = self._context, self.log, self.leadership
        moved = leadership.fetched(replica, offset, log_start_offset, log.log_end_offset, context.now_ms())
        if moved is None:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        if replica not in leadership.isr:
            proposal = leadership.to_expand(replica, log.high_watermark, context.live_brokers())
            if proposal is not None:
                context.propose(self, proposal)
        if moved:
            self.advance()
        if self.deletions:
            self._finish_deletions()
        return ErrorCode.NONE

    def shrink_isr(self) -> None:
        """Propose to remove followers that have lagged for longer than replica.lag.time.max.ms."""
        if not self.leading:
            return
        context = self._context
        proposal = self.leadership.to_shrink(self.log.log_end_offset, context.now_ms(), context.max_lag_ms)
        if proposal is not None:
            context.propose(self, proposal)
        # Stop waiting for a follower that was about to join the in-sync replicas but lags again.
        self.advance()

    def brokers_changed(self) -> None:
        """Stop waiting for a failed broker in DeleteRecords, and in acks=all if the broker was not in sync.

        A fetch of another follower would have the same effect. But possibly no fetch arrives while all clients wait for
        responses.
        """
        if self.leading:
            self.advance()
            if self.deletions:
                self._finish_deletions()

    def advance(self) -> None:
        """Move the high watermark as far as possible, and notify its waiters."""
        if not self.leading:
            return
        context, log = self._context, self.log
        found = self.leadership.high_watermark(
            log.log_end_offset, context.now_ms(), context.max_lag_ms, self.min_isr, context.live_brokers()
        )
        if found is not None and found > log.high_watermark:
            log.set_high_watermark(found)
            for waiter in tuple(self.waiters):
                waiter.poke()
        if self.acks:
            self.acks.finish(log.high_watermark, self._verdict)
        if self.copies:
            self.copies.finish(self._copied(), lambda _offset: ErrorCode.NONE)

    def _copied(self) -> int:
        context = self._context
        end = self.log.log_end_offset
        copied = self.leadership.copied(end, context.now_ms(), context.max_lag_ms, context.live_brokers())
        return max(copied, self.log.high_watermark)  # a new leader does not know its followers' offsets yet

    def _verdict(self, required_offset: int) -> ErrorCode:
        verdict = self.leadership.verdict(required_offset, self.log.high_watermark, self.min_isr)
        return ErrorCode.NONE if verdict is None else verdict

    def when_committed(self, offset: int, notify: Notify) -> GiveUp | None:
        if not self.leading:
            notify(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif self.log.high_watermark >= offset:
            notify(self._verdict(offset))
        else:
            return self.acks.add(offset, notify)
        return None

    def committed(self, offset: int) -> asyncio.Future[None]:
        """Return a future that is done when all records before `offset` are committed, or that fails with ApiError."""
        future, notify = _future()
        give_up = self.when_committed(offset, notify)
        if give_up is not None:
            future.add_done_callback(lambda _future: give_up())
        return future

    def copied(self, offset: int) -> Awaitable[None] | None:
        """Return a future that is done when every replica that can be elected cleanly has all records before `offset`.

        Return None if these replicas already have the records. If fewer than min.insync.replicas are in sync, the
        future can be done although the high watermark does not move. The future fails with ApiError if this broker can
        no longer reach this state.
        """
        if not self.leading:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if self._copied() >= offset:
            return None
        future, notify = _future()
        give_up = self.copies.add(offset, notify)
        future.add_done_callback(lambda _future: give_up())
        return future

    def readable_followers(self, offset: int) -> list[Readable]:
        leadership = self.leadership
        return [
            Readable(broker, follower.end_offset, follower.caught_up_ms)
            for broker, follower in leadership.followers
            if broker in leadership.isr and follower.log_start_offset <= offset <= follower.end_offset
        ]

    def may_send(self, replica: int) -> bool:
        context = self._context
        return not self._holds_back(replica) or not context.sent.is_exceeded(context.clock.monotonic_ms())

    def count_sent(self, replica: int, size: int) -> None:
        if self._holds_back(replica):
            self._context.sent.record(size, self._context.clock.monotonic_ms())

    def _holds_back(self, replica: int) -> bool:
        """Whether copying to a follower is throttled; False for an in-sync follower."""
        return self.is_throttled_leader and replica not in self.leadership.isr

    # --- deletion of records

    @property
    def low_watermark(self) -> int:
        return self.leadership.low_watermark(self.log.earliest_offset, self._context.live_brokers())

    def when_deleted(self, offset: int, notify: Notify) -> GiveUp | None:
        if not self.leading:
            notify(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif self.low_watermark >= offset:
            notify(ErrorCode.NONE)
        else:
            return self.deletions.add(offset, notify)
        return None

    def _finish_deletions(self) -> None:
        self.deletions.finish(self.low_watermark, lambda _offset: ErrorCode.NONE)
