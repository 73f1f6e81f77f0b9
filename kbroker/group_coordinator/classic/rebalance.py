"""The steps of a classic group from one generation to the next.

Owns the two phases (all members join, all members sync) and the timers that end them in any case. Never reads a
request: join_group.py, sync_group.py and membership.py read requests, and call these functions.

The keys of the timers: ("join", group) ends the join phase, or the delay before a new group's first generation;
("sync", group) ends the sync phase.

Every function adds its decisions to the `Outcome` that it gets.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from kbroker.coordination.shard import Cancel, CoordinatorRecord, Outcome, Parked, Schedule
from kbroker.group_coordinator.config import GroupConfig
from kbroker.group_coordinator.groups.classic_group import COMPLETING, EMPTY, PREPARING, STABLE, ClassicGroup, Member
from kbroker.group_coordinator.records.classic_group import group_metadata
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.groups import JoinGroupResponse, JoinGroupResponseMember, SyncGroupResponse

log = logging.getLogger(__name__)


LOGGED_BY_NAME = 8
"""The maximum number of members that a log line lists by name. If there are more, the line has only their number."""


def named(member_ids: Sequence[str]) -> str:
    """Return the members' names for a log line."""
    left = len(member_ids) - LOGGED_BY_NAME
    text = ", ".join(member_ids[:LOGGED_BY_NAME])
    return f"{text} and {left} more" if left > 0 else text


def persist(
    out: Outcome, make: Callable[[], CoordinatorRecord], after: Callable[[ErrorCode, int], Outcome] | None = None
) -> None:
    """Write the record of a change that the group has already made.

    `after` runs after the write, even after a failed write.
    """
    out.replay = False
    out.after = after
    try:
        out.records.append(make())
    except ApiError as err:
        out.refused = err.code


def answer_join(member: Member, response: JoinGroupResponse, out: Outcome) -> None:
    """Answer a member's parked JoinGroup, if there is one."""
    if member.awaiting_join is not None:
        out.replies.append((member.awaiting_join, response))
        member.awaiting_join = None


def answer_sync(member: Member, response: SyncGroupResponse, out: Outcome) -> bool:
    """Answer a member's parked SyncGroup; return whether there was one."""
    if member.awaiting_sync is None:
        return False
    out.replies.append((member.awaiting_sync, response))
    member.awaiting_sync = None
    return True


def park_join(member: Member, parked: Parked, out: Outcome) -> None:
    """Park a JoinGroup. Answer the member's earlier parked JoinGroup, whose connection must have closed."""
    answer_join(
        member,
        JoinGroupResponse(member_id=member.member_id, error_code=ErrorCode.REBALANCE_IN_PROGRESS),
        out,
    )
    member.awaiting_join = parked


def generation_answer(group: ClassicGroup, member_id: str, *, with_members: bool) -> JoinGroupResponse:
    """Return the JoinGroup answer that describes the current generation."""
    return JoinGroupResponse(
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=group.leader_id or "",
        member_id=member_id,
        members=current_members(group) if with_members else [],
    )


def current_members(group: ClassicGroup) -> list[JoinGroupResponseMember]:
    """Return the members for the leader's answer."""
    return [
        JoinGroupResponseMember(
            member_id=m.member_id, group_instance_id=m.instance_id, metadata=m.metadata(group.protocol_name)
        )
        for m in group.members.values()
    ]


def schedule_session(group: ClassicGroup, member: Member, out: Outcome, timeout_ms: int | None = None) -> None:
    """Start or restart a member's session now."""
    delay = member.session_timeout_ms if timeout_ms is None else timeout_ms
    out.timers.append(Schedule(("session", group.group_id, member.member_id), delay))


