"""The members of streams groups: the sender of a request, the members' timers, and the ways to leave.

Owns the groups' lookup and creation, the checks of ids and epochs, the timers of members, and the records of a removal.

The keys of the timers: ("streams session", group, member) runs until a heartbeat; ("streams revoke", group, member)
runs until the member has given up the tasks that it must give up.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from kbroker.coordination.shard import Cancel, Outcome, Schedule
from kbroker.group_coordinator.consumer.migration import Migration
from kbroker.group_coordinator.groups.classic_group import EMPTY, ClassicGroup
from kbroker.group_coordinator.groups.consumer_member import LEAVE_STATIC_EPOCH
from kbroker.group_coordinator.groups.store import Groups
from kbroker.group_coordinator.groups.streams_group import StreamsGroup
from kbroker.group_coordinator.groups.streams_member import UNREVOKED, StreamsMember
from kbroker.group_coordinator.records import streams_group as records
from kbroker.group_coordinator.streams_settings import StreamsSettings
from kbroker.group_coordinator.topologies.tasks import NOTHING_HELD, TaskSet
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.streams_groups import StreamsGroupHeartbeatRequest

log = logging.getLogger(__name__)

SESSION, REVOKE = "streams session", "streams revoke"
REASONS = {SESSION: "its session is over", REVOKE: "it has not given up its tasks in time"}
_RETRY_MS = 500
"""The delay after which a member's removal is retried, if the write of the removal failed."""


