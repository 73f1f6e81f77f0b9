"""The targets of streams groups: the time of a target's computation, its inputs, and its records.

Owns Kafka's rules (maybeUpdateStreamsTargetAssignment, TargetAssignmentBuilder). The first target of a group waits for
more members (group.streams.initial.rebalance.delay.ms); later targets are computed at most once per assignment
interval.

The key of the timer is ("streams delay", group). The timer computes the first target when the target is due.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from kbroker.coordination.shard import Outcome, Schedule
from kbroker.group_coordinator.assignors.sticky import Subtasks, TaskMember, sticky
from kbroker.group_coordinator.groups.streams_group import StreamsGroup
from kbroker.group_coordinator.groups.streams_member import StreamsMember
from kbroker.group_coordinator.java_order import in_java_order
from kbroker.group_coordinator.records import streams_group as records
from kbroker.group_coordinator.streams_settings import NUM_STANDBYS, StreamsSettings
from kbroker.group_coordinator.topologies.configured_topology import ConfiguredTopology
from kbroker.group_coordinator.topologies.tasks import NO_TASKS, TaskSet

log = logging.getLogger(__name__)

_DELAY = "streams delay"


class StreamsTargets:
    """The targets of the streams groups of a shard (shard.py)."""

    def __init__(self, settings: StreamsSettings) -> None:
        self._settings = settings
        self._due: dict[str, int] = {}  # The groups whose first target waits, and the end of the wait in ms.

    def delay(self, group_id: str, out: Outcome, now_ms: int) -> None:
        """Delay the first target of a group without members, if it is not delayed yet."""
        delay = self._settings.initial_rebalance_delay_ms(group_id)
        if delay > 0 and self._due.get(group_id, 0) <= now_ms:
            self._due[group_id] = now_ms + delay
            out.timers.append(Schedule((_DELAY, group_id), delay))

    def on_timer(self, group_id: str, group: StreamsGroup | None, now_ms: int) -> Outcome:
        """Compute the first target of a group."""
        out = Outcome()
        self._due.pop(group_id, None)
        if (
            group is not None
            and group.members
            and group.configured is not None
            and group.epoch > group.assignment_epoch
        ):
            self.target(group, group.epoch, None, group.configured, group.assignment_configs, out, now_ms)
        return out

    def target(
        self,
        group: StreamsGroup,
        epoch: int,
        updated: StreamsMember | None,
        configured: ConfiguredTopology,
        configs: Mapping[str, str],
        out: Outcome,
        now_ms: int,
    ) -> tuple[int, TaskSet, str | None]:
        """Return the target's epoch, the target's tasks for `updated`, and the reason for a delay.

        The reason is None if the target of `epoch` is not delayed. Add the records of a new target if a target is due.
        """
        if self._due.get(group.group_id, 0) > now_ms:
            waits = "Assignment delayed due to the configured initial rebalance delay."
            return group.assignment_epoch, NO_TASKS, waits
        own = NO_TASKS if updated is None else group.target_of(updated.member_id, updated.instance_id)
        if group.assignment_epoch >= epoch:
            return group.assignment_epoch, own, None
        interval, since = self._settings.assignment_interval_ms(group.group_id), group.assignment_timestamp
        if since != 0 and interval != 0 and now_ms < since + interval:
            return group.assignment_epoch, own, "Assignment delayed due to the configured assignment interval."
        found = _computed(group, updated, configured, configs)
        held = {member_id: _held_target(group, member_id, updated) for member_id in found}
        for member_id, tasks in found.items():
            if tasks != held[member_id]:
                out.records.append(records.target_member(group.group_id, member_id, tasks))
        out.records.append(records.target_epoch(group.group_id, epoch, now_ms))
        log.debug("group %s: assignment %d", group.group_id, epoch)
        return epoch, NO_TASKS if updated is None else found[updated.member_id], None

    def forget(self, group_id: str) -> None:
        """Forget a group that is deleted."""
        self._due.pop(group_id, None)


def _held_target(group: StreamsGroup, member_id: str, updated: StreamsMember | None) -> TaskSet | None:
    """Return a member's last target. A member that replaces a static member has the target of the static member."""
    if updated is not None and member_id == updated.member_id and updated.instance_id is not None:
        holder = group.static_members.get(updated.instance_id, member_id)
        return group.target.get(holder)
    return group.target.get(member_id)


def _computed(
    group: StreamsGroup, updated: StreamsMember | None, configured: ConfiguredTopology, configs: Mapping[str, str]
) -> dict[str, TaskSet]:
    members = dict(group.members)
    if updated is not None:
        held = group.static_member(updated.instance_id)
        if held is not None:
            members.pop(held.member_id)
        members[updated.member_id] = updated
    if not configured.is_ready:
        return dict.fromkeys(in_java_order(members), NO_TASKS)
    return sticky(
        {
            member_id: TaskMember(
                member.process_id,
                member.assigned.active,
                member.assigned.standby,
                group.restored.get(member_id, {}),
            )
            for member_id, member in members.items()
        },
        {name: Subtasks(each.tasks, each.is_stateful) for name, each in configured.subtopologies.items()},
        int(configs.get(NUM_STANDBYS, "0")),
    )