class Rebalances:
    """The rules of a rebalance."""

    def __init__(self, config: GroupConfig) -> None:
        self._config = config

    def prepare_or_complete(self, group: ClassicGroup, reason: str, out: Outcome, now_ms: int) -> None:
        """Start a rebalance, or end the join phase of the current rebalance if no member is missing any more."""
        if group.state in (STABLE, COMPLETING, EMPTY):
            self.prepare(group, reason, out, now_ms)
        else:
            self.complete_join_if_all_here(group, out, now_ms)

    def prepare(self, group: ClassicGroup, reason: str, out: Outcome, now_ms: int) -> None:
        """Start a rebalance.

        Members that wait for an assignment must join again; heartbeats notify the other members.
        """
        if group.state is COMPLETING:
            self.cancel_assignment(group, ErrorCode.REBALANCE_IN_PROGRESS, out)
        group.pending_syncs.clear()
        out.timers.append(Cancel(("sync", group.group_id)))
        first = group.state is EMPTY
        if first:
            delay = self._config.initial_rebalance_delay_ms
            group.initial_delay = (delay, max(group.rebalance_timeout_ms() - delay, 0))
            out.timers.append(Schedule(("join", group.group_id), delay))
        group.to(PREPARING, now_ms)
        log.debug("group %s: rebalance after generation %d (%s)", group.group_id, group.generation, reason)
        if first:
            return
        group.initial_delay = None
        if group.all_joined():
            self.complete_join(group, out, now_ms)
        else:
            out.timers.append(Schedule(("join", group.group_id), group.rebalance_timeout_ms()))

    def complete_join_if_all_here(self, group: ClassicGroup, out: Outcome, now_ms: int) -> None:
        """End the join phase if no member is missing. The first join phase of a new group ends only after its delay."""
        if group.state is PREPARING and group.previous is not EMPTY and group.all_joined():
            self.complete_join(group, out, now_ms)

    def complete_join(self, group: ClassicGroup, out: Outcome, now_ms: int) -> None:
        """End the join phase with the joined members.

        Missing dynamic members are removed; missing static members stay.
        """
        out.timers.append(Cancel(("join", group.group_id)))
        group.initial_delay = None
        removed = [m.member_id for m in group.members.values() if m.awaiting_join is None and m.instance_id is None]
        for member_id in removed:
            group.remove(member_id)
            out.timers.append(Cancel(("session", group.group_id, member_id)))
        if removed:
            log.debug("group %s: not joined again and removed: %s", group.group_id, named(removed))
        if group.members and not group.elect_joined_leader():
            log.error("group %s: the rebalance waits, as no member has joined again", group.group_id)
            out.timers.append(Schedule(("join", group.group_id), group.rebalance_timeout_ms()))
            return
        group.next_generation(now_ms)
        if group.state is EMPTY:
            log.debug("group %s: generation %d is empty", group.group_id, group.generation)
            persist(out, lambda: group_metadata(group, {}), self._warn_if_failed(group))
            return
        log.debug("group %s: generation %d has %d members", group.group_id, group.generation, len(group.members))
        for member in list(group.members.values()):
            leads = member.member_id == group.leader_id
            answer_join(member, generation_answer(group, member.member_id, with_members=leads), out)
            schedule_session(group, member, out)
            member.is_new = False
            group.pending_syncs.add(member.member_id)
        out.timers.append(Schedule(("sync", group.group_id), group.rebalance_timeout_ms()))

    def _warn_if_failed(self, group: ClassicGroup) -> Callable[[ErrorCode, int], Outcome]:
        """Return a function for `Outcome.after`, which warns if an empty generation was not written.

        A later load would find the old members.
        """

        def after(code: ErrorCode, _now_ms: int) -> Outcome:
            if code is not ErrorCode.NONE:
                log.warning("group %s: its empty generation was not written: %s", group.group_id, code.name)
            return Outcome()

        return after

    # -- assignments

    def assign(self, group: ClassicGroup, assignments: dict[str, bytes], out: Outcome) -> None:
        """Assign every member its partitions, and answer the waiting members."""
        for member in group.members.values():
            member.assignment = assignments.get(member.member_id, b"")
            response = SyncGroupResponse(
                protocol_type=group.protocol_type, protocol_name=group.protocol_name, assignment=member.assignment
            )
            if answer_sync(member, response, out):
                schedule_session(group, member, out)

    def cancel_assignment(self, group: ClassicGroup, code: ErrorCode, out: Outcome) -> None:
        """Cancel all assignments; waiting members get the error `code`."""
        for member in group.members.values():
            member.assignment = b""
            if answer_sync(member, SyncGroupResponse(error_code=code), out):
                schedule_session(group, member, out)

    # -- timers

    def on_join_timer(self, group: ClassicGroup, out: Outcome, now_ms: int) -> None:
        """End the join phase. The first join phase of a new group is extended while members keep joining."""
        if group.state is not PREPARING:
            return
        if group.initial_delay is not None:
            delay, remaining = group.initial_delay
            if group.new_member_added and remaining:
                group.new_member_added = False
                next_delay = min(self._config.initial_rebalance_delay_ms, remaining)
                group.initial_delay = (next_delay, max(remaining - delay, 0))
                out.timers.append(Schedule(("join", group.group_id), next_delay))
                return
        self.complete_join(group, out, now_ms)
