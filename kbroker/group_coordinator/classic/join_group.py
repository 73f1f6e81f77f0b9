"""JoinGroup of classic groups.

Owns the handling of JoinGroup in each state of a group, for dynamic and for static members. Never times or ends a
phase: rebalance.py does that. The rules are the rules of Kafka 4.4's GroupMetadataManager (from classicGroupJoin on),
not of the older coordinator.
"""

from __future__ import annotations

import logging
import uuid

from kbroker.coordination.shard import Outcome, Parked, Schedule, answerable
from kbroker.group_coordinator.classic.rebalance import (
    Rebalances,
    answer_join,
    answer_sync,
    current_members,
    generation_answer,
    park_join,
    persist,
    schedule_session,
)
from kbroker.group_coordinator.config import NEW_MEMBER_JOIN_TIMEOUT_MS, GroupConfig
from kbroker.group_coordinator.groups.classic_group import (
    COMPLETING,
    CONSUMER,
    DEAD,
    EMPTY,
    PREPARING,
    STABLE,
    ClassicGroup,
    Member,
    Protocols,
)
from kbroker.group_coordinator.groups.store import Departure, Groups
from kbroker.group_coordinator.records.classic_group import empty_group_metadata, group_metadata
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.groups import JoinGroupRequest, JoinGroupResponse, SyncGroupResponse

log = logging.getLogger(__name__)

MAX_PROTOCOLS = 1_000
"""The maximum number of protocols of a member.

The group stores and compares them. Clients have only a few protocols.
"""
MEMBER_ID_REQUIRED_SINCE = 4
SKIP_ASSIGNMENT_SINCE = 9


def why_no_join(request: JoinGroupRequest, config: GroupConfig) -> ErrorCode:
    """Return the error of a JoinGroup that is invalid for any group, or NONE."""
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    if not config.min_session_timeout_ms <= request.session_timeout_ms <= config.max_session_timeout_ms:
        return ErrorCode.INVALID_SESSION_TIMEOUT
    if len(request.protocols) > MAX_PROTOCOLS:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    return ErrorCode.NONE


class Join:
    """One JoinGroup in progress: the request, its sender, and the client that waits for the answer."""

    __slots__ = ("client_host", "client_id", "now_ms", "out", "parked", "protocols", "request", "version")

    def __init__(
        self, request: JoinGroupRequest, version: int, client_id: str, client_host: str, parked: Parked, now_ms: int
    ) -> None:
        self.request = request
        self.version = version
        self.client_id = client_id
        self.client_host = client_host
        self.parked = parked
        self.now_ms = now_ms
        self.out = Outcome()
        named: dict[str, bytes] = {}
        for protocol in request.protocols:
            named.setdefault(protocol.name, protocol.metadata)
        self.protocols: Protocols = tuple(named.items())

    @property
    def reason(self) -> str:
        """The client's reason for joining."""
        return self.request.reason or "not provided"

    @property
    def rebalance_timeout_ms(self) -> int:
        """Return the rebalance timeout; version 0 has only the session timeout."""
        return self.request.session_timeout_ms if self.version == 0 else self.request.rebalance_timeout_ms

    def answer(self, response: JoinGroupResponse) -> None:
        self.out.replies.append((self.parked, response))

    def fail(self, code: ErrorCode, member_id: str) -> None:
        self.answer(JoinGroupResponse(member_id=member_id, error_code=code))


