"""ConsumerGroupHeartbeat: joining, staying, leaving; and the removal of members that do neither.

Owns what a heartbeat means for its group (Kafka 4.3's GroupMetadataManager.consumerGroupHeartbeat and around it), in
this order: who is it, what changed of it, is the group's epoch to grow, is a target to be computed, how far does the
member come. Every step adds records; the group is changed when they are replayed.

Timers, by key: ("consumer session", group, member) a member that is silent; ("revoke", group, member) one that does not
give up what it must; ("regex", group) a look at all topics. Those of classic members: classic_members.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

from kbroker.coordination.outcome import Cancel, Outcome, Schedule
from kbroker.group_coordinator.consumer import records
from kbroker.group_coordinator.consumer.group import ConsumerGroup, is_homogeneous
from kbroker.group_coordinator.consumer.member import (
    LEAVE_EPOCH,
    LEAVE_STATIC_EPOCH,
    UNREVOKED,
    ConsumerMember,
    Epochs,
    MemberState,
    Partitions,
)
from kbroker.group_coordinator.consumer.reconciliation import Owned, reconcile
from kbroker.group_coordinator.consumer.regexes import Change, Regexes
from kbroker.group_coordinator.consumer.settings import Settings
from kbroker.group_coordinator.consumer.target import next_target, subscribed_names
from kbroker.group_coordinator.consumer.topics import Topics
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from kbroker.protocol.wire import new_uuid, uuid_text

log = logging.getLogger(__name__)

_REFRESH_INTERVAL_MS = 2**31 - 1
_RETRY_MS = 500
"""When the removal of a member is tried again that could not be written."""


class Heartbeats:
    """The consumer groups of a shard.

    `open_group(group id, create, outcome)` returns the group that a heartbeat is for, made of a classic one if need be,
    or raises ApiError. `downgrade(group, gone, outcome)` makes a group whose consumer members are gone a classic one,
    and returns whether it did.
    """

    def __init__(
        self,
        find: Callable[[str], ConsumerGroup],
        open_group: Callable[[str, bool, Outcome], ConsumerGroup],
        downgrade: Callable[[ConsumerGroup, Sequence[ConsumerMember], Outcome, int], bool],
        regexes: Regexes,
        topics: Topics,
        settings: Settings,
    ) -> None:
        self._find = find
        self._open = open_group
        self._downgrade = downgrade
        self._regexes = regexes
        self._topics = topics
        self._settings = settings

    # -- the request

    def heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, client_id: str, client_host: str, now_ms: int
    ) -> Outcome:
        """Handle a ConsumerGroupHeartbeat that is valid in itself; raises ApiError."""
        if request.member_epoch in (LEAVE_EPOCH, LEAVE_STATIC_EPOCH):
            return self._leave(request, now_ms)
        out = Outcome()
        joins = request.member_epoch == 0
        group = self._open(request.group_id, joins, out)
        member_id = request.member_id
        self.check_room(group, member_id, request.instance_id)
        member_id = member_id or uuid_text(new_uuid())
        owned: Owned = None
        if request.topic_partitions is not None:
            owned = [(each.topic_id, each.partitions) for each in request.topic_partitions]
        if request.instance_id is None:
            member = self.dynamic_member(group, member_id, create=joins)
            check_epoch(member, request.member_epoch, owned)
        else:
            member = self.static_member(group, member_id, request.instance_id, out, create=joins)
            if not joins:
                check_epoch(member, request.member_epoch, owned)
        wanted = _updated(member, request, client_id, client_host)
        updated = self.advance(group, member, wanted, owned, out, now_ms)
        if joins:
            log.info("group %s: member %s joins", group.group_id, updated.member_id)
        self.schedule_session(group.group_id, updated.member_id, out)
        response = ConsumerGroupHeartbeatResponse(
            member_id=updated.member_id,
            member_epoch=updated.member_epoch,
            heartbeat_interval_ms=self._settings.heartbeat_interval_ms(group.group_id),
        )
        is_full = (
            request.rebalance_timeout_ms != -1
            and (request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None)
            and request.topic_partitions is not None
        )
        if joins or is_full or member.assigned != updated.assigned:
            response.assignment = _assignment(updated.assigned)
        out.reply = response
        return out

    def advance(
        self,
        group: ConsumerGroup,
        member: ConsumerMember,
        updated: ConsumerMember,
        owned: Owned,
        out: Outcome,
        now_ms: int,
        *,
        any_regex_counts: bool = False,
    ) -> ConsumerMember:
        """Take `member` to `updated`, and that as far towards the group's target as it goes. Raises ApiError.

        `any_regex_counts`: every change of a pattern makes the group's epoch grow, as it does for classic members.
        """
        topics_changed, regex = self.take_metadata(group, member, updated, out, now_ms)
        changed = topics_changed or regex is not Change.NONE
        bump = changed if any_regex_counts else topics_changed or regex is Change.RESOLVED
        epoch, homogeneous = self.group_epoch(group, member, updated, out, now_ms, bump=bump)
        target_epoch, target = self._target(group, epoch, member, updated, out, now_ms, homogeneous=homogeneous)
        return self.reconcile(group, updated, target_epoch, target, owned, out, subscription_changed=changed)

    def take_metadata(
        self, group: ConsumerGroup, member: ConsumerMember, updated: ConsumerMember, out: Outcome, now_ms: int
    ) -> tuple[bool, Change]:
        """Write what a member says of itself where that is new; return whether its topics and its pattern are."""
        if member != updated:
            out.records.append(records.member_metadata(group.group_id, updated))
        return member.topics != updated.topics, self._regexes.update(group, member, updated, out, now_ms)

    def group_epoch(
        self,
        group: ConsumerGroup,
        member: ConsumerMember,
        updated: ConsumerMember,
        out: Outcome,
        now_ms: int,
        *,
        bump: bool,
    ) -> tuple[int, Callable[[], bool]]:
        """Let the group's epoch grow if it must, or if its topics have changed.

        Returns it, and what tells whether all members subscribe to the same topics: only a new target asks, and it
        takes a look at every topic.
        """
        topics = self._topics
        if not bump and not group.topics_are_stale(now_ms, topics.version):
            return group.epoch, partial(is_homogeneous, group.regexes, group.counts, len(group.members))
        counts = group.counts.copy()
        counts.count_member(member, -1)
        counts.count_member(updated, 1)
        regexes = dict(group.regexes)
        if member.regex != updated.regex:
            if member.regex and group.regexes.get(member.regex) == 1:
                counts.count_regex(group.resolved.get(member.regex), -1)
            for regex, step in ((member.regex, -1), (updated.regex, 1)):
                if regex:
                    regexes[regex] = regexes.get(regex, 0) + step
            regexes = {regex: count for regex, count in regexes.items() if count > 0}
        size = len(group.members)
        if updated.member_id not in group.members and group.static_member(updated.instance_id) is None:
            size += 1
        epoch, metadata_hash = group.epoch, topics.hash_of(counts.topics())
        if bump or metadata_hash != group.metadata_hash:
            epoch += 1
            out.records.append(records.group_epoch(group.group_id, epoch, metadata_hash))
            log.info("group %s: epoch %d", group.group_id, epoch)
        group.refresh_deadline, group.refresh_epoch = now_ms + _REFRESH_INTERVAL_MS, epoch
        group.seen_version = topics.version
        if group.has_partition_metadata_record:
            out.records.append(records.partition_metadata_tombstone(group.group_id))
        return epoch, partial(is_homogeneous, regexes, counts, size)

    def _target(
        self,
        group: ConsumerGroup,
        epoch: int,
        member: ConsumerMember,
        updated: ConsumerMember,
        out: Outcome,
        now_ms: int,
        *,
        homogeneous: Callable[[], bool],
    ) -> tuple[int, Partitions]:
        """Return the target to move `updated` to: a new one where that is due and the last one is old enough."""
        interval = self._settings.assignment_interval_ms(group.group_id)
        since = group.assignment_timestamp
        due = since == 0 or interval == 0 or now_ms >= since + interval
        if group.assignment_epoch >= epoch or not due:
            return group.assignment_epoch, group.target_of(updated.member_id, updated.instance_id)
        assignor = group.preferred_assignor(member, updated)
        if assignor is None or assignor not in self._settings.config.consumer_assignors:
            assignor = self._settings.config.consumer_assignors[0]
        target_records, target = next_target(
            group, epoch, assignor, self._topics, updated, now_ms, homogeneous=homogeneous()
        )
        out.records += target_records
        log.info("group %s: assignment %d by %s", group.group_id, epoch, assignor)
        return epoch, target

    def reconcile(
        self,
        group: ConsumerGroup,
        member: ConsumerMember,
        epoch: int,
        target: Partitions,
        owned: Owned,
        out: Outcome,
        *,
        subscription_changed: bool,
    ) -> ConsumerMember:
        """Move a member on; write it, and time its revocation, where that changed it."""
        updated = reconcile(
            member,
            epoch=epoch,
            target=target,
            subscribed=lambda: self._topics.ids_of(subscribed_names(group, member)),
            owner_epoch=group.partition_epoch,
            owned=owned,
            subscription_changed=subscription_changed,
        )
        if updated != member:
            out.records.append(records.current_assignment(group.group_id, updated))
            if updated.classic is None:
                self._time_revocation(group.group_id, updated, out)
        return updated

    def _time_revocation(self, group_id: str, member: ConsumerMember, out: Outcome) -> None:
        """Give a member that must give something up its rebalance timeout for that; one that has done so needs none.

        It counts from when the member is known to be so far, which it is also where the log was late to commit it.
        """

        def settle(done: Outcome, _now: int) -> None:
            group = self._held(group_id)
            held = None if group is None else group.members.get(member.member_id)
            if group is None or held is None or _progress(held) != _progress(member):
                return
            key = ("revoke", group_id, member.member_id)
            if member.state is UNREVOKED:
                done.timers.append(Schedule(key, member.rebalance_timeout_ms))
                group.revoking[member.member_id] = member.member_epoch
            else:
                done.timers.append(Cancel(key))
                group.revoking.pop(member.member_id, None)

        out.when_written(settle, settle)

    # -- who is it

    def check_room(self, group: ConsumerGroup, member_id: str, instance_id: str | None) -> None:
        """Refuse a member that would be one too many; raises GROUP_MAX_SIZE_REACHED."""
        limit = self._settings.config.consumer_max_size
        is_known = instance_id in group.static_members or member_id in group.members
        if not is_known and len(group.members) >= limit:
            raise ApiError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The consumer group has reached its maximum capacity of {limit} members.",
            )

    def dynamic_member(self, group: ConsumerGroup, member_id: str, *, create: bool) -> ConsumerMember:
        """Return a member, a new one if need be; raises UNKNOWN_MEMBER_ID."""
        if create and member_id not in group.members:
            return ConsumerMember(member_id)
        return group.member(member_id)

    def static_member(
        self,
        group: ConsumerGroup,
        member_id: str,
        instance_id: str,
        out: Outcome,
        *,
        create: bool,
        classic: bool = False,
    ) -> ConsumerMember:
        """Return a static member; one that joins takes the place of who had its instance id, if that may be.

        Raises UNKNOWN_MEMBER_ID, UNRELEASED_INSTANCE_ID, FENCED_INSTANCE_ID.
        """
        held = group.static_member(instance_id)
        if not create:
            return check_instance(held, member_id, instance_id)
        if held is None:
            return self.dynamic_member(group, member_id, create=True)
        if not classic and held.classic is None and held.member_epoch != LEAVE_STATIC_EPOCH:
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
        log.info("group %s: instance %s returns as %s, was %s", group_id, instance_id, member_id, held.member_id)
        return member

    # -- leaving

    def _leave(self, request: ConsumerGroupHeartbeatRequest, now_ms: int) -> Outcome:
        group = self._find(request.group_id)
        out = Outcome()
        if request.instance_id is None:
            member = group.member(request.member_id)
        else:
            held = group.static_member(request.instance_id)
            member = check_instance(held, request.member_id, request.instance_id)
            if request.member_epoch == LEAVE_STATIC_EPOCH:
                log.info("group %s: static member %s leaves for a while", group.group_id, member.member_id)
                left = replace(
                    member,
                    member_epoch=LEAVE_STATIC_EPOCH,
                    pending_revocation={},
                    assigned={topic_id: dict.fromkeys(held, 0) for topic_id, held in member.assigned.items()},
                )
                out.records.append(records.current_assignment(group.group_id, left))
                out.reply = ConsumerGroupHeartbeatResponse(member_id=member.member_id, member_epoch=LEAVE_STATIC_EPOCH)
                return out
        log.info("group %s: member %s leaves", group.group_id, member.member_id)
        self.remove(group, [member], out, now_ms)
        out.reply = ConsumerGroupHeartbeatResponse(member_id=request.member_id, member_epoch=request.member_epoch)
        return out

    def remove(self, group: ConsumerGroup, members: Sequence[ConsumerMember], out: Outcome, now_ms: int) -> None:
        """Remove members; the group's epoch grows, or the group becomes a classic one."""
        if not members or self._downgrade(group, members, out, now_ms):
            return
        group_id = group.group_id
        counts = group.counts.copy()
        leaving: dict[str, int] = {}
        for member in members:
            out.records += records.member_tombstones(group_id, member.member_id)
            counts.count_member(member, -1)
            if member.regex:
                leaving[member.regex] = leaving.get(member.regex, 0) + 1

        def forget(done: Outcome, _now: int) -> None:
            known = self._held(group_id)
            left = () if known is None else known.members
            forget_timers(group_id, [m.member_id for m in members if m.member_id not in left], done)

        out.when_written(forget, forget)
        for regex, count in leaving.items():
            if group.regexes.get(regex) == count:
                out.records.append(records.resolved_regex(group_id, regex, None))
                counts.count_regex(group.resolved.get(regex), -1)
        metadata_hash = self._topics.hash_of(counts.topics())
        out.records.append(records.group_epoch(group_id, group.epoch + 1, metadata_hash))

    # -- timers

    def schedule_session(self, group_id: str, member_id: str, out: Outcome, timeout_ms: int | None = None) -> None:
        """Let a member's session (re)start now."""
        delay = self._settings.session_timeout_ms(group_id) if timeout_ms is None else timeout_ms
        out.timers.append(Schedule(("consumer session", group_id, member_id), delay))

    def on_loaded(self, group: ConsumerGroup, out: Outcome) -> None:
        """Give every member a whole session, and a whole rebalance timeout, to show up in."""
        for member in group.members.values():
            self.schedule_session(group.group_id, member.member_id, out)
            if member.state is UNREVOKED:
                group.revoking[member.member_id] = member.member_epoch
                key = ("revoke", group.group_id, member.member_id)
                out.timers.append(Schedule(key, member.rebalance_timeout_ms))

    def on_timer(self, group: ConsumerGroup, kind: str, member_id: str, now_ms: int) -> Outcome:
        """Remove a member that was silent, or that has not given up what it must in time."""
        out = Outcome()
        member = group.members.get(member_id)
        if member is None or (kind == "revoke" and group.revoking.get(member_id) != member.member_epoch):
            return out
        log.info("group %s: member %s is removed: %s", group.group_id, member_id, _REASONS[kind])
        self.remove(group, [member], out, now_ms)

        def try_again(done: Outcome, _now: int) -> None:
            held = self._held(group.group_id)
            if held is not None and held.members.get(member_id) is member:
                done.timers.append(Schedule((kind, group.group_id, member_id), _RETRY_MS))

        out.when_written(lambda _out, _now: None, try_again)
        return out

    def _held(self, group_id: str) -> ConsumerGroup | None:
        """Return the group as it is by now: what a decision was about may have been replaced by what it wrote."""
        try:
            return self._find(group_id)
        except ApiError:
            return None


