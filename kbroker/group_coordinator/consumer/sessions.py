"""The timers of consumer group members: the limits on a member's silence and on the time for its next step.

Owns the begin and the end of the timers; member_removal.py has their effects.

The keys of the timers: ("consumer session", group, member) runs until a heartbeat; ("revoke", group, member) runs until
the member has revoked its partitions. Classic members also have: ("consumer join", group, member), which runs until the
member has joined again; ("consumer sync", group, member), which runs from the join until the member has synced.
"""

from __future__ import annotations

from collections.abc import Iterable

from kbroker.coordination.shard import Cancel, Outcome, Schedule
from kbroker.group_coordinator.assignment import Epochs
from kbroker.group_coordinator.config import Settings
from kbroker.group_coordinator.groups.consumer_group import ConsumerGroup
from kbroker.group_coordinator.groups.consumer_member import UNREVOKED, ConsumerMember, MemberState
from kbroker.group_coordinator.groups.store import Groups

REASONS = {
    "consumer session": "its session is over",
    "revoke": "it has not revoked its partitions in time",
    "consumer join": "it has not joined again in time",
    "consumer sync": "it has not asked for its assignment in time",
}


class Sessions:
    """The timers of the groups of a shard (shard.py)."""

    def __init__(self, groups: Groups, settings: Settings) -> None:
        self._groups = groups
        self._settings = settings

    def schedule(self, group_id: str, member_id: str, out: Outcome, timeout_ms: int | None = None) -> None:
        """Start or restart a member's session now."""
        delay = self._settings.session_timeout_ms(group_id) if timeout_ms is None else timeout_ms
        out.timers.append(Schedule(("consumer session", group_id, member_id), delay))

    def on_loaded(self, group: ConsumerGroup, out: Outcome) -> None:
        """Start a full session, and a full rebalance timeout, for every member."""
        for member in group.members.values():
            self.schedule(group.group_id, member.member_id, out)
            if member.state is UNREVOKED:
                group.revoking[member.member_id] = member.member_epoch
                key = ("revoke", group.group_id, member.member_id)
                out.timers.append(Schedule(key, member.rebalance_timeout_ms))

    def time_revocation(self, group_id: str, member: ConsumerMember, out: Outcome) -> None:
        """Start the rebalance timeout of a member that must revoke partitions.

        Cancel the timeout once the partitions are revoked. The timeout starts when the write of the member's new state
        has ended, even if the commit timed out.
        """

        def settle(done: Outcome, _now: int) -> None:
            group = self._groups.consumer(group_id)
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


def _progress(member: ConsumerMember) -> tuple[MemberState, int, Epochs]:
    """Return the values that show a member's progress in revoking partitions."""
    return member.state, member.member_epoch, member.pending_revocation


def forget_timers(group_id: str, member_ids: Iterable[str], out: Outcome) -> None:
    """Cancel all timers of members of a consumer group."""
    out.timers += [Cancel((kind, group_id, member_id)) for member_id in member_ids for kind in REASONS]
