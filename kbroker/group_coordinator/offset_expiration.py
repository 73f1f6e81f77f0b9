"""The expiration of committed offsets (KIP-211), and of groups with neither members nor offsets.

Owns the rules, and the slices in which a shard's groups are checked.

Timer, by key: ("expire",) the next slice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from kbroker.coordination.outcome import CoordinatorRecord, Outcome, Schedule
from kbroker.group_coordinator.config import GroupConfig
from kbroker.group_coordinator.groups.classic_group import CONSUMER, EMPTY, STABLE, ClassicGroup
from kbroker.group_coordinator.groups.store import Group, Groups
from kbroker.group_coordinator.offsets import Offsets
from kbroker.group_coordinator.records.offsets import offset_tombstone
from kbroker.group_coordinator.records.tombstones import group_tombstones
from kbroker.long_work import SLICE_SECONDS, for_a_while
from kbroker.protocol.messages.coordinator_records import OffsetCommitValue

log = logging.getLogger(__name__)

_EXPIRE = ("expire",)


class Expiration:
    """The expiration of a shard's offsets. `seconds` is a stopwatch for the slices of work."""

    def __init__(self, groups: Groups, offsets: Offsets, config: GroupConfig, seconds: Callable[[], float]) -> None:
        self._groups = groups
        self._offsets = offsets
        self._config = config
        self._seconds = seconds
        self._left: list[str] = []  # groups that this pass has not checked yet

    def begin(self, out: Outcome) -> None:
        out.timers.append(Schedule(_EXPIRE, self._config.offsets_retention_check_interval_ms))

    def run(self, now_ms: int) -> Outcome:
        """Delete expired offsets, and groups with neither members nor offsets: a slice of the groups at a time."""
        out = Outcome(atomic=False)
        if not self._left:
            self._left = [group.group_id for group in self._groups]
        if self._left:
            for_a_while(lambda: self._expire_one(now_ms, out), SLICE_SECONDS, self._seconds)
        if out.records:
            log.info("%d tombstones of expired offsets and groups", len(out.records))
        delay = 0 if self._left else self._config.offsets_retention_check_interval_ms
        out.timers.append(Schedule(_EXPIRE, delay))
        return out

    def _expire_one(self, now_ms: int, out: Outcome) -> bool:
        """Look at one more group; return whether any is left."""
        group = self._groups.get(self._left.pop())
        if group is not None:
            tombstones, none_left = self._expired(group, now_ms)
            out.records += tombstones
            if none_left and group.is_empty:
                out.records += group_tombstones(group)
        return bool(self._left)

    def _expired(self, group: Group, now_ms: int) -> tuple[list[CoordinatorRecord], bool]:
        """Return the tombstones of a group's expired offsets, and whether none will be left."""
        topics, pending = self._offsets.of_group(group.group_id)
        if not topics:
            return [], not pending
        is_expired = self._expiry(group, now_ms)
        if is_expired is None:
            return [], False
        records, none_left = [], True
        for topic, partitions in topics.items():
            if group.is_subscribed_to(topic):
                none_left = False
                continue
            for index, (_, value) in partitions.items():
                if is_expired(value) and (topic, index) not in pending:
                    records.append(offset_tombstone(group.group_id, topic, index))
                else:
                    none_left = False
        return records, none_left and not pending

    def _expiry(self, group: Group, now_ms: int) -> Callable[[OffsetCommitValue], bool] | None:
        """Return a test for expired offsets of this group; None if offsets do not expire.

        A group with members keeps its offsets, except those of topics that it has stopped consuming. In a group without
        members the retention counts from when it became empty; in a simple group, and in a consumer group, from each
        commit.
        """
        retention = self._config.offsets_retention_ms
        since: int | None = None
        if isinstance(group, ClassicGroup) and group.protocol_type is not None:
            if group.state is EMPTY:
                since = group.state_timestamp if group.state_timestamp >= 0 else None
            elif not (
                group.protocol_type == CONSUMER and group.subscribed_topics is not None and group.state is STABLE
            ):
                return None

        def is_expired(value: OffsetCommitValue) -> bool:
            if value.expire_timestamp >= 0:
                return now_ms >= value.expire_timestamp
            return now_ms - (value.commit_timestamp if since is None else since) >= retention

        return is_expired
