"""The effects of a member's change: the group's epoch, its next target, and the member's step towards this target.

Owns this order (Kafka's consumerGroupHeartbeat and TargetAssignmentBuilder): the member's changes, the group's epoch,
the target, the member's reconciliation. Every step adds records; the group changes when the records are replayed. The
time to compute a target is near-linear in members and partitions; group.consumer.assignment.interval.ms is the minimum
time between two computations of a target while members join and leave.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from kbroker.coordination.shard import CoordinatorRecord, Outcome
from kbroker.group_coordinator.assignment import GroupSpec, MemberSpec, Partitions
from kbroker.group_coordinator.config import ASSIGNORS, Settings, choose_assignor
from kbroker.group_coordinator.consumer.reconciliation import Owned, reconcile
from kbroker.group_coordinator.consumer.regexes import Change, MaySee, Regexes, everything
from kbroker.group_coordinator.consumer.sessions import Sessions
from kbroker.group_coordinator.groups.consumer_group import NOTHING, ConsumerGroup, is_homogeneous
from kbroker.group_coordinator.groups.consumer_member import ConsumerMember
from kbroker.group_coordinator.java_order import in_java_order
from kbroker.group_coordinator.records import consumer_group as records
from kbroker.group_coordinator.topics import Topics

log = logging.getLogger(__name__)

_REFRESH_INTERVAL_MS = 2**31 - 1


class Targets:
    """Epochs and targets of the groups of a shard (shard.py)."""

    def __init__(self, regexes: Regexes, sessions: Sessions, topics: Topics, settings: Settings) -> None:
        self._regexes = regexes
        self._sessions = sessions
        self._topics = topics
        self._settings = settings

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
        may_see: MaySee = everything,
    ) -> ConsumerMember:
        """Change `member` to `updated`, and move it as far towards the group's target as possible. Raises ApiError.

        With `any_regex_counts`, every change of a pattern increases the group's epoch, as for classic members. Without
        `any_regex_counts`, a change of the assignor that most members prefer increases the epoch.
        """
        topics_changed, regex = self.take_metadata(group, member, updated, out, now_ms, may_see)
        changed = topics_changed or regex is not Change.NONE
        if any_regex_counts:
            bump = changed
        else:
            bump = topics_changed or regex is Change.RESOLVED or self._assignor_changes(group, member, updated)
        epoch, homogeneous = self.group_epoch(group, member, updated, out, now_ms, bump=bump)
        target_epoch, target = self._target(group, epoch, member, updated, out, now_ms, homogeneous=homogeneous)
        return self.reconcile(group, updated, target_epoch, target, owned, out, subscription_changed=changed)

    def _assignor_changes(self, group: ConsumerGroup, member: ConsumerMember, updated: ConsumerMember) -> bool:
        if member.assignor == updated.assignor:
            return False
        offered = self._settings.config.consumer_assignors
        before, after = group.preferred_assignor(), group.preferred_assignor(member, updated)
        return choose_assignor(before, offered) != choose_assignor(after, offered)

    def take_metadata(
        self,
        group: ConsumerGroup,
        member: ConsumerMember,
        updated: ConsumerMember,
        out: Outcome,
        now_ms: int,
        may_see: MaySee = everything,
    ) -> tuple[bool, Change]:
        """Write a member's metadata if it has changed.

        Return whether the member's topics have changed, and the change of its pattern.
        """
        if member != updated:
            out.records.append(records.member_metadata(group.group_id, updated))
        return member.topics != updated.topics, self._regexes.update(group, member, updated, out, now_ms, may_see)

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
        """Increase the group's epoch if the caller requires it, or if the group's topics have changed.

        Return the epoch, and a function that returns whether all members subscribe to the same topics. The second value
        is a function because only a new target needs the result, and the check examines every topic.
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
            log.debug("group %s: epoch %d", group.group_id, epoch)
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
        """Return the target of `updated`.

        If the group has changed since the last target, and the last target is old enough, compute a new target first.
        """
        interval = self._settings.assignment_interval_ms(group.group_id)
        since = group.assignment_timestamp
        due = since == 0 or interval == 0 or now_ms >= since + interval
        if group.assignment_epoch >= epoch or not due:
            return group.assignment_epoch, group.target_of(updated.member_id, updated.instance_id)
        assignor = choose_assignor(group.preferred_assignor(member, updated), self._settings.config.consumer_assignors)
        target_records, target = next_target(
            group, epoch, assignor, self._topics, updated, now_ms, homogeneous=homogeneous()
        )
        out.records += target_records
        log.debug("group %s: assignment %d by %s", group.group_id, epoch, assignor)
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
        """Reconcile a member. If the member has changed, write its new state and start the timer of its revocation."""
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
                self._sessions.time_revocation(group.group_id, updated, out)
        return updated


def subscribed_names(group: ConsumerGroup, member: ConsumerMember) -> frozenset[str]:
    """Return all topics to which a member subscribes. A pattern contributes topics only after it is resolved."""
    resolved = group.resolved.get(member.regex) if member.regex else None
    return member.topics if resolved is None else member.topics | resolved.topics


def next_target(
    group: ConsumerGroup,
    epoch: int,
    assignor: str,
    topics: Topics,
    updated: ConsumerMember,
    now_ms: int,
    *,
    homogeneous: bool,
) -> tuple[list[CoordinatorRecord], Partitions]:
    """Return the records of the target for `epoch`, and the part of the target for `updated`.

    `updated` takes the place of the member with the same id, or of the member with the same instance id.
    """
    members = dict(group.members)
    replaced = None if updated.instance_id is None else group.static_members.get(updated.instance_id)
    if replaced is not None and replaced != updated.member_id:
        members.pop(replaced, None)
    members[updated.member_id] = updated
    known: dict[frozenset[str], frozenset[bytes]] = {}
    specs: dict[str, MemberSpec] = {}
    for member_id in in_java_order(members):
        member = members[member_id]
        names = subscribed_names(group, member)
        ids = known.get(names)
        if ids is None:
            ids = known[names] = topics.ids_of(names)
        holder = replaced if member_id == updated.member_id and replaced is not None else member_id
        held = group.target.get(holder, NOTHING)
        specs[member_id] = MemberSpec(ids, held, member.instance_id, member.rack_id)
    counts = {topic_id: topics.count_of(topic_id) for ids in known.values() for topic_id in ids}
    assignment = ASSIGNORS[assignor](GroupSpec(specs, homogeneous, counts))
    out = [
        records.target_member(group.group_id, member_id, assignment.get(member_id, NOTHING))
        for member_id in specs
        if assignment.get(member_id, NOTHING) != group.target.get(member_id)
    ]
    out.append(records.target_epoch(group.group_id, epoch, now_ms))
    return out, assignment.get(updated.member_id, NOTHING)
