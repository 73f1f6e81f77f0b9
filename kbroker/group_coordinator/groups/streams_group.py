"""A streams group (KIP-1071): its topology, its members, its epochs, its target.

Owns the state and the values derived from it. A group changes only when records/streams_group.py replays a record; a
comment separates the state that exists only in this process. The package `streams` decides about a group.

    Empty        No members. Offsets may stay until they expire.
    NotReady     Topics are missing, or do not fit the topology: members get no tasks.
    Assigning    The group's epoch is ahead of the target's.
    Reconciling  Members are on their way to the target.
    Stable       Every member has the tasks of its target.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from enum import Enum

from kbroker.group_coordinator.groups.streams_member import StreamsMember
from kbroker.group_coordinator.topologies.configured_topology import ConfiguredTopology
from kbroker.group_coordinator.topologies.tasks import NO_TASKS, HeldTasks, Tasks, TaskSet
from kbroker.group_coordinator.topologies.topology import Topology
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.streams_groups import EndpointToPartitions

log = logging.getLogger(__name__)

STREAMS = "streams"
NOT_VALIDATED = -1
Offsets = Mapping[str, Mapping[int, int]]
MOST_OFFSETS = 100_000
"""The maximum number of task offsets that a group keeps for all its members.

The computation of a target assignment reads all these offsets in one step. Kafka has no such limit.
"""


class StreamsGroupState(Enum):
    """The states, by their names in StreamsGroupDescribe and ListGroups."""

    EMPTY = "Empty"
    NOT_READY = "NotReady"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class StreamsGroup:
    """One group."""

    TYPE = STREAMS
    protocol_type = STREAMS

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = 1
        self.assignment_epoch = 1
        self.assignment_timestamp = 0
        self.metadata_hash = 0
        self.validated_topology_epoch = NOT_VALIDATED
        self.stored_description_epoch = self.failed_description_epoch = -1
        self.assignment_configs: dict[str, str] = {}
        self.topology: Topology | None = None
        self.members: dict[str, StreamsMember] = {}
        self.static_members: dict[str, str] = {}  # instance id -> member id
        self.target: dict[str, TaskSet] = {}
        self._active: dict[tuple[str, int], str] = {}  # task -> the process that runs it
        self._standby: dict[tuple[str, int], dict[str, int]] = {}  # task -> processes, each with its number of members
        self._warmup: dict[tuple[str, int], dict[str, int]] = {}
        # The following state exists only in this process.
        self.configured: ConfiguredTopology | None = None
        self.refresh_deadline = 0  # The time of the next check of the topics, even without a notification.
        self.refresh_epoch = 0
        self.seen_version = 0  # The version of Topics at the last check.
        self.revoking: dict[str, int] = {}  # Members whose revocation is timed, and their epochs at its start.
        # The offsets to which each member has restored its tasks, as reported by the member.
        self.restored: dict[str, Offsets] = {}
        self.restored_ends: dict[str, Offsets] = {}  # The end offsets of the tasks' state.
        self._offsets = 0  # The number of offsets in `restored` and `restored_ends`.
        self.shutdown_by: str | None = None  # The member that requested the shutdown of all members.
        self.endpoint_epoch = 0  # Grows when partitions move between the endpoints of members.
        self.endpoints: dict[str, EndpointToPartitions] = {}  # A cache of endpoints, by member id.

    # -- queries

    @property
    def state(self) -> StreamsGroupState:
        """The group's progress towards its target."""
        if not self.members:
            return StreamsGroupState.EMPTY
        if self.topology is None or self.topology.epoch != self.validated_topology_epoch:
            return StreamsGroupState.NOT_READY
        if self.epoch > self.assignment_epoch:
            return StreamsGroupState.ASSIGNING
        if all(member.is_reconciled_to(self.assignment_epoch) for member in self.members.values()):
            return StreamsGroupState.STABLE
        return StreamsGroupState.RECONCILING

    @property
    def is_empty(self) -> bool:
        return not self.members

    def member(self, member_id: str) -> StreamsMember:
        """Return a member; raises UNKNOWN_MEMBER_ID."""
        found = self.members.get(member_id)
        if found is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {self.group_id}.")
        return found

    def static_member(self, instance_id: str | None) -> StreamsMember | None:
        held = None if instance_id is None else self.static_members.get(instance_id)
        return None if held is None else self.members.get(held)

    def target_of(self, member_id: str, instance_id: str | None = None) -> TaskSet:
        """Return a member's target. If its instance id had a previous holder, return the target of this holder."""
        if instance_id is not None:
            holder = self.static_members.get(instance_id)
            return NO_TASKS if holder is None else self.target.get(holder, NO_TASKS)
        return self.target.get(member_id, NO_TASKS)

    def active_process(self, subtopology: str, partition: int) -> str | None:
        """Return the id of the process that runs a task or still has to give it up."""
        return self._active.get((subtopology, partition))

    def is_standby_of(self, process_id: str, subtopology: str, partition: int) -> bool:
        return process_id in self._standby.get((subtopology, partition), ())

    def is_warmup_of(self, process_id: str, subtopology: str, partition: int) -> bool:
        return process_id in self._warmup.get((subtopology, partition), ())

    def is_subscribed_to(self, topic: str) -> bool:
        return bool(self.members) and self.topology is not None and topic in self.topology.by_source

    def topics_are_stale(self, now_ms: int, version: int) -> bool:
        """Return whether the group must check the topology's topics for changes."""
        return now_ms >= self.refresh_deadline or self.epoch < self.refresh_epoch or self.seen_version != version

    # -- changes by records

    def put_member(self, member: StreamsMember) -> None:
        """Add a member, or replace it with its newer value."""
        old = self.members.get(member.member_id)
        self.members[member.member_id] = member
        self._forget_tasks(old)
        for held in (member.assigned, member.pending_revocation):
            self._note(held, member.process_id)
        if old is not None and old.instance_id is not None:
            self.static_members.pop(old.instance_id, None)
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        self.endpoints.pop(member.member_id, None)

    def remove_member(self, member_id: str) -> None:
        old = self.members.pop(member_id, None)
        if old is None:
            return
        self._forget_tasks(old)
        if old.instance_id is not None and self.static_members.get(old.instance_id) == member_id:
            del self.static_members[old.instance_id]
        self.forget(member_id)
        if not self.members:
            self.shutdown_by = None

    def forget(self, member_id: str) -> None:
        """Forget the data in this process about a client that is not a member."""
        for offsets in (self.restored, self.restored_ends):
            self._offsets -= _size(offsets.pop(member_id, {}))
        self.revoking.pop(member_id, None)
        self.endpoints.pop(member_id, None)

    def put_offsets(self, member_id: str, restored: Offsets | None, ends: Offsets | None) -> None:
        """Store the offsets to which a member has restored its tasks, within the limit. None means no change."""
        for held, told in ((self.restored, restored), (self.restored_ends, ends)):
            if told is None:
                continue
            self._offsets += _size(told) - _size(held.get(member_id, {}))
            held[member_id] = told
            if self._offsets > MOST_OFFSETS:
                self._offsets -= _size(held.pop(member_id))

    def put_topology(self, topology: Topology | None) -> None:
        """Store the group's topology; None removes it."""
        self.topology = topology
        self.configured = None
        self.endpoints.clear()

    def put_configured(self, configured: ConfiguredTopology) -> None:
        """Store the result of checking the topology against the topics."""
        self.configured = configured
        self.endpoints.clear()

    def _note(self, held: HeldTasks, process_id: str) -> None:
        for subtopology, indexes in held.active.items():
            for index in indexes:
                self._active[subtopology, index] = process_id
        for tasks, known in ((held.standby, self._standby), (held.warmup, self._warmup)):
            for task in _each(tasks):
                processes = known.setdefault(task, {})
                processes[process_id] = processes.get(process_id, 0) + 1

    def _forget_tasks(self, member: StreamsMember | None) -> None:
        if member is None:
            return
        for held in (member.assigned, member.pending_revocation):
            for subtopology, indexes in held.active.items():
                for index in indexes:
                    # After a compaction of the log, the task may already belong to another process, which keeps it.
                    if self._active.get((subtopology, index)) == member.process_id:
                        del self._active[subtopology, index]
            for tasks, known in ((held.standby, self._standby), (held.warmup, self._warmup)):
                for task in _each(tasks):
                    _count_down(known, task, member.process_id)


def _size(offsets: Offsets) -> int:
    return sum(map(len, offsets.values()))


def _each(tasks: Tasks) -> list[tuple[str, int]]:
    return [(subtopology, index) for subtopology, indexes in tasks.items() for index in indexes]


def _count_down(known: dict[tuple[str, int], dict[str, int]], task: tuple[str, int], process_id: str) -> None:
    processes = known.get(task, {})
    left = processes.get(process_id, 0) - 1
    if left > 0:
        processes[process_id] = left
    elif processes.pop(process_id, None) is not None and not processes:
        del known[task]
