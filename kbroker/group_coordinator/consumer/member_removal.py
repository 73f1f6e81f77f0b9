"""Removes members of consumer groups that leave or whose timers have expired.

Owns the records of the removal. The group's epoch grows, or the group becomes a classic group (migration.py).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from kbroker.coordination.shard import Outcome, Schedule
from kbroker.group_coordinator.consumer.migration import Migration
from kbroker.group_coordinator.consumer.sessions import REASONS, forget_timers
from kbroker.group_coordinator.groups.consumer_group import ConsumerGroup
from kbroker.group_coordinator.groups.consumer_member import ConsumerMember
from kbroker.group_coordinator.groups.store import Departure, Groups
from kbroker.group_coordinator.records import consumer_group as records
from kbroker.group_coordinator.topics import Topics

log = logging.getLogger(__name__)

_RETRY_MS = 500
"""The delay after which a member's removal is retried, if the write of the removal failed."""


class MemberRemoval:
    """Removes members of the groups of a shard (shard.py)."""

    def __init__(self, groups: Groups, migration: Migration, topics: Topics) -> None:
        self._groups = groups
        self._migration = migration
        self._topics = topics

    def remove(self, group: ConsumerGroup, members: Sequence[ConsumerMember], out: Outcome, now_ms: int) -> None:
        """Remove members. The group's epoch grows, or the group becomes a classic group."""
        if not members or self._migration.downgrade(group, members, out, now_ms):
            return
        group_id = group.group_id
        counts = group.counts.copy()
        leaving: dict[str, int] = {}
        for member in members:
            self._groups.departed.append(Departure(group_id, member.assigned))
            out.records += records.member_tombstones(group_id, member.member_id)
            counts.count_member(member, -1)
            if member.regex:
                leaving[member.regex] = leaving.get(member.regex, 0) + 1

        def forget(done: Outcome, _now: int) -> None:
            known = self._groups.consumer(group_id)
            left = () if known is None else known.members
            forget_timers(group_id, [m.member_id for m in members if m.member_id not in left], done)

        out.when_written(forget, forget)
        for regex, count in leaving.items():
            if group.regexes.get(regex) == count:
                out.records.append(records.resolved_regex(group_id, regex, None))
                counts.count_regex(group.resolved.get(regex), -1)
        metadata_hash = self._topics.hash_of(counts.topics())
        out.records.append(records.group_epoch(group_id, group.epoch + 1, metadata_hash))
        if len(members) == len(group.members):
            # The target of a group without members needs no computation. The time of the target is 0, so that the next
            # member gets a target without delay.
            out.records.append(records.target_epoch(group_id, group.epoch + 1, 0))

    def on_timer(self, group: ConsumerGroup, kind: str, member_id: str, now_ms: int) -> Outcome:
        """Remove a member that was silent, or that did not revoke its partitions in time."""
        out = Outcome()
        member = group.members.get(member_id)
        if member is None or (kind == "revoke" and group.revoking.get(member_id) != member.member_epoch):
            return out
        log.debug("group %s: member %s is removed: %s", group.group_id, member_id, REASONS[kind])
        self.remove(group, [member], out, now_ms)

        def try_again(done: Outcome, _now: int) -> None:
            held = self._groups.consumer(group.group_id)
            if held is not None and held.members.get(member_id) is member:
                done.timers.append(Schedule((kind, group.group_id, member_id), _RETRY_MS))

        out.when_written(lambda _out, _now: None, try_again)
        return out
