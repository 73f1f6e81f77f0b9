"""SyncGroup of classic groups: writes the leader's assignment, then gives each waiting member its part.

The rules are those of Kafka 4.4's GroupMetadataManager (classicGroupSync).
"""

from __future__ import annotations

import logging

from kbroker.coordination.shard import Cancel, Outcome, Parked, answerable
from kbroker.group_coordinator.classic.rebalance import Rebalances, answer_sync, named, persist
from kbroker.group_coordinator.groups.classic_group import (
    COMPLETING,
    EMPTY,
    PREPARING,
    STABLE,
    ClassicGroup,
    Member,
)
from kbroker.group_coordinator.records.classic_group import group_metadata
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.groups import SyncGroupRequest, SyncGroupResponse

log = logging.getLogger(__name__)


class SyncGroups:
    """Handles SyncGroup requests."""

    def __init__(self, rebalances: Rebalances) -> None:
        self._rebalances = rebalances

    def sync(self, group: ClassicGroup | None, request: SyncGroupRequest, parked: Parked) -> Outcome:
        """Handle a SyncGroup. The leader's assignment is written before any member gets its part."""
        out = Outcome()
        code, member = self._validate_sync(group, request)
        if group is None or member is None:
            out.replies.append((parked, SyncGroupResponse(error_code=code)))
        elif group.state is STABLE:
            self._synced(group, member, out)
            response = SyncGroupResponse(
                protocol_type=group.protocol_type, protocol_name=group.protocol_name, assignment=member.assignment
            )
            out.replies.append((parked, response))
        else:
            answer_sync(member, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS), out)
            member.awaiting_sync = parked
            self._synced(group, member, out)
            if group.leader_id == member.member_id:
                self._persist_assignment(group, request, out)
        return out

    def on_timer(self, group: ClassicGroup, out: Outcome, now_ms: int) -> None:
        """End the sync phase: members that did not request their assignment are removed."""
        if group.state not in (COMPLETING, STABLE) or not group.pending_syncs:
            return
        missing = sorted(group.pending_syncs)
        for member_id in missing:
            group.remove(member_id)
            out.timers.append(Cancel(("session", group.group_id, member_id)))
        self._rebalances.prepare(group, f"no SyncGroup of {named(missing)}", out, now_ms)

    def _validate_sync(self, group: ClassicGroup | None, request: SyncGroupRequest) -> tuple[ErrorCode, Member | None]:
        if group is None or group.state is EMPTY:
            return ErrorCode.UNKNOWN_MEMBER_ID, None
        try:
            member = group.validate_member(request.member_id, request.group_instance_id)
        except ApiError as err:
            return err.code, None
        if request.generation_id != group.generation:
            return ErrorCode.ILLEGAL_GENERATION, None
        for asked, held in (
            (request.protocol_type, group.protocol_type),
            (request.protocol_name, group.protocol_name),
        ):
            if asked is not None and held is not None and asked != held:
                return ErrorCode.INCONSISTENT_GROUP_PROTOCOL, None
        if group.state is PREPARING:
            return ErrorCode.REBALANCE_IN_PROGRESS, None
        return ErrorCode.NONE, member

    def _synced(self, group: ClassicGroup, member: Member, out: Outcome) -> None:
        group.pending_syncs.discard(member.member_id)
        if not group.pending_syncs:
            out.timers.append(Cancel(("sync", group.group_id)))

    def _persist_assignment(self, group: ClassicGroup, request: SyncGroupRequest, out: Outcome) -> None:
        assignments = dict.fromkeys(group.members, b"")
        assignments.update((a.member_id, a.assignment) for a in request.assignments)
        generation = group.generation

        def after(code: ErrorCode, now_ms: int) -> Outcome:
            done = Outcome()
            if group.state is not COMPLETING or group.generation != generation:
                return done  # another rebalance has begun meanwhile
            if code is ErrorCode.NONE:
                self._rebalances.assign(group, assignments, done)
                group.to(STABLE, now_ms)
                log.debug("group %s: generation %d is stable", group.group_id, generation)
            else:
                error = answerable(code)
                self._rebalances.cancel_assignment(group, error, done)
                self._rebalances.prepare(group, f"its assignment was not written: {error.name}", done, now_ms)
            return done

        persist(out, lambda: group_metadata(group, assignments), after)