class StreamsMembers:
    """The members of the streams groups of a shard (shard.py)."""

    def __init__(self, groups: Groups, migration: Migration, settings: StreamsSettings) -> None:
        self._groups = groups
        self._migration = migration
        self._settings = settings

    # -- groups

    def known(self, group_id: str) -> StreamsGroup:
        """Return a streams group; raises GROUP_ID_NOT_FOUND."""
        return self._groups.known_streams(group_id)

    def has(self, group_id: str) -> bool:
        """Return whether a group exists.

        A group that a heartbeat creates does not exist before the write of its records.
        """
        return self._groups.get(group_id) is not None

    def open_group(self, group_id: str, create: bool, out: Outcome) -> StreamsGroup:
        """Return the group of a heartbeat. For a joining member, create the group, or replace an empty classic group.

        The group might not be in the shard yet: the records in `out` add it. Raises GROUP_ID_NOT_FOUND.
        """
        group = self._groups.get(group_id)
        if isinstance(group, StreamsGroup):
            return group
        if group is None:
            if not create:
                raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Streams group {group_id} not found.")
            return StreamsGroup(group_id)
        if create and isinstance(group, ClassicGroup) and group.state is EMPTY:
            self._migration.replace_empty(group, out)
            return StreamsGroup(group_id)
        raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a streams group.")

    def check_room(self, group: StreamsGroup, member_id: str, instance_id: str | None) -> None:
        """Refuse a member that exceeds the group's maximum size; raises GROUP_MAX_SIZE_REACHED."""
        limit = self._settings.config.max_size
        is_known = instance_id in group.static_members or member_id in group.members
        if not is_known and len(group.members) >= limit:
            text = f"The streams group has reached its maximum capacity of {limit} members."
            raise ApiError(ErrorCode.GROUP_MAX_SIZE_REACHED, text)

    # -- the sender

    def sender(
        self, group: StreamsGroup, request: StreamsGroupHeartbeatRequest, owned: TaskSet | None, out: Outcome
    ) -> StreamsMember:
        """Return the member that sends a heartbeat. A joining member may replace the holder of its instance id.

        Raises UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH, UNRELEASED_INSTANCE_ID, FENCED_INSTANCE_ID.
        """
        member_id, instance_id, epoch = request.member_id, request.instance_id, request.member_epoch
        if instance_id is None or (epoch == 0 and group.static_member(instance_id) is None):
            member = group.members.get(member_id) if epoch == 0 else group.member(member_id)
            member = member or StreamsMember(member_id)
        elif epoch == 0:
            return self._returning(group, member_id, instance_id, out)
        else:
            member = _holder(group, member_id, instance_id)
        _check_epoch(member, epoch, owned)
        return member

    @staticmethod
    def _returning(group: StreamsGroup, member_id: str, instance_id: str, out: Outcome) -> StreamsMember:
        """Return a new member with a static member's instance id. The earlier holder of the id must have left."""
        held = group.static_member(instance_id)
        assert held is not None
        if held.member_epoch != LEAVE_STATIC_EPOCH:
            raise ApiError(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"Static member {member_id} with instance id {instance_id} cannot join the group because the instance "
                f"id is owned by {held.member_id} member.",
            )
        member = replace(held, member_id=member_id, member_epoch=0, previous_epoch=0)
        group_id = group.group_id
        out.records += records.member_tombstones(group_id, held.member_id)
        out.records.append(records.member_metadata(group_id, member))
        out.records.append(records.target_member(group_id, member_id, group.target_of(held.member_id)))
        out.records.append(records.current_assignment(group_id, member))
        log.debug("group %s: instance %s returns as %s, was %s", group_id, instance_id, member_id, held.member_id)
        return member

    @staticmethod
    def leaving(group: StreamsGroup, request: StreamsGroupHeartbeatRequest) -> StreamsMember:
        """Return the member that leaves; raises UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID."""
        if request.instance_id is None:
            return group.member(request.member_id)
        return _holder(group, request.member_id, request.instance_id)

    # -- timers

    def schedule(self, group_id: str, member_id: str, out: Outcome) -> None:
        """Start or restart a member's session now."""
        out.timers.append(Schedule((SESSION, group_id, member_id), self._settings.session_timeout_ms(group_id)))

    def on_loaded(self, group: StreamsGroup, out: Outcome) -> None:
        """Start a full session, and a full rebalance timeout, for every member."""
        for member in group.members.values():
            self.schedule(group.group_id, member.member_id, out)
            if member.state is UNREVOKED:
                group.revoking[member.member_id] = member.member_epoch
                out.timers.append(Schedule((REVOKE, group.group_id, member.member_id), member.rebalance_timeout_ms))

    def time_revocation(self, group_id: str, member: StreamsMember, out: Outcome) -> None:
        """Start the rebalance timeout of a member that must give up tasks.

        Cancel the timeout when the tasks are given up.
        """

        def settle(done: Outcome, _now: int) -> None:
            group = self._groups.streams(group_id)
            held = None if group is None else group.members.get(member.member_id)
            if group is None or held is None or _progress(held) != _progress(member):
                return
            key = (REVOKE, group_id, member.member_id)
            if member.state is UNREVOKED:
                done.timers.append(Schedule(key, member.rebalance_timeout_ms))
                group.revoking[member.member_id] = member.member_epoch
            else:
                done.timers.append(Cancel(key))
                group.revoking.pop(member.member_id, None)

        out.when_written(settle, settle)

    def on_timer(self, group: StreamsGroup, kind: str, member_id: str) -> Outcome:
        """Remove a member that was silent, or that did not give up its tasks in time."""
        out = Outcome()
        member = group.members.get(member_id)
        if member is None or (kind == REVOKE and group.revoking.get(member_id) != member.member_epoch):
            return out
        log.debug("group %s: member %s is removed: %s", group.group_id, member_id, REASONS[kind])
        self.remove(group, member, out)

        def try_again(done: Outcome, _now: int) -> None:
            held = self._groups.streams(group.group_id)
            if held is not None and held.members.get(member_id) is member:
                done.timers.append(Schedule((kind, group.group_id, member_id), _RETRY_MS))

        out.when_written(lambda _out, _now: None, try_again)
        return out

    # -- removal

    def remove(self, group: StreamsGroup, member: StreamsMember, out: Outcome) -> None:
        """Remove a member; the group's epoch grows."""
        group_id, member_id = group.group_id, member.member_id
        out.records += records.member_tombstones(group_id, member_id)
        epoch = group.epoch + 1
        validated, configs = group.validated_topology_epoch, group.assignment_configs
        out.records.append(records.group_epoch(group, epoch, group.metadata_hash, validated, configs))
        if len(group.members) == 1:
            out.records.append(records.target_epoch(group_id, epoch, 0))

        def forget(done: Outcome, _now: int) -> None:
            known = self._groups.get(group_id)
            if known is None or member_id not in known.members:
                done.timers += [Cancel((kind, group_id, member_id)) for kind in REASONS]

        out.when_written(forget, forget)

    @staticmethod
    def leave_for_a_while(group: StreamsGroup, member: StreamsMember, out: Outcome) -> None:
        """Let a static member leave for a while. Its tasks wait for its return, at most until its session ends."""
        held = member.assigned.with_epoch_zero()
        left = replace(member, member_epoch=LEAVE_STATIC_EPOCH, pending_revocation=NOTHING_HELD, assigned=held)
        out.records.append(records.current_assignment(group.group_id, left))


def _progress(member: StreamsMember) -> tuple[object, ...]:
    """Return the values that show a member's progress in giving up tasks."""
    return member.state, member.member_epoch, member.pending_revocation


def _holder(group: StreamsGroup, member_id: str, instance_id: str) -> StreamsMember:
    """Return the holder of an instance id, which must be this member; raises UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID."""
    held = group.static_member(instance_id)
    if held is None:
        raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    if held.member_id != member_id:
        raise ApiError(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} was fenced by member {held.member_id}.",
        )
    return held


def _check_epoch(member: StreamsMember, epoch: int, owned: TaskSet | None) -> None:
    """Accept the member's epoch, or its previous epoch if the answer with the new epoch may be lost.

    Raises ApiError.
    """
    if epoch in (0, member.member_epoch):
        return
    if epoch > member.member_epoch:
        how = "greater"
    elif epoch == member.previous_epoch and owned is not None and owned.within(member.assigned):
        return
    else:
        how = "smaller"
    raise ApiError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The streams group member has a {how} member epoch ({epoch}) than the one known by the group coordinator "
        f"({member.member_epoch}). The member must abandon all its partitions and rejoin.",
    )