_REASONS = {
    "consumer session": "its session is over",
    "revoke": "it has not revoked its partitions in time",
    "consumer join": "it has not joined again in time",
    "consumer sync": "it has not asked for its assignment in time",
}
TIMER_KINDS = frozenset(_REASONS)


def _progress(member: ConsumerMember) -> tuple[MemberState, int, Epochs]:
    """Return what of a member says how far it is with what it must give up."""
    return member.state, member.member_epoch, member.pending_revocation


def forget_timers(group_id: str, member_ids: Iterable[str], out: Outcome) -> None:
    """Forget all timers of members of a consumer group."""
    out.timers += [Cancel((kind, group_id, member_id)) for member_id in member_ids for kind in _REASONS]


def check_epoch(member: ConsumerMember, epoch: int, owned: Owned) -> None:
    """Let the member's epoch pass, or the one before where the answer that raised it may be lost.

    A member of the previous epoch must have nothing but what it should have by now. Raises FENCED_MEMBER_EPOCH.
    """
    if epoch in (0, member.member_epoch):
        return
    if epoch > member.member_epoch:
        how = "greater"
    elif epoch == member.previous_epoch and owned is not None and _is_within(owned, member.assigned):
        return
    else:
        how = "smaller"
    raise ApiError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {how} member epoch ({epoch}) than the one known by the group coordinator "
        f"({member.member_epoch}). The member must abandon all its partitions and rejoin.",
    )


