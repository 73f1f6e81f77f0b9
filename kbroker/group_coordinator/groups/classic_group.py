"""A classic group: its members, its generation, its state.

Owns the state and its transitions, and the rules that need only the group itself: votes, leadership, missing members.
Never answers a request or sets a timer: the package `classic` does both.

    Empty                No members. Offsets may stay until they expire, and may be committed without a member id.
                         A member joins -> PreparingRebalance; the group is deleted or unloaded -> Dead.
    PreparingRebalance   JoinGroup is parked until all known members are back or their rebalance timeout is over.
                         Heartbeats get REBALANCE_IN_PROGRESS; commits of the old generation are accepted.
                         The join phase ends -> CompletingRebalance, or Empty if no member is left.
    CompletingRebalance  SyncGroup is parked until the leader's assignment is in the log.
                         The assignment is in the log -> Stable.
                         A member joins, leaves or fails -> PreparingRebalance.
    Stable               SyncGroup returns the assignment immediately.
                         A member joins, leaves or fails, or the leader joins again -> PreparingRebalance.
    Dead                 Not on this broker: requests get COORDINATOR_NOT_AVAILABLE.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from copy import copy
from enum import Enum

from kbroker.coordination.shard import Parked
from kbroker.group_coordinator.java_order import in_java_order
from kbroker.protocol.compiler import decoder
from kbroker.protocol.errors import ApiError, ErrorCode, Malformed
from kbroker.protocol.messages.consumer_groups import ConsumerProtocolSubscription

log = logging.getLogger(__name__)

CONSUMER = "consumer"
Protocols = tuple[tuple[str, bytes], ...]


class GroupState(Enum):
    """The states, by their names in DescribeGroups and ListGroups."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


EMPTY, PREPARING, COMPLETING, STABLE, DEAD = GroupState

VALID_FROM: dict[GroupState, frozenset[GroupState]] = {
    EMPTY: frozenset({PREPARING}),
    PREPARING: frozenset({STABLE, COMPLETING, EMPTY}),
    COMPLETING: frozenset({PREPARING}),
    STABLE: frozenset({COMPLETING}),
    DEAD: frozenset(GroupState),
}


class Member:
    """One member: its protocols, its assignment, and its parked requests."""

    __slots__ = (
        "assignment", "awaiting_join", "awaiting_sync", "client_host", "client_id", "instance_id", "is_new",
        "member_id", "protocol_type", "protocols", "rebalance_timeout_ms", "session_timeout_ms",
    )  # fmt: skip

    def __init__(
        self,
        *,
        member_id: str,
        instance_id: str | None,
        client_id: str,
        client_host: str,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        protocol_type: str,
        protocols: Protocols,
        assignment: bytes = b"",
    ) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.session_timeout_ms = session_timeout_ms
        self.protocol_type = protocol_type
        self.protocols = protocols
        self.assignment = assignment
        self.awaiting_join: Parked | None = None
        self.awaiting_sync: Parked | None = None
        self.is_new = False

    def metadata(self, protocol: str | None) -> bytes:
        """Return the member's metadata of a protocol."""
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        raise ValueError(f"member {self.member_id} does not support protocol {protocol}")

    def vote(self, candidates: set[str]) -> str:
        """Return the first of the member's protocols that is among the candidates, which all members support."""
        return next(name for name, _ in self.protocols if name in candidates)

    def is_alive_without_heartbeat(self) -> bool:
        """Return whether a parked request proves that the member is alive.

        The request of a member that never got an answer proves nothing.
        """
        return not self.is_new and (self.awaiting_join is not None or self.awaiting_sync is not None)


