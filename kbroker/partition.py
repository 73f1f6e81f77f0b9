"""A partition that this broker hosts: its log, its leadership, its high watermark, and waiting requests.

Owns `Partition`, which is complete for a single node (replica_manager/replicated_partition.py adds other replicas), and
the choice of the replica from which a consumer reads. Never elects a leader. All mutable state here belongs to the
event loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from kbroker.log.append_info import CLIENT, AppendError, AppendInfo, AppendOrigin
from kbroker.log.partition_log import PartitionLog
from kbroker.log.producers.producer_state import UNCHECKED
from kbroker.log.record_check import NO_CHECKS, RecordChecks
from kbroker.log.record_validation import Opened, TakesLonger
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.wire import Buffer
from kbroker.replication.leadership import compare_epochs
from kbroker.topic_metrics import Traffic

Notify = Callable[[ErrorCode], None]
"""A function that is called once with the outcome of a wait."""
GiveUp = Callable[[], object]
"""A function that cancels a wait."""


Client = tuple[str, str]
"""A client id, and the client's host as Kafka writes it."""
MOST_CLIENTS = 8
"""The maximum number of clients for which a partition records the last fetched offset."""


class Waiter(Protocol):
    """A delayed Fetch that waits for changes of a partition."""

    def poke(self) -> None:
        """Check again: the partition's visible end or its leadership has changed, or it was deleted."""


class Readable(NamedTuple):
    """An in-sync follower that has the requested offset.

    `caught_up_ms` is the last time at which it had all records.
    """

    broker: int
    end_offset: int
    caught_up_ms: int


