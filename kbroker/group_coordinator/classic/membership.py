"""Staying in a classic group and leaving it: Heartbeat, LeaveGroup, and the end of a session.

The rules are those of Kafka 4.4's GroupMetadataManager (classicGroupHeartbeat, classicGroupLeave,
expireClassicGroupMemberHeartbeat).

The key of the timer is ("session", group, member). The timer limits a member's session, or the time in which a member
with a new id must join.
"""

from __future__ import annotations

import logging

from kbroker.coordination.shard import Cancel, Outcome
from kbroker.group_coordinator.classic.rebalance import (
    LOGGED_BY_NAME,
    Rebalances,
    answer_join,
    answer_sync,
    named,
    schedule_session,
)
from kbroker.group_coordinator.groups.classic_group import (
    COMPLETING,
    CONSUMER,
    PREPARING,
    STABLE,
    ClassicGroup,
    Member,
)
from kbroker.group_coordinator.groups.store import Departure, Groups
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
    SyncGroupResponse,
)

log = logging.getLogger(__name__)


class Membership:
    """Membership of classic groups: heartbeats, leaving, sessions."""

    def __init__(self, rebalances: Rebalances, groups: Groups) -> None:
        self._rebalances = rebalances
        self._groups = groups

    def heartbeat(self, group: ClassicGroup | None, request: HeartbeatRequest) -> Outcome:
        """Handle a Heartbeat. Raises ApiError."""
        if group is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        member = group.validate_member(request.member_id, request.group_instance_id)
        if request.generation_id != group.generation:
            raise ApiError(ErrorCode.ILLEGAL_GENERATION)
        code = ErrorCode.REBALANCE_IN_PROGRESS if group.state is PREPARING else ErrorCode.NONE
        out = Outcome(reply=HeartbeatResponse(error_code=code))
        schedule_session(group, member, out)
        return out

    # -- LeaveGroup

    def leave(self, group: ClassicGroup | None, members: list[MemberIdentity], now_ms: int) -> Outcome:
        """Handle a LeaveGroup, or an administrator's removal of static members by instance id only. Raises ApiError."""
        if group is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        out = Outcome()
        answers, removed = [], []
        for identity in members:
            code = self._leave_one(group, identity, out)
            answers.append(
                MemberResponse(
                    member_id=identity.member_id, group_instance_id=identity.group_instance_id, error_code=code
                )
            )
            if code is not ErrorCode.NONE:
                continue
            removed.append(identity.member_id)
            if len(removed) <= LOGGED_BY_NAME:
                reason = identity.reason or "not provided"
                member = identity.member_id or f"of instance {identity.group_instance_id}"
                log.debug("group %s: member %s leaves; reason: %s", group.group_id, member, reason)
        if len(removed) > LOGGED_BY_NAME:
            log.debug("group %s: %d more members leave", group.group_id, len(removed) - LOGGED_BY_NAME)
        if removed and group.state in (STABLE, COMPLETING):
            self._rebalances.prepare_or_complete(group, f"LeaveGroup of ({named(removed)})", out, now_ms)
        elif removed and group.state is PREPARING:
            self._rebalances.complete_join_if_all_here(group, out, now_ms)
        out.reply = LeaveGroupResponse(members=answers)
        return out

    def _leave_one(self, group: ClassicGroup, identity: MemberIdentity, out: Outcome) -> ErrorCode:
        member_id, instance_id = identity.member_id, identity.group_instance_id
        if not member_id:
            found = group.static_members.get(instance_id) if instance_id is not None else None
            if found is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            member_id = found
        elif member_id in group.pending_joins:
            group.remove(member_id)
            out.timers.append(Cancel(("session", group.group_id, member_id)))
            return ErrorCode.NONE
        else:
            try:
                group.validate_member(member_id, instance_id)
            except ApiError as err:
                return err.code
        out.timers.append(Cancel(("session", group.group_id, member_id)))
        self._drop(group, group.members[member_id], out)
        return ErrorCode.NONE

    # -- the end of a session

    def on_session_timer(self, group: ClassicGroup, member_id: str, out: Outcome, now_ms: int) -> None:
        """End a session: if no parked request proves that the member is alive, remove the member."""
        if member_id in group.pending_joins:
            log.debug("group %s: pending member %s did not join again", group.group_id, member_id)
            group.remove(member_id)
            if group.state is PREPARING and group.all_joined():
                self._rebalances.complete_join(group, out, now_ms)
            return
        member = group.members.get(member_id)
        if member is None or member.is_alive_without_heartbeat():
            return
        log.debug("group %s: the session of member %s is over", group.group_id, member_id)
        self._drop(group, member, out)
        if group.state in (STABLE, COMPLETING):
            self._rebalances.prepare_or_complete(group, f"the session of {member_id} is over", out, now_ms)
        elif group.state is PREPARING and group.all_joined():
            self._rebalances.complete_join(group, out, now_ms)

    def _drop(self, group: ClassicGroup, member: Member, out: Outcome) -> None:
        """Remove a member, and fail its parked requests so that it joins again."""
        answer_join(member, JoinGroupResponse(member_id="", error_code=ErrorCode.UNKNOWN_MEMBER_ID), out)
        answer_sync(member, SyncGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID), out)
        if group.protocol_type == CONSUMER:
            self._groups.departed.append(Departure(group.group_id, member.assignment))
        group.remove(member.member_id)
