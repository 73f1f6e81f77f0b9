"""The share partitions of a group whose state is at the share coordinator: the decisions of a shard (shard.py).

Owns the record ShareGroupStatePartitionMetadata. The record lists three kinds of partitions: partitions that a
heartbeat or AlterShareGroupOffsets has to initialise, initialised partitions, and partitions that
DeleteShareGroupOffsets or DeleteGroups has to delete. Also owns the cleaning after the deletion of topics.

Never sends a request to the share coordinator: share_groups.py sends it, and reports the result here.

The key of the timer is ("share topics",). When it fires, the next groups are cleaned after the deletion of topics.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from kbroker.coordination.shard import Outcome, Schedule
from kbroker.group_coordinator.config import Settings
from kbroker.group_coordinator.groups.share_group import ShareGroup, StatePartitions, Used, UsedTopic, united, without
from kbroker.group_coordinator.groups.store import Groups
from kbroker.group_coordinator.records.share_group import state_partitions
from kbroker.group_coordinator.topics import Topics
from kbroker.protocol.errors import DEFAULT_MESSAGES, ApiError, ErrorCode
from kbroker.protocol.messages.share_groups import DeleteShareGroupOffsetsResponseTopic

_AT_ONCE: Final = 50
_TOPICS = ("share topics",)
_UNKNOWN: Final = "<UNKNOWN>"
_NON_EMPTY: Final = "The group is not empty."

ShareTopics = Mapping[bytes, Sequence[int]]
"""Share partitions of one group: partition numbers by topic id."""


@dataclass(frozen=True, slots=True)
class Initialization:
    """Share partitions whose state the share coordinator has to create.

    If a start offset is -1, the leader chooses it.
    """

    group_id: str
    state_epoch: int
    offsets: Mapping[bytes, Mapping[int, int]]


@dataclass(frozen=True, slots=True)
class Deletion:
    """Share partitions whose state the share coordinator has to delete."""

    group_id: str
    topics: ShareTopics


@dataclass(slots=True)
class OffsetsToDelete:
    """The first step of a DeleteShareGroupOffsets: the partitions to delete, and topics that cannot be deleted."""

    topics: dict[bytes, list[int]] = field(default_factory=dict)
    refused: list[DeleteShareGroupOffsetsResponseTopic] = field(default_factory=list)


class StateOfGroups:
    """The share partitions of a shard's groups."""

    def __init__(self, groups: Groups, topics: Topics, settings: Settings) -> None:
        self._groups = groups
        self._topics = topics
        self._settings = settings
        self._deleted: dict[bytes, None] = {}
        self._to_clean: list[str] = []

    # -- for heartbeats

    def is_assignment_pending(self, group: ShareGroup) -> bool:
        """Return whether initialised partitions of subscribed topics are missing from the target."""
        if group.checked_version == self._topics.version or group.is_empty or not group.counts.by_name:
            return False
        assigned: dict[bytes, set[int]] = {}
        for target in group.target.values():
            for topic_id, indexes in target.items():
                assigned.setdefault(topic_id, set()).update(indexes)
        return any(
            used.name in group.counts.by_name and assigned.get(topic_id, set()) != set(used.partitions)
            for topic_id, used in group.initialized.items()
        )

    def to_initialize(
        self, group: ShareGroup, epoch: int, names: Iterable[str], out: Outcome, now_ms: int
    ) -> Initialization | None:
        """Record the partitions of the subscribed topics that have no state yet; return None if there are none.

        An initialisation that has not ended is tried again after group.share.initialize.retry.interval.ms. If a
        partition was added to a topic that the group already uses, the group starts at the partition's beginning,
        because it has read nothing there. Kafka also starts at the beginning if the first initialisation of a partition
        was interrupted, for example because the coordinator moved.
        """
        version = self._topics.version
        if not out.records and group.checked_version == version:
            return None
        held = group.state_partitions or StatePartitions()
        retry_ms = self._settings.config.share_initialize_retry_interval_ms
        is_fresh = now_ms - group.initializing_since < retry_ms
        new: dict[bytes, UsedTopic] = {}
        for name in names:
            topic_id = self._topics.id_of(name)
            if topic_id is None:
                continue
            known = _partitions(held.initialized, topic_id)
            if is_fresh:
                known |= _partitions(held.initializing, topic_id)
            count = self._topics.count_of(topic_id)
            if len(known) < count:
                new[topic_id] = UsedTopic(name, frozenset(range(count)) - known)
        if not new:
            if not held.initializing and not out.records and not self.is_assignment_pending(group):
                group.checked_version = version
            return None
        self._initializing(group.group_id, group.state_partitions, new, out)
        offsets = {
            topic_id: {index: 0 if _was_added(held, topic_id, index) else -1 for index in sorted(used.partitions)}
            for topic_id, used in new.items()
        }
        return Initialization(group.group_id, epoch, offsets)

    def _initializing(self, group_id: str, held: StatePartitions | None, new: Used, out: Outcome) -> None:
        held = held or StatePartitions()
        initializing = united(held.initializing, new)
        deleting = {topic_id: name for topic_id, name in held.deleting.items() if topic_id not in initializing}
        changed = replace(held, initializing=initializing, deleting=self._named(deleting))
        out.records.append(state_partitions(group_id, changed))

    def _named(self, topic_ids: Iterable[bytes]) -> dict[bytes, str]:
        return {topic_id: self._topics.name_of(topic_id) or _UNKNOWN for topic_id in topic_ids}

    # -- results of the share coordinator

    def initialized(self, group_id: str, topics: ShareTopics) -> Outcome:
        """Record that partitions have a state. Topics that were deleted meanwhile are left out."""
        group = self._groups.share(group_id)
        if group is None or not topics:
            return Outcome()
        held = group.state_partitions or StatePartitions()
        new = {
            topic_id: UsedTopic(name, frozenset(indexes))
            for topic_id, indexes in topics.items()
            if (name := self._topics.name_of(topic_id)) is not None
        }
        changed = StatePartitions(
            without(held.initializing, topics), united(held.initialized, new), self._named(held.deleting)
        )
        return Outcome(records=[state_partitions(group_id, changed)])

    def not_initialized(self, group_id: str, topics: ShareTopics) -> Outcome:
        """Record that the states of partitions could not be created. The next heartbeat tries to create them again."""
        group = self._groups.share(group_id)
        held = None if group is None else group.state_partitions
        if held is None or not held.initializing or not topics:
            return Outcome()
        changed = replace(held, initializing=without(held.initializing, topics), deleting=self._named(held.deleting))
        return Outcome(records=[state_partitions(group_id, changed)])

    def offsets_deleted(self, group_id: str, topic_ids: Iterable[bytes]) -> Outcome:
        """Record that the states of topics are deleted."""
        group = self._groups.share(group_id)
        held = None if group is None else group.state_partitions
        if held is None:
            return Outcome()
        left = [topic_id for topic_id in held.deleting if topic_id not in set(topic_ids)]
        return Outcome(records=[state_partitions(group_id, replace(held, deleting=self._named(left)))])

    # -- requests of administrators

    def alter(self, group_id: str, offsets: Mapping[bytes, Mapping[int, int]]) -> Outcome:
        """Begin an AlterShareGroupOffsets of existing partitions; reply with an Initialization. Raises ApiError."""
        group = ShareGroup(group_id) if self._groups.get(group_id) is None else self._groups.known_share(group_id)
        _check_empty(group)
        out = Outcome(reply=Initialization(group_id, group.epoch, offsets))
        if offsets:
            new = {
                topic_id: UsedTopic(self._topics.name_of(topic_id) or _UNKNOWN, frozenset(indexes))
                for topic_id, indexes in offsets.items()
            }
            self._initializing(group_id, group.state_partitions, new, out)
        return out

    def delete_offsets(self, group_id: str, names: Iterable[str]) -> Outcome:
        """Begin a DeleteShareGroupOffsets; reply with OffsetsToDelete. Raises ApiError."""
        group = self._groups.known_share(group_id)
        _check_empty(group)
        found = OffsetsToDelete()
        out = Outcome(reply=found)
        held = group.state_partitions
        if held is None:
            return out
        initialized, deleting = dict(held.initialized), dict(held.deleting)
        for name in names:
            topic_id = self._topics.id_of(name)
            if topic_id is None:
                text = DEFAULT_MESSAGES[ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
            elif topic_id in initialized:
                found.topics[topic_id] = sorted(initialized.pop(topic_id).partitions)
                deleting[topic_id] = name
                continue
            elif topic_id in deleting:
                found.topics[topic_id] = list(range(self._topics.count_of(topic_id)))
                continue
            else:
                text = "There is no offset information to delete."
            found.refused.append(_refused(name, text))
        changed = replace(held, initialized=initialized, deleting=self._named(deleting))
        out.records.append(state_partitions(group_id, changed))
        return out

    def delete_groups(self, group_ids: Iterable[str]) -> Outcome:
        """Begin to delete the share groups among these groups; reply with a Deletion for each, or an error code.

        Groups of other types, and share groups without any state, are not in the reply.
        """
        found: dict[str, Deletion | ErrorCode] = {}
        out = Outcome(reply=found)
        for group_id in group_ids:
            group = self._groups.share(group_id)
            if group is None:
                continue
            if not group.is_empty:
                found[group_id] = ErrorCode.NON_EMPTY_GROUP
                continue
            held = group.state_partitions
            if held is None:
                continue
            again = {
                topic_id: UsedTopic(name, frozenset(range(self._topics.count_of(topic_id))))
                for topic_id in held.deleting
                if (name := self._topics.name_of(topic_id)) is not None
            }
            used = united(united(held.initialized, held.initializing), again)
            # The share coordinator does not know partitions of deleted topics, and would refuse the request.
            used = {topic_id: topic for topic_id, topic in used.items() if self._topics.name_of(topic_id) is not None}
            deleting = {topic_id: topic.name for topic_id, topic in used.items()}
            out.records.append(state_partitions(group_id, StatePartitions(deleting=deleting)))
            if used:
                topics = {topic_id: sorted(topic.partitions) for topic_id, topic in used.items()}
                found[group_id] = Deletion(group_id, topics)
        return out

    # -- deleted topics

    def on_topics_deleted(self, topic_ids: Iterable[bytes]) -> Outcome:
        """Forget the share partitions of deleted topics. The share coordinator deletes their state by itself."""
        groups = self._groups.shares()
        if not groups:
            return Outcome()
        self._deleted.update(dict.fromkeys(topic_ids))
        begins = not self._to_clean
        self._to_clean = [group.group_id for group in groups]
        return self.clean_more() if begins else Outcome()

    def clean_more(self) -> Outcome:
        """Remove the deleted topics from the next groups."""
        out = Outcome(atomic=False)
        while self._to_clean and len(out.records) < _AT_ONCE:
            group = self._groups.share(self._to_clean.pop())
            held = None if group is None else group.state_partitions
            if group is None or held is None or self._deleted.keys().isdisjoint(held.topic_ids()):
                continue
            left = StatePartitions(
                {each: used for each, used in held.initializing.items() if each not in self._deleted},
                {each: used for each, used in held.initialized.items() if each not in self._deleted},
                self._named(each for each in held.deleting if each not in self._deleted),
            )
            out.records.append(state_partitions(group.group_id, left))
        if self._to_clean:
            out.timers.append(Schedule(_TOPICS, 0))
        else:
            self._deleted.clear()
        return out


def _partitions(used: Used, topic_id: bytes) -> frozenset[int]:
    topic = used.get(topic_id)
    return frozenset() if topic is None else topic.partitions


def _was_added(held: StatePartitions, topic_id: bytes, index: int) -> bool:
    """Whether a partition without state was added to its topic after the group began to use the topic."""
    if topic_id in held.initialized:
        return True
    return topic_id in held.initializing and index not in _partitions(held.initializing, topic_id)


def _check_empty(group: ShareGroup) -> None:
    if not group.is_empty:
        raise ApiError(ErrorCode.NON_EMPTY_GROUP, _NON_EMPTY)


def _refused(name: str, text: str) -> DeleteShareGroupOffsetsResponseTopic:
    return DeleteShareGroupOffsetsResponseTopic(
        topic_name=name, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, error_message=text
    )
