"""Removes committed offsets that have expired (KIP-211) or whose topic was deleted, and groups without offsets.

Owns the rules, and the slices in which a shard's groups and the offsets in deleted topics are processed. Offsets in
deleted topics stay hidden until they are removed (`Offsets.fetch`). If the broker stops before their removal, they stay
until they expire, as in Kafka; a new topic of the same name has another id.

The keys of the timers: ("expire",) starts the next slice of groups; ("deleted",) writes the next tombstones of deleted
topics.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping

from kbroker.coordination.shard import CoordinatorRecord, Outcome, Schedule
from kbroker.group_coordinator.config import GroupConfig
from kbroker.group_coordinator.groups.classic_group import CONSUMER, EMPTY, STABLE, ClassicGroup
from kbroker.group_coordinator.groups.consumer_group import ConsumerGroup
from kbroker.group_coordinator.groups.share_group import ShareGroup
from kbroker.group_coordinator.groups.store import Group, Groups
from kbroker.group_coordinator.groups.streams_group import StreamsGroup
from kbroker.group_coordinator.offsets import Offsets
from kbroker.group_coordinator.records import consumer_group, share_group, streams_group
from kbroker.group_coordinator.records.classic_group import group_tombstone
from kbroker.group_coordinator.records.offsets import offset_tombstone
from kbroker.long_work import SLICE_SECONDS, for_a_while
from kbroker.protocol.messages.coordinator_records import OffsetCommitValue

log = logging.getLogger(__name__)

_EXPIRE, _DELETED = ("expire",), ("deleted",)
AT_ONCE = 200
"""The maximum number of tombstones to write, or of transactional offsets to examine, before other work gets a turn.

This takes about 2 ms.
"""


class Expiration:
    """The expiration of the offsets of a shard (shard.py). `seconds` is a stopwatch for the slices of work."""

    def __init__(self, groups: Groups, offsets: Offsets, config: GroupConfig, seconds: Callable[[], float]) -> None:
        self._groups = groups
        self._offsets = offsets
        self._config = config
        self._seconds = seconds
        self._left: list[str] = []  # groups that this pass has not checked yet

    def begin(self, out: Outcome) -> None:
        out.timers.append(Schedule(_EXPIRE, self._config.offsets_retention_check_interval_ms))

    def run(self, now_ms: int) -> Outcome:
        """Delete expired offsets, and groups that have neither members nor offsets, in one slice of the groups."""
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
        """Check one more group; return whether any groups are left."""
        group = self._groups.get(self._left.pop())
        if group is not None and not isinstance(group, ShareGroup):
            tombstones, none_left = self._expired(group, now_ms)
            out.records += tombstones
            if none_left and group.is_empty:
                out.records += group_tombstones(group)
        return bool(self._left)

    def _expired(self, group: Group, now_ms: int) -> tuple[list[CoordinatorRecord], bool]:
        """Return the tombstones of a group's expired offsets, and whether the group will have no offsets left."""
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
        """Return a test for expired offsets of this group; None if its offsets do not expire.

        A group with members keeps its offsets, except the offsets in topics that it has stopped consuming. In a classic
        group without members the retention starts when the group becomes empty. In a simple group, or a group of the
        consumer protocol, the retention of an offset starts again at each commit.
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


def group_tombstones(group: Group) -> list[CoordinatorRecord]:
    """Return the tombstones of a group, without its offsets."""
    if isinstance(group, ConsumerGroup):
        return consumer_group.group_tombstones(group)
    if isinstance(group, StreamsGroup):
        return streams_group.group_tombstones(group)
    if isinstance(group, ShareGroup):
        return share_group.group_tombstones(group.group_id)
    return [group_tombstone(group.group_id)]


class DeletedTopics:
    """The deleted topics that still have offsets in a shard."""

    def __init__(self, offsets: Offsets) -> None:
        self._offsets = offsets
        self._work: deque[Iterator[CoordinatorRecord | None]] = deque()

    def begin(self, deleted: Mapping[str, bytes]) -> Outcome:
        """Delete the offsets in deleted topics (name to id), immediately if they are few."""
        self._work.append(self._offsets.of_deleted_topics(deleted))
        return self.run() if len(self._work) == 1 else Outcome()

    def run(self) -> Outcome:
        """Write the next tombstones."""
        out = Outcome(atomic=False)
        left = AT_ONCE
        while self._work and left:
            for record in self._work[0]:
                if record is not None:
                    out.records.append(record)
                left -= 1
                if not left:
                    break
            else:
                self._work.popleft()
        if self._work:
            out.timers.append(Schedule(_DELETED, 0))
        return out
