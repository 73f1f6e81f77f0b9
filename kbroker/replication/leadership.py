"""The leader's side of a partition: epochs, the in-sync followers, acks=all, and the limit of the high watermark.

Owns the known progress of the followers, and the rules for leaving and joining the in-sync replicas. Also owns the set
of in-sync replicas that the controller has granted, and the one pending change of this set. Also owns the requirements
of `min.insync.replicas` before and after an append (Partition.appendRecordsToLeader, checkEnoughReplicasReachOffset),
which also apply to a single node. Pure: it receives offsets and times, and returns offsets and proposals to the
controller; it never reads a log, a clock or a socket. (Apache Kafka: Partition, Replica; KIP-497 for the pending
change.)

While a proposed set is not granted, the leader applies it only where this is safer: the high watermark waits
immediately for a joining replica, and continues to wait for a leaving replica until the controller has granted the
change.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import Final

from kbroker.protocol.errors import ErrorCode


def compare_epochs(epoch: int, own: int) -> ErrorCode:
    """Compare the leader epoch of a client or a follower with a replica's own epoch (KIP-320); -1 is always valid.

    The result is FENCED_LEADER_EPOCH for an older epoch, and UNKNOWN_LEADER_EPOCH for a newer epoch. Other negative
    epochs count as older epochs. In a Fetch request they mean -1 (FetchRequest.optionalEpoch), and the Fetch handler
    converts them.
    """
    if epoch in (-1, own):
        return ErrorCode.NONE
    return ErrorCode.FENCED_LEADER_EPOCH if epoch < own else ErrorCode.UNKNOWN_LEADER_EPOCH


def needed_in_sync(min_isr: int, replicas: int) -> int:
    """Return the required number of in-sync replicas: min.insync.replicas, but at most the number of replicas."""
    return min(min_isr, max(replicas, 1))


NEVER: Final = -(1 << 62)
"""A time in ms that is before all other times."""


@dataclass(slots=True)
class Follower:
    """The leader's state of a follower.

    Offsets are -1 until the follower fetches. Times are ms of the leader's clock.
    """

    end_offset: int = -1
    log_start_offset: int = -1
    leader_end_offset: int = -1
    """The leader's log end offset at the last fetch."""
    fetched_ms: int = NEVER
    caught_up_ms: int = NEVER
    """The last time at which the follower had all records of the leader."""

    def is_caught_up(self, end_offset: int, now_ms: int, max_lag_ms: int) -> bool:
        """Whether the follower has all records, or had all records at most `max_lag_ms` ago."""
        return self.end_offset == end_offset or now_ms - self.caught_up_ms <= max_lag_ms

    def may_join(self, high_watermark: int, epoch_start: int) -> bool:
        """Whether the follower has reached the high watermark and the start of the leader epoch.

        This leader may know an outdated high watermark. A follower that has not reached the epoch's start may lack
        committed records above this high watermark.
        """
        return self.end_offset >= max(high_watermark, epoch_start)

    def fetch(self, offset: int, log_start_offset: int, end_offset: int, now_ms: int) -> None:
        """Record a fetch from `offset`: the follower has all earlier records. The leader's log ends at `end_offset`."""
        if offset >= end_offset:
            self.caught_up_ms = max(self.caught_up_ms, now_ms)
        elif offset >= self.leader_end_offset:
            # The follower has all records up to the leader's end at its previous fetch. With a steady stream of small
            # batches, such a follower must not count as lagging.
            self.caught_up_ms = max(self.caught_up_ms, self.fetched_ms)
        self.end_offset = offset
        self.log_start_offset = log_start_offset
        self.leader_end_offset = max(self.leader_end_offset, end_offset)
        self.fetched_ms = now_ms


def at_the_start(known: Follower, end_offset: int, now_ms: int, in_sync: bool, *, is_new_leader: bool) -> Follower:
    """Return a follower's state at the start of a leader epoch. An in-sync follower may lag for `max_lag_ms` again."""
    caught_up = now_ms if in_sync else NEVER
    if is_new_leader:
        return Follower(caught_up_ms=caught_up)
    return Follower(known.end_offset, known.log_start_offset, end_offset, caught_up, caught_up)


_NOT_DONE: Final = frozenset({ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA})
"""Errors after which the previously granted state is still valid: the controller has not changed anything."""
_AWAIT_THE_CONTROLLER: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
    }
)
"""Errors that mean that this leader's state is outdated, and that the controller will soon send the new state."""