class ClassicGroup:
    """One group.

    If `protocol_type` is None and there are no members, the group is a simple group, which has only offsets.
    """

    TYPE = "classic"

    __slots__ = (
        "_supported", "generation", "group_id", "initial_delay", "leader_id", "members", "new_member_added",
        "pending_joins", "pending_syncs", "previous", "protocol_name", "protocol_type", "state", "state_timestamp",
        "static_members", "subscribed_topics", "unled",
    )  # fmt: skip

    def __init__(self, group_id: str, now_ms: int) -> None:
        self.group_id = group_id
        self.state = EMPTY
        self.previous = DEAD
        self.state_timestamp = now_ms  # -1 if an old record does not have it
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.leader_id: str | None = None
        self.unled = False  # whether the loaded record names no leader, so that the group must first rebalance
        self.members: dict[str, Member] = {}
        self.static_members: dict[str, str] = {}  # Instance id -> member id.
        self.pending_joins: set[str] = set()  # Ids sent with MEMBER_ID_REQUIRED and not used yet.
        self.pending_syncs: set[str] = set()
        self.subscribed_topics: set[str] | None = None
        self.new_member_added = False
        self.initial_delay: tuple[int, int] | None = None  # (delay, remaining) ms while the first rebalance is delayed
        self._supported: dict[str, int] = {}

    def to(self, state: GroupState, now_ms: int) -> None:
        """Change the state. A transition that the table does not list is a bug."""
        if self.state not in VALID_FROM[state]:
            raise RuntimeError(f"group {self.group_id} cannot go from {self.state.value} to {state.value}")
        self.previous, self.state = self.state, state
        self.state_timestamp = now_ms

    # -- members

    def add(self, member: Member, parked: Parked | None = None) -> None:
        """Add a member. The first member sets the protocol type and becomes the leader."""
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        if not self.members:
            self.protocol_type = member.protocol_type
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.members[member.member_id] = member
        self._count(member, 1)
        member.awaiting_join = parked
        self.pending_joins.discard(member.member_id)

    def remove(self, member_id: str) -> None:
        """Remove a member or a pending member. If the member was the leader, the next member becomes the leader."""
        member = self.members.pop(member_id, None)
        if member is not None:
            self._count(member, -1)
            if member.instance_id is not None:
                self.static_members.pop(member.instance_id, None)
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)
        self.pending_joins.discard(member_id)
        self.pending_syncs.discard(member_id)

    def replace_static(self, instance_id: str, old_id: str, new_id: str) -> Member:
        """Give a static member a new id; the member keeps its assignment and its leadership (KIP-345)."""
        old = self.members[old_id]
        new = copy(old)
        new.member_id, new.instance_id = new_id, instance_id
        new.awaiting_join = new.awaiting_sync = None
        new.is_new = False
        self.members = {
            new_id if key == old_id else key: new if key == old_id else m for key, m in self.members.items()
        }
        if self.leader_id == old_id:
            self.leader_id = new_id
        self.static_members[instance_id] = new_id
        self.pending_syncs.discard(old_id)
        return new

    def update(self, member: Member, protocols: Protocols, rebalance_ms: int, session_ms: int) -> None:
        """Store the values of a member's new JoinGroup."""
        self._count(member, -1)
        member.protocols = protocols
        self._count(member, 1)
        member.rebalance_timeout_ms = rebalance_ms
        member.session_timeout_ms = session_ms

    def validate_member(self, member_id: str, instance_id: str | None) -> Member:
        """Return the member; raises UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID."""
        if instance_id is not None:
            holder = self.static_members.get(instance_id)
            if holder is None:
                raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
            if holder != member_id:
                log.debug(
                    "group %s: member %s of instance %s is fenced by %s", self.group_id, member_id, instance_id, holder
                )
                raise ApiError(ErrorCode.FENCED_INSTANCE_ID)
        member = self.members.get(member_id)
        if member is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    def awaiting_joins(self) -> int:
        return sum(member.awaiting_join is not None for member in self.members.values())

    def all_joined(self) -> bool:
        """Return whether every member, including every pending member, has joined the next generation."""
        return not self.pending_joins and all(m.awaiting_join is not None for m in self.members.values())

    def rebalance_timeout_ms(self) -> int:
        return max((m.rebalance_timeout_ms for m in self.members.values()), default=0)

    def elect_joined_leader(self) -> bool:
        """Replace a leader that has not joined again. Return False if no member can lead."""
        if self.leader_id is None:
            return False
        if self.members[self.leader_id].awaiting_join is not None:
            return True
        for member in self.members.values():
            if member.awaiting_join is not None:
                log.debug("group %s: leader %s did not join, %s leads", self.group_id, self.leader_id, member.member_id)
                self.leader_id = member.member_id
                return True
        return False

    # -- protocols

    def _count(self, member: Member, step: int) -> None:
        for name in {name for name, _ in member.protocols}:
            self._supported[name] = self._supported.get(name, 0) + step

    def supports(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Return whether a member with these protocols could join the group."""
        if self.state is EMPTY:
            return bool(protocol_type) and any(True for _ in names)
        return self.protocol_type == protocol_type and any(
            self._supported.get(name, 0) == len(self.members) for name in names
        )

    def select_protocol(self) -> str:
        """Return the protocol with the most votes among those that all members support."""
        candidates = {name for name, count in self._supported.items() if count == len(self.members)}
        votes: dict[str, int] = {}
        for member in self.members.values():
            name = member.vote(candidates)
            votes[name] = votes.get(name, 0) + 1
        most = max(votes.values())
        return next(name for name in in_java_order(votes) if votes[name] == most)

    def next_generation(self, now_ms: int) -> None:
        """Begin the next generation: CompletingRebalance with the joined members, or Empty if there are none."""
        self.generation += 1
        self.protocol_name = self.select_protocol() if self.members else None
        self.subscribed_topics = self.compute_subscribed_topics()
        self.to(COMPLETING if self.members else EMPTY, now_ms)
        self.pending_syncs.clear()

    @property
    def is_empty(self) -> bool:
        return self.state is EMPTY

    def compute_subscribed_topics(self) -> set[str] | None:
        """Return the topics of all members' subscriptions; None if the group's protocol has no subscriptions."""
        if self.protocol_type != CONSUMER:
            return None
        if not self.members:
            return set()
        if self.protocol_name is None:
            return None
        read = decoder(ConsumerProtocolSubscription, 0)
        topics: set[str] = set()
        try:
            for member in self.members.values():
                topics.update(read(member.metadata(self.protocol_name)[2:]).topics)
        except (Malformed, ValueError) as err:
            log.warning(
                "group %s: the subscriptions under %s cannot be read: %s", self.group_id, self.protocol_name, err
            )
            return None
        return topics

    def is_subscribed_to(self, topic: str) -> bool:
        """Return whether a member consumes `topic`; True if a consumer group's subscriptions cannot be read."""
        if self.subscribed_topics is None:
            return self.protocol_type == CONSUMER
        return topic in self.subscribed_topics