class Partition:
    """One hosted partition. `leader` and `leader_epoch` are -1 and `leading` is False until the controller decides.

    `alone` means that no other replica is in sync, so that an append is committed immediately. This class is for a
    single node: no replica follows, and an append is committed immediately or never.
    """

    __slots__ = (
        "_counted_to",
        "alone",
        "checks",
        "fetched",
        "index",
        "isr",
        "leader",
        "leader_epoch",
        "leading",
        "log",
        "min_isr",
        "replicas",
        "topic",
        "topic_id",
        "traffic",
        "waiters",
    )

    is_replicated = False
    """Whether the partition may have replicas on other brokers (see replica_manager/replicated_partition.py)."""

    def __init__(self, topic: str, topic_id: bytes, index: int, partition_log: PartitionLog) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.log = partition_log
        self.leader_epoch = -1
        self.leader = -1
        self.leading = False
        self.replicas: tuple[int, ...] = ()
        self.isr: tuple[int, ...] = ()
        self.alone = False
        self.min_isr = 1
        self._counted_to = 0
        self.traffic = Traffic()
        """The counters of the partition's traffic; after the partition is hosted, the counters of its topic."""
        self.checks: RecordChecks = NO_CHECKS
        """The record checks that the topic's configs may require.

        After the partition is hosted, these are the broker's checks.
        """
        self.fetched: dict[Client, int] = {}
        """The last offset from which a consumer has fetched records, for some of the consumers.

        stuck_groups.py removes the entries.
        """
        self.waiters: dict[Waiter, None] = {}
        """The waiters in the order of arrival.

        This is not a set, because the order of a set would differ between runs.
        """

    @property
    def key(self) -> tuple[str, int]:
        return self.topic, self.index

    def begin_counting(self) -> None:
        """Start counting appends, because this broker has become the leader."""
        self._counted_to = self.log.log_end_offset

    def count(self) -> None:
        """Count the records appended as leader since the last call. A count at each append would take too long."""
        if self.leading:
            end = self.log.log_end_offset
            self.traffic.messages_in += end - self._counted_to
            self._counted_to = end

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
        """Append as leader and move the high watermark. Raise AppendError with Kafka's error code.

        acks=-1 requires min.insync.replicas in-sync replicas before records are written. PartitionLog.append_as_leader
        describes `guard`, `transaction_version`, `opened`, and TakesLonger, which is raised for a client's batch.
        """
        traffic = self.traffic
        try:
            if not self.leading:
                raise AppendError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            if acks == -1 and len(self.isr) < self.min_isr:
                raise AppendError(ErrorCode.NOT_ENOUGH_REPLICAS)
            info = self.log.append_as_leader(
                records,
                self.leader_epoch,
                now_ms,
                origin=origin,
                transaction_version=transaction_version,
                guard=guard,
                opened=opened,
                patient=origin is not CLIENT,
                checks=self.checks,
            )
        except TakesLonger:
            raise  # the caller repeats the append, and only the repeated append is counted
        except Exception as error:
            traffic.refused(error)
            raise
        traffic.produces += 1
        traffic.bytes_in += len(records)
        if self.alone:
            self.log.set_high_watermark(self.log.log_end_offset)
            if self.waiters:
                self.poke()
        return info

    def committed(self, _offset: int) -> Awaitable[None]:
        """Return an awaitable that ends when all records before an offset are committed.

        Raises ApiError, either immediately or when the result is awaited.
        """
        raise ApiError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)

    def when_committed(self, offset: int, notify: Notify) -> GiveUp | None:
        """Call `notify` when all records before `offset` are committed, or can no longer be committed.

        Return None after an immediate call.
        """
        is_committed = self.log.high_watermark >= offset
        notify(ErrorCode.NONE if is_committed else ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
        return None

    def copied(self, offset: int) -> Awaitable[None] | None:
        """Return an awaitable that ends when all electable replicas have all records before an offset.

        Return None if they already have these records.
        """
        return None if self.log.high_watermark >= offset else self.committed(offset)

    def poke(self) -> None:
        """Notify all waiters."""
        for waiter in tuple(self.waiters):
            waiter.poke()

    def check_leader_epoch(self, epoch: int) -> ErrorCode:
        """Compare a client's leader epoch (-1: none) with the partition's leader epoch (KIP-320)."""
        if not self.leading:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return compare_epochs(epoch, self.leader_epoch)

    def check_epoch(self, epoch: int) -> ErrorCode:
        """Compare a client's leader epoch with the partition's, for a request that any replica may answer."""
        return self.check_leader_epoch(epoch)

    @property
    def knows_high_watermark(self) -> bool:
        """Whether a new leader knows its predecessor's high watermark (Partition.scala)."""
        return True

    # --- other replicas

    @property
    def end_waiters(self) -> dict[Waiter, None]:
        """The waiters for any new records, whether committed or not."""
        return self.waiters

    @property
    def low_watermark(self) -> int:
        """The offset before which all live replicas have deleted all records."""
        return self.log.earliest_offset

    def when_deleted(self, _offset: int, notify: Notify) -> GiveUp | None:
        """Call `notify` when all live replicas have deleted all records before an offset.

        Return None after an immediate call.
        """
        notify(ErrorCode.NONE)
        return None

    def check_follower(self, _broker: int, _leader_epoch: int) -> ErrorCode:
        """Return an error if a broker has no replica of this partition; such a broker must not follow."""
        return ErrorCode.NOT_LEADER_OR_FOLLOWER

    def follower_fetched(self, _replica: int, _offset: int, _log_start_offset: int) -> ErrorCode:
        """Record that a follower has all records before an offset; return an error if the follower has no replica."""
        return ErrorCode.NOT_LEADER_OR_FOLLOWER

    def may_send(self, _replica: int) -> bool:
        """Whether to send records to a follower now: a follower that is not in sync may be throttled."""
        return True

    def count_sent(self, _replica: int, _size: int) -> None:
        """Count the bytes sent to a throttled follower."""

    def readable_followers(self, _offset: int) -> Sequence[Readable]:
        """Return the followers from which a consumer may read an offset: those that are in sync and have the offset."""
        return ()


def nearest(rack: str, leader_rack: str | None, followers: Iterable[Readable], racks: Mapping[int, str]) -> int | None:
    """Return the most advanced follower in the client's rack; None if the leader should serve the client.

    (KIP-392; Apache Kafka: RackAwareReplicaSelector.)
    """
    if not rack or rack == leader_rack:
        return None
    near = [each for each in followers if racks.get(each.broker) == rack]
    best = max(near, key=lambda each: (each.end_offset, each.caught_up_ms, each.broker), default=None)
    return None if best is None else best.broker