@dataclass(frozen=True, slots=True)
class Granted:
    """A partition's state at the controller. `partition_epoch` grows with each change of this state."""

    leader_epoch: int
    partition_epoch: int
    isr: frozenset[int]


@dataclass(frozen=True, slots=True)
class Proposal:
    """A proposed set of in-sync replicas. The controller grants it only if the partition still has these epochs."""

    leader_epoch: int
    partition_epoch: int
    isr: frozenset[int]


class Leadership:
    """One partition that this broker leads or has led.

    `replicas` are all assigned replicas, including this broker; `isr` is the last granted set.
    """

    __slots__ = (
        "_followers",
        "_node_id",
        "epoch_start",
        "isr",
        "leader_epoch",
        "partition_epoch",
        "proposed",
        "replicas",
    )

    def __init__(self, node_id: int) -> None:
        self._node_id = node_id
        self._followers: dict[int, Follower] = {}
        self.leader_epoch = -1
        self.epoch_start = -1
        """The log offset at which this broker's latest leader epoch started."""
        self.partition_epoch = -1
        self.replicas: tuple[int, ...] = ()
        self.isr: frozenset[int] = frozenset()
        self.proposed: Proposal | None = None

    @property
    def followers(self) -> Iterable[tuple[int, Follower]]:
        """The other replicas and their known state."""
        return self._followers.items()

    @property
    def maximal_isr(self) -> frozenset[int]:
        """All replicas that the controller may already count as in sync."""
        return self.isr if self.proposed is None else self.isr | self.proposed.isr

    def lead(
        self, state: Granted, replicas: tuple[int, ...], end_offset: int, now_ms: int, *, is_new_leader: bool
    ) -> bool:
        """Apply the controller's state; return whether a new leader epoch begins, at `end_offset`.

        `is_new_leader` means that this broker did not lead before, or was interrupted, so that the known state of
        followers is outdated. If `state` is older than the known state, change nothing and return False.
        """
        if state.partition_epoch < self.partition_epoch:
            return False
        begins = state.leader_epoch > self.leader_epoch
        known, self._followers = self._followers, {}
        # A replica that was removed from the assignment is in sync until the controller has written a set without this
        # replica. Until then a new controller may elect this replica, so the leader waits for it. (Kafka's leaders wait
        # only for assigned replicas.)
        for each in (*replicas, *sorted(state.isr.difference(replicas))):
            if each != self._node_id:
                self._followers[each] = known.get(each) or Follower()
        self.replicas = replicas
        self.isr = state.isr
        self.proposed = None
        if begins:
            for each, follower in self._followers.items():
                self._followers[each] = at_the_start(
                    follower, end_offset, now_ms, each in state.isr, is_new_leader=is_new_leader
                )
            self.leader_epoch = state.leader_epoch
            self.epoch_start = end_offset
        self.partition_epoch = state.partition_epoch
        return begins

    def follow(self, state: Granted, replicas: tuple[int, ...]) -> bool:
        """Stop leading; return whether the leader epoch is new.

        If `state` is older than the known state, change nothing and return False.
        """
        if state.partition_epoch < self.partition_epoch:
            return False
        begins = state.leader_epoch > self.leader_epoch
        self._followers.clear()
        self.replicas = replicas
        self.isr = frozenset()
        self.proposed = None
        self.leader_epoch = state.leader_epoch
        self.epoch_start = -1
        self.partition_epoch = state.partition_epoch
        return begins

    def fetched(self, replica: int, offset: int, log_start_offset: int, end_offset: int, now_ms: int) -> bool | None:
        """Record a follower's fetch.

        Return whether the follower's end moved; None if the follower is not a replica of this partition.
        """
        follower = self._followers.get(replica)
        if follower is None:
            return None
        before = follower.end_offset
        follower.fetch(offset, log_start_offset, end_offset, now_ms)
        return follower.end_offset != before

    # --- in-sync replicas

    def to_expand(self, replica: int, high_watermark: int, live: Container[int]) -> Proposal | None:
        """Propose to add a follower to the in-sync replicas if it may join and no change is pending."""
        follower = self._followers.get(replica) if replica in self.replicas else None
        if self.proposed is not None or follower is None or replica in self.isr or replica not in live:
            return None
        if not follower.may_join(high_watermark, self.epoch_start):
            return None
        return self._propose(self.isr | {replica})

    def to_shrink(self, end_offset: int, now_ms: int, max_lag_ms: int) -> Proposal | None:
        """Propose to remove the replicas that have lagged for longer than `max_lag_ms` from the in-sync replicas."""
        if self.proposed is not None:
            return None
        late = {
            each
            for each in self.isr
            if each != self._node_id and not self._is_caught_up(each, end_offset, now_ms, max_lag_ms)
        }
        return self._propose(self.isr - late) if late else None

    def granted(self, proposal: Proposal, state: Granted) -> bool:
        """Apply the controller's result of a proposal; return False if a newer state was already applied."""
        if proposal is not self.proposed:
            return False
        if state.leader_epoch != self.leader_epoch or state.partition_epoch < self.partition_epoch:
            return False
        self.isr, self.partition_epoch, self.proposed = state.isr, state.partition_epoch, None
        return True

    def refused(self, proposal: Proposal, error: ErrorCode) -> bool:
        """Handle a refused proposal; return whether to send it again.

        If it is unclear whether the proposal was granted, the proposal stays pending, which is the safe choice for the
        leader.
        """
        if proposal is not self.proposed:
            return False
        if error in _NOT_DONE:
            self.proposed = None
            if error == ErrorCode.INELIGIBLE_REPLICA:
                self._stop_waiting_for(proposal.isr - self.isr)
            return False
        return error not in _AWAIT_THE_CONTROLLER

    def _stop_waiting_for(self, refused: frozenset[int]) -> None:
        """Stop waiting for replicas that must not join: they will stop soon, and perhaps will not fetch again.

        (Kafka's leaders wait for such a replica until it has been absent for replica.lag.time.max.ms.)
        """
        for each in refused:
            follower = self._followers.get(each)
            if follower is not None:
                follower.caught_up_ms = NEVER

    def _propose(self, isr: frozenset[int]) -> Proposal:
        self.proposed = Proposal(self.leader_epoch, self.partition_epoch, isr)
        return self.proposed

    def _is_caught_up(self, replica: int, end_offset: int, now_ms: int, max_lag_ms: int) -> bool:
        follower = self._followers.get(replica)
        return follower is not None and follower.is_caught_up(end_offset, now_ms, max_lag_ms)

    # --- watermarks

    def enough(self, min_isr: int) -> bool:
        """Whether acks=all is possible: enough replicas are in sync for min.insync.replicas, or all replicas are."""
        return len(self.isr) >= needed_in_sync(min_isr, len(self.replicas))

    def high_watermark(
        self, end_offset: int, now_ms: int, max_lag_ms: int, min_isr: int, live: Container[int]
    ) -> int | None:
        """Return the limit of the high watermark.

        Return None if it must not move, because too few replicas are in sync.
        """
        return self.copied(end_offset, now_ms, max_lag_ms, live) if self.enough(min_isr) else None

    def copied(self, end_offset: int, now_ms: int, max_lag_ms: int, live: Container[int]) -> int:
        """Return the offset up to which every replica that can be elected cleanly has all records.

        The number of these replicas can be below min.insync.replicas. Every replica that the controller may already
        count as in sync limits this offset. Replicas that are about to join also limit it: otherwise a replica that
        lags only slightly would never join.
        """
        lowest, maximal = end_offset, self.maximal_isr
        for replica, follower in self._followers.items():
            if follower.end_offset < lowest and (
                replica in maximal or (replica in live and follower.is_caught_up(end_offset, now_ms, max_lag_ms))
            ):
                lowest = follower.end_offset
        return lowest

    def verdict(self, required_offset: int, high_watermark: int, min_isr: int) -> ErrorCode | None:
        """Return the result of acks=all for records that end at `required_offset`; return None while it has to wait."""
        if high_watermark < required_offset:
            return None
        # All in-sync replicas have the batch, but some replicas may have left the set meanwhile.
        enough = len(self.maximal_isr) >= needed_in_sync(min_isr, len(self.replicas))
        return ErrorCode.NONE if enough else ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND

    def low_watermark(self, log_start_offset: int, live: Container[int]) -> int:
        """Return the offset before which all live replicas have deleted all records (DeleteRecords waits for it)."""
        starts = (each.log_start_offset for replica, each in self._followers.items() if replica in live)
        return min([log_start_offset, *starts])