class JoinGroups:
    """Handles JoinGroup requests."""

    def __init__(self, groups: Groups, config: GroupConfig, rebalances: Rebalances) -> None:
        self._groups = groups
        self._config = config
        self._rebalances = rebalances

    def join(self, join: Join) -> Outcome:
        """Handle a JoinGroup. A new group is written to the log."""
        request, out = join.request, join.out
        group_id, member_id = request.group_id, request.member_id
        group = self._groups.classic(group_id)
        is_new_group = group is None
        if group is None:
            if member_id:
                join.fail(ErrorCode.UNKNOWN_MEMBER_ID, member_id)
                return out
            group = ClassicGroup(group_id, join.now_ms)
            self._groups.put(group)
        if not self._accepts(group, member_id):
            group.remove(member_id)
            join.fail(ErrorCode.GROUP_MAX_SIZE_REACHED, "")
        elif not group.supports(request.protocol_type, [name for name, _ in join.protocols]):
            join.fail(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id)
        elif not member_id:
            self._join_unknown(group, join)
        else:
            self._join_known(group, join)
        if is_new_group and not out.records:
            self._persist_new(group, join)
        return out

    def _persist_new(self, group: ClassicGroup, join: Join) -> None:
        """Write the new group. If the write fails, drop the group. If the write times out, drop only the members."""

        def after(code: ErrorCode, now_ms: int) -> Outcome:
            out = Outcome()
            if code is not ErrorCode.NONE and self._groups.get(group.group_id) is group:
                log.warning("group %s: it was not written and is dropped: %s", group.group_id, code.name)
                self._groups.remove(group)
                if code is ErrorCode.REQUEST_TIMED_OUT:  # the log contains the group, and may contain its offsets
                    self._groups.put(ClassicGroup(group.group_id, now_ms))
                group.to(DEAD, now_ms)
                for member in group.members.values():
                    answer_join(member, JoinGroupResponse(error_code=answerable(code)), out)
                    answer_sync(member, SyncGroupResponse(error_code=answerable(code)), out)
            return out

        persist(join.out, lambda: empty_group_metadata(group), after)

    def _accepts(self, group: ClassicGroup, member_id: str) -> bool:
        """Return whether the group has room. In the join phase only joined members are counted (KAFKA-9844)."""
        if group.state is EMPTY:
            return True
        member = group.members.get(member_id)
        if group.state is PREPARING:
            is_here = member is not None and member.awaiting_join is not None
            most = self._config.max_size
            return is_here or len(group.members) < most or group.awaiting_joins() < most
        return member is not None or len(group.members) < self._config.max_size

    def _join_unknown(self, group: ClassicGroup, join: Join) -> None:
        """Admit a member without an id. Recognise a static member; a dynamic member first gets an id (KIP-394)."""
        instance_id = join.request.group_instance_id
        new_id = _new_member_id(join.client_id, instance_id)
        if instance_id is not None:
            old_id = group.static_members.get(instance_id)
            if old_id is None:
                self._add(group, new_id, join)
            else:
                log.debug("group %s: instance %s returns as %s, was %s", group.group_id, instance_id, new_id, old_id)
                self._replace_static(group, old_id, new_id, join)
        elif join.version >= MEMBER_ID_REQUIRED_SINCE:
            group.pending_joins.add(new_id)
            join.out.timers.append(Schedule(("session", group.group_id, new_id), join.request.session_timeout_ms))
            join.fail(ErrorCode.MEMBER_ID_REQUIRED, new_id)
        else:
            self._add(group, new_id, join)

    def _join_known(self, group: ClassicGroup, join: Join) -> None:
        """Answer a member with an id: with the current generation if nothing has changed, else after a rebalance."""
        request = join.request
        member_id = request.member_id
        if member_id in group.pending_joins:
            if request.group_instance_id is not None:
                raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR)
            self._add(group, member_id, join)
            return
        try:
            member = group.validate_member(member_id, request.group_instance_id)
        except ApiError as err:
            join.fail(err.code, member_id)
            return
        leads = group.leader_id == member_id
        unchanged = member.protocols == join.protocols
        if group.state is PREPARING:
            self._update(group, member, f"member {member_id} joins; client reason: {join.reason}", join)
        elif group.state is COMPLETING and unchanged:
            join.answer(generation_answer(group, member_id, with_members=leads))
        elif group.state is STABLE and unchanged and not leads:
            join.answer(generation_answer(group, member_id, with_members=False))
        elif group.state in (COMPLETING, STABLE):
            role = "leader" if leads else "member"
            self._update(group, member, f"{role} {member_id} joins again; client reason: {join.reason}", join)
        else:
            join.fail(ErrorCode.UNKNOWN_MEMBER_ID, member_id)

    def _add(self, group: ClassicGroup, member_id: str, join: Join) -> None:
        member = Member(
            member_id=member_id,
            instance_id=join.request.group_instance_id,
            client_id=join.client_id,
            client_host=join.client_host,
            rebalance_timeout_ms=join.rebalance_timeout_ms,
            session_timeout_ms=join.request.session_timeout_ms,
            protocol_type=join.request.protocol_type,
            protocols=join.protocols,
        )
        member.is_new = True
        if group.state is PREPARING and group.previous is EMPTY:
            group.new_member_added = True
        group.add(member, join.parked)
        # Limit the wait of this member, because its client may time out and join repeatedly under new ids.
        schedule_session(group, member, join.out, NEW_MEMBER_JOIN_TIMEOUT_MS)
        reason = f"new member {member_id}, instance {join.request.group_instance_id}; client reason: {join.reason}"
        self._rebalances.prepare_or_complete(group, reason, join.out, join.now_ms)

    def _update(self, group: ClassicGroup, member: Member, reason: str, join: Join) -> None:
        group.update(member, join.protocols, join.rebalance_timeout_ms, join.request.session_timeout_ms)
        park_join(member, join.parked, join.out)
        self._rebalances.prepare_or_complete(group, reason, join.out, join.now_ms)

    # -- static members (KIP-345)

    def _replace_static(self, group: ClassicGroup, old_id: str, new_id: str, join: Join) -> None:
        """Give a new id to a static member that returns without its member id; the old id is fenced."""
        out, instance_id = join.out, join.request.group_instance_id or ""
        old, old_leader = group.members[old_id], group.leader_id
        fenced = ErrorCode.FENCED_INSTANCE_ID
        answer_join(old, JoinGroupResponse(member_id=old_id, protocol_name=None, error_code=fenced), out)
        answer_sync(old, SyncGroupResponse(error_code=fenced), out)
        member = group.replace_static(instance_id, old_id, new_id)
        if group.protocol_type == CONSUMER:
            self._groups.departed.append(Departure(group.group_id, old.assignment))
        schedule_session(group, member, out)
        group.update(member, join.protocols, join.rebalance_timeout_ms, join.request.session_timeout_ms)
        member.awaiting_join = join.parked
        if group.state is STABLE:
            if group.select_protocol() == group.protocol_name:
                self._persist_replacement(group, old, member, old_leader, join)
                return
            reason = f"static member {new_id} changes the group's protocol; client reason: {join.reason}"
            self._rebalances.prepare_or_complete(group, reason, out, join.now_ms)
        elif group.state is COMPLETING:
            # The leader may already assign partitions to the old id. The new id would never get these partitions.
            reason = f"static member {new_id} returns; client reason: {join.reason}"
            self._rebalances.prepare(group, reason, out, join.now_ms)
        else:
            self._rebalances.complete_join_if_all_here(group, out, join.now_ms)

    def _persist_replacement(
        self, group: ClassicGroup, old: Member, member: Member, old_leader: str | None, join: Join
    ) -> None:
        """Write the new id, which returns the member to its place without a rebalance. On failure keep the old id."""

        def after(code: ErrorCode, _now_ms: int) -> Outcome:
            out = Outcome()
            if code is not ErrorCode.NONE:
                log.warning("group %s: member %s was not written: %s", group.group_id, member.member_id, code.name)
                response = generation_answer(group, "", with_members=False)
                response.leader, response.error_code = old_leader or "", answerable(code)
                answer_join(member, response, out)
                if group.members.get(member.member_id) is member and group.state is not DEAD:
                    group.update(member, old.protocols, old.rebalance_timeout_ms, old.session_timeout_ms)
                    restored = group.replace_static(old.instance_id or "", member.member_id, old.member_id)
                    schedule_session(group, restored, out)
            elif group.state in (STABLE, COMPLETING):
                response = generation_answer(group, member.member_id, with_members=False)
                if join.version < SKIP_ASSIGNMENT_SINCE:
                    # The response names the old leader's id, so that this member acts as a follower and computes no
                    # assignment.
                    response.leader = old_leader or ""
                elif group.leader_id == member.member_id:
                    response.members, response.skip_assignment = current_members(group), True
                answer_join(member, response, out)
            return out

        assignments = {m.member_id: m.assignment for m in group.members.values()}
        persist(join.out, lambda: group_metadata(group, assignments), after)


def _new_member_id(client_id: str, instance_id: str | None) -> str:
    """Return a fresh member id in Kafka's form."""
    return f"{client_id if instance_id is None else instance_id}-{uuid.uuid4()}"
