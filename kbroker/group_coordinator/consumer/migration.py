"""Converts groups from one protocol to the other, with and without members.

Owns the conversions in both directions, and the rule that allows them (group.consumer.migration.policy). A conversion
writes tombstones of the old group and the records of the new one in one batch, so it happens completely or not at all.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from kbroker.coordination.shard import Cancel, CoordinatorRecord, Outcome
from kbroker.group_coordinator.assignment import Partitions, copied, frozen, with_epochs, without_epochs
from kbroker.group_coordinator.classic.rebalance import Rebalances, schedule_session
from kbroker.group_coordinator.config import GroupConfig, MigrationPolicy
from kbroker.group_coordinator.consumer.classic_subscriptions import (
    read_assignment,
    read_subscription,
    version_of,
    write_assignment,
)
from kbroker.group_coordinator.consumer.sessions import Sessions, forget_timers
from kbroker.group_coordinator.groups.classic_group import EMPTY, STABLE, ClassicGroup, Member
from kbroker.group_coordinator.groups.consumer_group import CONSUMER, NOTHING, ConsumerGroup
from kbroker.group_coordinator.groups.consumer_member import ClassicSide, ConsumerMember
from kbroker.group_coordinator.groups.store import Groups
from kbroker.group_coordinator.records import consumer_group as records
from kbroker.group_coordinator.records.classic_group import group_metadata, group_tombstone
from kbroker.group_coordinator.topics import Topics
from kbroker.protocol.errors import ApiError, ErrorCode, Malformed
from kbroker.protocol.messages.groups import JoinGroupResponse, SyncGroupResponse

log = logging.getLogger(__name__)

_CLASSIC_TIMERS = ("join", "sync")
_TOO_LARGE = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)


class Migration:
    """Conversions of the groups of a shard (shard.py)."""

    def __init__(
        self,
        groups: Groups,
        config: GroupConfig,
        rebalances: Rebalances,
        sessions: Sessions,
        topics: Topics,
    ) -> None:
        self._groups = groups
        self._config = config
        self._rebalances = rebalances
        self._sessions = sessions
        self._topics = topics

    def open_group(self, group_id: str, create: bool, out: Outcome) -> ConsumerGroup:
        """Return the consumer group of a heartbeat. For a joining member, create it, or convert a classic group.

        The group might not be in the shard yet: the records in `out` add it. Raises GROUP_ID_NOT_FOUND.
        """
        group = self._groups.no_share(group_id)
        if isinstance(group, ConsumerGroup):
            return group
        if group is None:
            if not create:
                raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {group_id} not found.")
            return ConsumerGroup(group_id)
        if isinstance(group, ClassicGroup) and group.state is EMPTY and create:
            self.replace_empty(group, out)
            return ConsumerGroup(group_id)
        if not create or not isinstance(group, ClassicGroup):
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
        return self._upgrade(group, out)

    def check_classic_join(self) -> None:
        """Refuse a classic member of a consumer group if the policy allows no conversion between the protocols.

        Raises ApiError.
        """
        if self._config.consumer_migration_policy is MigrationPolicy.DISABLED:
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)

    def replace_empty(self, group: ClassicGroup, out: Outcome) -> None:
        """Delete a classic group without members. The records that follow create a group of another protocol."""
        out.records.append(group_tombstone(group.group_id))
        self._leave_behind(group, out)

    # -- classic -> consumer

    def _upgrade(self, group: ClassicGroup, out: Outcome) -> ConsumerGroup:
        """Convert a classic group with members to a consumer group. Raises GROUP_ID_NOT_FOUND if that is not allowed.

        The classic group stays unchanged until the write has succeeded or failed, because the heartbeat that caused the
        conversion can still be refused.
        """
        start = f"Cannot upgrade classic group {group.group_id} to consumer group because"
        if not self._config.consumer_migration_policy.upgrades:
            raise _refused(f"{start} online upgrade is disabled.")
        if group.protocol_type != CONSUMER:
            raise _refused(f"{start} the group does not use the consumer embedded protocol.")
        if len(group.members) > self._config.consumer_max_size:
            raise _refused(f"{start} the group size exceeds the consumer group maximum size.")
        try:
            upgraded = self._consumer_group_of(group, start)
        except (Malformed, ValueError):
            raise _refused(f"{start} the embedded consumer protocol is malformed.") from None
        code = ErrorCode.REBALANCE_IN_PROGRESS
        for member in group.members.values():
            if member.awaiting_join is not None:
                answer = JoinGroupResponse(member_id=member.member_id, error_code=code)
                out.replies.append((member.awaiting_join, answer))
            if member.awaiting_sync is not None:
                out.replies.append((member.awaiting_sync, SyncGroupResponse(error_code=code)))
        self._leave_behind(group, out)
        out.records.append(group_tombstone(group.group_id))
        out.records += _records_of(upgraded)
        for held in upgraded.members.values():
            timeout = held.classic.session_timeout_ms if held.classic is not None else None
            self._sessions.schedule(group.group_id, held.member_id, out, timeout)
        return upgraded

    def _leave_behind(self, group: ClassicGroup, out: Outcome) -> None:
        """Drop a classic group that becomes a consumer group, after the write has succeeded or failed.

        In both cases the group's parked requests are answered by then. After a successful write the group needs no
        timers. After a failed write, each answered member gets a new session, because the old session may have ended
        while the request was parked.
        """

        def settle(done: Outcome, _now: int) -> None:
            stays = self._groups.classic(group.group_id) is not None
            for member in group.members.values():
                if stays and (member.awaiting_join is not None or member.awaiting_sync is not None):
                    schedule_session(group, member, done)
                member.awaiting_join = member.awaiting_sync = None
            if not stays:
                _forget_classic_timers(group, done)
                log.info("group %s: becomes a consumer group, with %d members", group.group_id, len(group.members))

        out.when_written(settle, settle)

    def _consumer_group_of(self, group: ClassicGroup, start: str) -> ConsumerGroup:
        upgraded = ConsumerGroup(group.group_id)
        upgraded.epoch = upgraded.assignment_epoch = generation = group.generation
        protocol = group.protocol_name or group.select_protocol()  # no protocol is chosen before the first generation
        owned: set[tuple[bytes, int]] = set()
        for member in group.members.values():
            partitions, has_user_data = read_assignment(member.assignment, self._topics)
            if has_user_data:
                raise _refused(
                    f"{start} an unsupported custom assignor is in use. Please refer to the documentation or switch "
                    "to a default assignor before re-attempting the upgrade."
                )
            held = {(topic_id, index) for topic_id, indexes in partitions.items() for index in indexes}
            if not owned.isdisjoint(held):
                raise _refused(f"{start} its leader has assigned a partition to more than one member.")
            owned |= held
            subscription = read_subscription(member.metadata(protocol))
            upgraded.target[member.member_id] = partitions
            upgraded.put_member(
                ConsumerMember(
                    member.member_id,
                    member_epoch=generation,
                    previous_epoch=generation,
                    instance_id=member.instance_id,
                    rack_id=subscription.rack_id,
                    rebalance_timeout_ms=member.rebalance_timeout_ms,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    topics=subscription.topics,
                    assigned=with_epochs(partitions, generation),
                    classic=ClassicSide(member.session_timeout_ms, member.protocols),
                )
            )
        upgraded.metadata_hash = self._topics.hash_of(upgraded.counts.topics())
        return upgraded

    # -- consumer -> classic

    def downgrade(self, group: ConsumerGroup, removed: Sequence[ConsumerMember], out: Outcome, now_ms: int) -> bool:
        """Convert a consumer group to a classic group when its last consumer members leave.

        Return whether the group was converted.
        """
        rest = len(group.members) - len(removed)
        if not group.all_classic_without(removed) or rest <= 0 or not self.may_downgrade(group, rest):
            return False
        leaving = {member.member_id for member in removed}
        members = {m.member_id: m for m in group.members.values() if m.member_id not in leaving}
        try:
            converted = self.classic_group_of(group, members, {}, now_ms, rebalances=True)
        except (Malformed, ValueError) as err:
            log.warning("group %s: stays a consumer group, as a member cannot be read: %s", group.group_id, err)
            return False
        out.records += records.group_tombstones(group)
        self.become_classic(group, members, converted, "its consumer members have left", out)
        return True

    def may_downgrade(self, group: ConsumerGroup, size: int) -> bool:
        """Return whether the policy and group.max.size allow a group of `size` to become a classic group."""
        if not self._config.consumer_migration_policy.downgrades:
            log.info("group %s: stays a consumer group, as online downgrade is disabled", group.group_id)
            return False
        if size > self._config.max_size:
            log.info("group %s: stays a consumer group, as it is larger than group.max.size", group.group_id)
            return False
        # If the log has refused the record of a group with so many members, try again only when half of the members
        # have left.
        return not group.too_many_for_classic or size <= group.too_many_for_classic // 2

    def classic_group_of(
        self,
        group: ConsumerGroup,
        members: dict[str, ConsumerMember],
        held_as: dict[str, str],
        now_ms: int,
        *,
        rebalances: bool,
    ) -> CoordinatorRecord:
        """Return the record of a classic group with these members, each with its target as its assignment.

        If the group rebalances immediately, no member will get its target. The record then has each member's current
        partitions instead, because the group may become a consumer group again before any member has revoked a
        partition. Such a record names no leader. Therefore a coordinator that loads the record starts a rebalance.
        Without this rebalance, the partitions of members that left would have no owner after a crash.

        If a member has a new id, `held_as` is the id under which the group has the member's target. Raises Malformed if
        a member's protocol data is unreadable.
        """
        classic = ClassicGroup(group.group_id, now_ms)
        for member in members.values():
            classic.add(_classic_member(member))
        classic.generation = group.epoch
        classic.protocol_name = protocol = classic.select_protocol()
        classic.state = STABLE
        assignments = {}
        for member_id, classic_member in classic.members.items():
            if rebalances:
                partitions = _all_of(members[member_id])
            else:
                partitions = group.target.get(held_as.get(member_id, member_id), NOTHING)
            version = version_of(classic_member.metadata(protocol))
            assignments[member_id] = write_assignment(partitions, version, self._topics)
        if rebalances:
            classic.leader_id = None
        return group_metadata(classic, assignments)

    def become_classic(
        self,
        group: ConsumerGroup,
        members: dict[str, ConsumerMember],
        converted: CoordinatorRecord,
        reason: str | None,
        out: Outcome,
    ) -> None:
        """Write a group as a classic group. If there is a `reason`, the group rebalances immediately.

        `out` must already contain the tombstones of the consumer group.
        """
        out.records.append(converted)
        removed = list(group.members)

        before = out.after

        def after(code: ErrorCode, now: int) -> Outcome:
            done = Outcome() if before is None else before(code, now)
            held = self._groups.classic(group.group_id)
            if held is not None:  # also true if the log has the record but the write was not committed in time
                log.info("group %s: becomes a classic group with %d members", group.group_id, len(members))
                forget_timers(group.group_id, removed, done)
                self._settle_in(held, members, reason, done, now)
            elif code in _TOO_LARGE:
                group.too_many_for_classic = len(members)
                log.warning(
                    "group %s: stays a consumer group, as a record of %d classic members is too large for the log",
                    group.group_id, len(members),
                )  # fmt: skip
            return done

        out.after = after

    def _settle_in(
        self, group: ClassicGroup, members: dict[str, ConsumerMember], reason: str | None, out: Outcome, now_ms: int
    ) -> None:
        """Add the members' protocols and sessions, which the group's record lacks. Start a rebalance for a `reason`."""
        for member in group.members.values():
            known = members.get(member.member_id)
            if known is not None and known.classic is not None:
                group.update(member, known.classic.protocols, member.rebalance_timeout_ms, member.session_timeout_ms)
            schedule_session(group, member, out)
        group.subscribed_topics = group.compute_subscribed_topics()
        if reason is not None and group.state is STABLE:
            self._rebalances.prepare(group, reason, out, now_ms)


def _all_of(member: ConsumerMember) -> Partitions:
    """Return a member's partitions, including those that it has not revoked yet."""
    held = copied(without_epochs(member.assigned))
    for topic_id, indexes in member.pending_revocation.items():
        held.setdefault(topic_id, set()).update(indexes)
    return frozen(held)


def _classic_member(member: ConsumerMember) -> Member:
    assert member.classic is not None
    return Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        session_timeout_ms=member.classic.session_timeout_ms,
        protocol_type=CONSUMER,
        protocols=member.classic.protocols,
    )


def _records_of(group: ConsumerGroup) -> list[CoordinatorRecord]:
    """Return all records of a group that the log does not have yet."""
    group_id, members = group.group_id, group.members.values()
    out = [records.member_metadata(group_id, member) for member in members]
    out.append(records.group_epoch(group_id, group.epoch, group.metadata_hash))
    out += [records.target_member(group_id, m.member_id, group.target_of(m.member_id)) for m in members]
    out.append(records.target_epoch(group_id, group.assignment_epoch, group.assignment_timestamp))
    out += [records.current_assignment(group_id, member) for member in members]
    return out


def _forget_classic_timers(group: ClassicGroup, out: Outcome) -> None:
    out.timers += [Cancel((kind, group.group_id)) for kind in _CLASSIC_TIMERS]
    out.timers += [Cancel(("session", group.group_id, each)) for each in [*group.members, *group.pending_joins]]


def _refused(text: str) -> ApiError:
    log.info("%s", text)
    return ApiError(ErrorCode.GROUP_ID_NOT_FOUND, text)
