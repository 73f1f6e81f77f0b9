"""Members of the classic protocol in a consumer group: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

Owns the handling of these requests in consumer groups (Kafka 4.4's classicGroupJoinToConsumerGroup and related
methods). A classic member is reconciled like any other member. Its generation is its member epoch. It acknowledges an
assignment with the owned partitions in its subscription. When its assignment has changed, it gets REBALANCE_IN_PROGRESS
and joins again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from kbroker.coordination.shard import Cancel, Outcome, Parked, Schedule
from kbroker.group_coordinator.assignment import without_epochs
from kbroker.group_coordinator.classic.join_group import MEMBER_ID_REQUIRED_SINCE, Join
from kbroker.group_coordinator.classic.rebalance import LOGGED_BY_NAME
from kbroker.group_coordinator.consumer.classic_subscriptions import (
    read_subscription,
    version_of,
    write_assignment,
)
from kbroker.group_coordinator.consumer.identity import check_instance, check_room, dynamic_member, static_member
from kbroker.group_coordinator.consumer.member_removal import MemberRemoval
from kbroker.group_coordinator.consumer.migration import Migration
from kbroker.group_coordinator.consumer.reconciliation import Owned
from kbroker.group_coordinator.consumer.regexes import Change
from kbroker.group_coordinator.consumer.sessions import Sessions
from kbroker.group_coordinator.consumer.target import Targets
from kbroker.group_coordinator.groups.consumer_group import CONSUMER, ConsumerGroup
from kbroker.group_coordinator.groups.consumer_member import UNRELEASED, UNREVOKED, ClassicSide, ConsumerMember
from kbroker.group_coordinator.records import consumer_group as records
from kbroker.group_coordinator.topics import Topics
from kbroker.protocol.errors import ApiError, ErrorCode, Malformed
from kbroker.protocol.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from kbroker.protocol.wire import new_uuid, uuid_text

log = logging.getLogger(__name__)


class ClassicMembers:
    """Classic requests to the consumer groups of a shard (shard.py)."""

    def __init__(
        self,
        migration: Migration,
        targets: Targets,
        removal: MemberRemoval,
        sessions: Sessions,
        topics: Topics,
        max_size: int,
    ) -> None:
        self._migration = migration
        self._targets = targets
        self._removal = removal
        self._sessions = sessions
        self._topics = topics
        self._max_size = max_size

    # -- JoinGroup

    def join(self, group: ConsumerGroup, join: Join) -> Outcome:
        """Handle a JoinGroup to a consumer group with members. The answer is sent after the records are written."""
        try:
            return self._join(group, join)
        except ApiError as err:
            out = Outcome()
            out.replies.append((join.parked, JoinGroupResponse(error_code=err.code)))
            return out

    def _join(self, group: ConsumerGroup, join: Join) -> Outcome:
        request, out, instance_id = join.request, join.out, join.request.group_instance_id
        is_unknown = not request.member_id
        member_id = request.member_id or uuid_text(new_uuid())
        self._migration.check_classic_join()
        check_room(group, member_id, instance_id, self._max_size)
        if not group.supports_classic(request.protocol_type, [name for name, _ in join.protocols]):
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if is_unknown and instance_id is None and join.version >= MEMBER_ID_REQUIRED_SINCE:
            join.fail(ErrorCode.MEMBER_ID_REQUIRED, member_id)
            return out
        if instance_id is None:
            member = dynamic_member(group, member_id, create=True)
        else:
            member = static_member(group, member_id, instance_id, out, create=is_unknown, classic=True)
        try:
            subscription = read_subscription(join.protocols[0][1])
        except Malformed as err:
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL) from err
        timeout = join.rebalance_timeout_ms
        wanted = replace(
            member,
            instance_id=member.instance_id if instance_id is None else instance_id,
            rack_id=subscription.rack_id or member.rack_id,
            rebalance_timeout_ms=member.rebalance_timeout_ms if timeout == -1 else timeout,
            topics=subscription.topics,
            regex="",
            client_id=join.client_id,
            client_host=join.client_host,
            classic=ClassicSide(request.session_timeout_ms, join.protocols),
        )
        owned = subscription.owned_by_id(self._topics)
        held = group.static_member(instance_id)
        downgrades = (
            held is not None
            and group.all_classic_without([held])
            and held.classic is None
            and self._migration.may_downgrade(group, len(group.members))
        )
        if held is not None and downgrades:
            updated = self._downgrade(group, held, member, wanted, out, join.now_ms, owned)
        else:
            updated = self._targets.advance(group, member, wanted, owned, out, join.now_ms, any_regex_counts=True)
        self._answer_when_written(group, join, updated, out, is_classic=downgrades)
        return out

    def _downgrade(
        self,
        group: ConsumerGroup,
        held: ConsumerMember,
        member: ConsumerMember,
        wanted: ConsumerMember,
        out: Outcome,
        now_ms: int,
        owned: Owned,
    ) -> ConsumerMember:
        """Admit a static member that replaces the group's last consumer member: the group becomes a classic group."""
        topics_changed, regex = self._targets.take_metadata(group, member, wanted, out, now_ms)
        changed = topics_changed or regex is not Change.NONE
        epoch, _ = self._targets.group_epoch(group, member, wanted, out, now_ms, bump=changed)
        rebalances = group.assignment_epoch < epoch
        updated = wanted
        if not rebalances:
            target = group.target_of(wanted.member_id, wanted.instance_id)
            updated = self._targets.reconcile(
                group, wanted, group.assignment_epoch, target, owned, out, subscription_changed=changed
            )
        members = {m.member_id: m for m in group.members.values() if m is not held}
        members[updated.member_id] = updated
        held_as = {updated.member_id: held.member_id}
        try:
            converted = self._migration.classic_group_of(group, members, held_as, now_ms, rebalances=rebalances)
        except (Malformed, ValueError) as err:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND) from err
        out.records += records.group_tombstones(group, renamed=(held.member_id, updated.member_id))
        reason = "it became a classic group with a stale assignment" if rebalances else None
        self._migration.become_classic(group, members, converted, reason, out)
        return updated

    def _answer_when_written(
        self, group: ConsumerGroup, join: Join, member: ConsumerMember, out: Outcome, *, is_classic: bool
    ) -> None:
        assert member.classic is not None
        session_ms = member.classic.session_timeout_ms
        response = JoinGroupResponse(
            member_id=member.member_id,
            generation_id=member.member_epoch,
            protocol_type=CONSUMER,
            protocol_name=member.classic.protocols[0][0],
        )

        def time_it(done: Outcome, _now_ms: int) -> None:
            group.joining.discard(member.member_id)
            done.timers.append(Cancel(("consumer join", group.group_id, member.member_id)))
            if not is_classic:
                self._sessions.schedule(group.group_id, member.member_id, done, session_ms)
                key = ("consumer sync", group.group_id, member.member_id)
                done.timers.append(Schedule(key, join.rebalance_timeout_ms))

        def answer(done: Outcome, now_ms: int) -> None:
            time_it(done, now_ms)
            done.replies.append((join.parked, response))

        def fail(done: Outcome, now_ms: int) -> None:
            if group.members.get(member.member_id) == member:  # the log has the member, even if the commit timed out
                time_it(done, now_ms)

        out.when_written(answer, fail)

    # -- SyncGroup

    def sync(self, group: ConsumerGroup, request: SyncGroupRequest, parked: Parked) -> Outcome:
        """Handle a SyncGroup: the answer is the member's current assignment."""
        out = Outcome()
        try:
            response = self._sync(group, request, out)
        except ApiError as err:
            response = SyncGroupResponse(error_code=err.code)
        out.replies.append((parked, response))
        return out

    def _sync(self, group: ConsumerGroup, request: SyncGroupRequest, out: Outcome) -> SyncGroupResponse:
        member, classic = _classic_member(group, request.member_id, request.group_instance_id)
        if request.generation_id != member.member_epoch:
            raise ApiError(ErrorCode.ILLEGAL_GENERATION)
        name, metadata = classic.protocols[0]
        if request.protocol_type not in (None, CONSUMER) or request.protocol_name not in (None, name):
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if group.assignment_epoch > member.member_epoch and member.state is not UNREVOKED:
            self._expect_join(group, member, out)
            return SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
        out.timers.append(Cancel(("consumer sync", group.group_id, member.member_id)))
        self._sessions.schedule(group.group_id, member.member_id, out, classic.session_timeout_ms)
        assignment = write_assignment(without_epochs(member.assigned), version_of(metadata), self._topics)
        return SyncGroupResponse(
            protocol_type=request.protocol_type, protocol_name=request.protocol_name, assignment=assignment
        )

    def _expect_join(self, group: ConsumerGroup, member: ConsumerMember, out: Outcome) -> None:
        """Start the rebalance timeout of a member that must join again, if the timeout has not started yet."""
        if member.member_id not in group.joining:
            group.joining.add(member.member_id)
            key = ("consumer join", group.group_id, member.member_id)
            out.timers.append(Schedule(key, member.rebalance_timeout_ms))

    # -- Heartbeat

    def heartbeat(self, group: ConsumerGroup, request: HeartbeatRequest) -> Outcome:
        """Handle a Heartbeat. Raises ApiError."""
        out = Outcome()
        member, classic = _classic_member(group, request.member_id, request.group_instance_id)
        if request.generation_id != member.member_epoch:
            raise ApiError(ErrorCode.ILLEGAL_GENERATION)
        self._sessions.schedule(group.group_id, member.member_id, out, classic.session_timeout_ms)
        code = ErrorCode.NONE
        is_free = member.state is UNRELEASED and not group.waits_for_others(member)
        if member.member_epoch < group.assignment_epoch or member.state is UNREVOKED or is_free:
            self._expect_join(group, member, out)
            code = ErrorCode.REBALANCE_IN_PROGRESS
        out.reply = HeartbeatResponse(error_code=code)
        return out

    # -- LeaveGroup

    def leave(self, group: ConsumerGroup, identities: Sequence[MemberIdentity], now_ms: int) -> Outcome:
        """Handle a LeaveGroup, or an administrator's removal of static members. Each member gets its own error."""
        out = Outcome()
        answers, leaving = [], {}
        for identity in identities:
            answer = MemberResponse(member_id=identity.member_id, group_instance_id=identity.group_instance_id)
            try:
                member = _leaving(group, identity)
                leaving[member.member_id] = member
                if len(leaving) <= LOGGED_BY_NAME:
                    reason = identity.reason or "not provided"
                    log.debug("group %s: member %s leaves; reason: %s", group.group_id, member.member_id, reason)
            except ApiError as err:
                answer.error_code = err.code
            answers.append(answer)
        if len(leaving) > LOGGED_BY_NAME:
            log.debug("group %s: %d more members leave", group.group_id, len(leaving) - LOGGED_BY_NAME)
        self._removal.remove(group, list(leaving.values()), out, now_ms)
        out.reply = LeaveGroupResponse(members=answers)
        return out


def _classic_member(
    group: ConsumerGroup, member_id: str, instance_id: str | None
) -> tuple[ConsumerMember, ClassicSide]:
    """Return a member of the classic protocol; raises UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID."""
    if instance_id is None:
        member = group.member(member_id)
    else:
        member = check_instance(group.static_member(instance_id), member_id, instance_id)
    if member.classic is None:
        raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
    return member, member.classic


def _leaving(group: ConsumerGroup, identity: MemberIdentity) -> ConsumerMember:
    instance_id = identity.group_instance_id
    if instance_id is None:
        return group.member(identity.member_id)
    held = group.static_member(instance_id)
    return check_instance(held, identity.member_id or (held.member_id if held else ""), instance_id)