def _is_within(owned: Sequence[tuple[bytes, Iterable[int]]], assigned: Epochs) -> bool:
    return all(
        topic_id in assigned and all(index in assigned[topic_id] for index in indexes) for topic_id, indexes in owned
    )


def check_instance(held: ConsumerMember | None, member_id: str, instance_id: str) -> ConsumerMember:
    """Return the member that holds an instance id, which must be this one; UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID."""
    if held is None:
        raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    if held.member_id != member_id:
        raise ApiError(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} was fenced by member {held.member_id}.",
        )
    return held


def _updated(
    member: ConsumerMember, request: ConsumerGroupHeartbeatRequest, client_id: str, client_host: str
) -> ConsumerMember:
    """Return the member as the request has it: null and -1 mean "as before"."""
    names, timeout = request.subscribed_topic_names, request.rebalance_timeout_ms
    return replace(
        member,
        instance_id=member.instance_id if request.instance_id is None else request.instance_id,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout == -1 else timeout,
        assignor=member.assignor if request.server_assignor is None else request.server_assignor,
        topics=member.topics if names is None else frozenset(names),
        regex=member.regex if request.subscribed_topic_regex is None else request.subscribed_topic_regex,
        client_id=client_id,
        client_host=client_host,
        classic=None,
    )


def _assignment(assigned: Epochs) -> Assignment:
    return Assignment(
        topic_partitions=[TopicPartitions(topic_id=t, partitions=list(indexes)) for t, indexes in assigned.items()]
    )
