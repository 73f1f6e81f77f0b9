"""Committed offsets in memory: OffsetFetch, OffsetDelete, and deletion with a group or a topic.

Owns a group's position in a partition, including positions that an open transaction has written (KIP-447). Offsets
change only by the replay of records; each method that decides about a change returns its records. offset_commit.py
checks commits; offset_removal.py expires offsets.

An offset is kept as (offset of its record, OffsetCommitValue). If a partition has a transactional and a plain commit,
the commit with the later record wins, even if the transaction completed last.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kbroker.coordination.shard import CoordinatorRecord, Outcome
from kbroker.group_coordinator.groups.classic_group import CONSUMER, EMPTY, ClassicGroup
from kbroker.group_coordinator.groups.consumer_group import ConsumerGroup
from kbroker.group_coordinator.groups.consumer_member import ConsumerMember
from kbroker.group_coordinator.groups.store import Groups
from kbroker.group_coordinator.groups.streams_group import StreamsGroup
from kbroker.group_coordinator.records.offsets import offset_tombstone
from kbroker.long_work import turn
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.coordinator_records import OffsetCommitValue
from kbroker.protocol.messages.group_offsets import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from kbroker.protocol.wire import ZERO_UUID

Stored = tuple[int, OffsetCommitValue]
Place = tuple[str, int]
_NOT_DELETED = -1, ZERO_UUID


class Offsets:
    """The offsets of all groups of a shard (shard.py)."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._stored: dict[str, dict[str, dict[int, Stored]]] = {}
        self._groups_by_topic: dict[str, dict[str, None]] = {}  # Topic -> the groups with offsets in it.
        self._pending: dict[int, dict[tuple[str, str, int], Stored]] = {}  # Producer id -> place -> offset.
        self._open: dict[str, dict[Place, set[int]]] = {}  # Group -> place -> producer ids.
        self._newest = -1  # The last record that was applied.
        self._deleted: dict[str, tuple[int, bytes]] = {}  # Topic -> the last hidden record, and the topic id.

    # -- replay

    def put(
        self, record_offset: int, producer_id: int, group: str, topic: str, partition: int, value: OffsetCommitValue
    ) -> None:
        """Apply a commit. A transaction's commit stays invisible until the transaction ends."""
        if record_offset > self._newest:
            self._newest = record_offset
        if producer_id >= 0:
            self._pending.setdefault(producer_id, {})[group, topic, partition] = (record_offset, value)
            self._open.setdefault(group, {}).setdefault((topic, partition), set()).add(producer_id)
            return
        try:
            self._stored[group][topic][partition] = (record_offset, value)
        except KeyError:
            self._stored.setdefault(group, {}).setdefault(topic, {})[partition] = (record_offset, value)
            self._groups_by_topic.setdefault(topic, {})[group] = None

    def remove(self, group: str, topic: str, partition: int) -> None:
        """Apply a tombstone: remove the offset, and the pending offsets of the same partition."""
        topics = self._stored.get(group)
        partitions = topics.get(topic) if topics is not None else None
        if topics is not None and partitions is not None:
            partitions.pop(partition, None)
            if not partitions:
                del topics[topic]
                groups = self._groups_by_topic[topic]
                groups.pop(group, None)
                if not groups:
                    del self._groups_by_topic[topic]
                if not topics:
                    del self._stored[group]
        for producer_id in self._open.get(group, {}).get((topic, partition), set()).copy():
            self._close(producer_id, group, topic, partition)
            pending = self._pending[producer_id]
            del pending[group, topic, partition]
            if not pending:
                del self._pending[producer_id]

    def end_transaction(self, producer_id: int, committed: bool) -> None:
        for (group, topic, partition), stored in self._pending.pop(producer_id, {}).items():
            self._close(producer_id, group, topic, partition)
            if committed:
                existing = self._stored.get(group, {}).get(topic, {}).get(partition)
                if existing is None or stored[0] > existing[0]:
                    self.put(stored[0], -1, group, topic, partition, stored[1])

    def _close(self, producer_id: int, group: str, topic: str, partition: int) -> None:
        places = self._open[group]
        producers = places[topic, partition]
        producers.discard(producer_id)
        if not producers:
            del places[topic, partition]
            if not places:
                del self._open[group]

    def of_group(self, group_id: str) -> tuple[Mapping[str, Mapping[int, Stored]], Mapping[Place, set[int]]]:
        """Return a group's offsets by topic and partition, and the partitions with pending offsets."""
        return self._stored.get(group_id, {}), self._open.get(group_id, {})

    @property
    def newest(self) -> int:
        """The offset of this shard's last record with a commit; -1 if there is none."""
        return self._newest

    def groups(self) -> list[str]:
        """Return the groups with an offset."""
        return list(self._stored)

    def groups_with(self, topic: str) -> list[str]:
        """Return the groups with an offset in a topic."""
        return list(self._groups_by_topic.get(topic, ()))

    # -- fetch

    async def fetch(self, request: OffsetFetchRequestGroup, require_stable: bool) -> OffsetFetchResponseGroup:
        """Handle one group of an OffsetFetch.

        Raises ApiError. An unknown group has no offsets, which is not an error.
        """
        group = self._groups.get(request.group_id)
        if isinstance(group, ConsumerGroup | StreamsGroup):
            _validate_fetch(group, request.member_id, request.member_epoch)
        stored = self._stored.get(request.group_id, {}) if group is not None else {}
        unstable = self._open.get(request.group_id, {}) if require_stable else {}
        if request.topics is None:
            wanted = [
                OffsetFetchRequestTopics(name, ZERO_UUID, self._shown(name, held)) for name, held in stored.items()
            ]
            wanted = [topic for topic in wanted if topic.partition_indexes]
        else:
            wanted = request.topics
        topics = []
        for topic in wanted:
            name, topic_id, held = topic.name, topic.topic_id, stored.get(topic.name, {})
            newest, deleted_id = self._deleted.get(name, _NOT_DELETED)
            partitions = []
            for index in topic.partition_indexes:
                entry = held.get(index)
                if unstable and (name, index) in unstable:
                    partitions.append(_no_offset(index, ErrorCode.UNSTABLE_OFFSET_COMMIT))
                elif entry is None or _differ(entry[1].topic_id, topic_id) or _is_of(entry, newest, deleted_id):
                    partitions.append(_no_offset(index, ErrorCode.NONE))
                else:
                    value = entry[1]
                    partitions.append(
                        OffsetFetchResponsePartitions(
                            partition_index=index,
                            committed_offset=value.offset,
                            committed_leader_epoch=value.leader_epoch,
                            metadata=value.metadata,
                        )
                    )
                await turn
            topics.append(OffsetFetchResponseTopics(name=name, topic_id=topic_id, partitions=partitions))
            await turn
        return OffsetFetchResponseGroup(group_id=request.group_id, topics=topics)

    def _shown(self, name: str, held: Mapping[int, Stored]) -> list[int]:
        """Return the partitions of a topic that have an offset."""
        if name not in self._deleted:
            return list(held)
        newest, deleted_id = self._deleted[name]
        return [index for index, entry in held.items() if not _is_of(entry, newest, deleted_id)]

    # -- delete

    def delete(self, request: OffsetDeleteRequest) -> Outcome:
        """Handle an OffsetDelete of existing partitions. Raises ApiError."""
        group = self._groups.no_share(request.group_id)
        if group is None:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND)
        if isinstance(group, ClassicGroup) and group.state is not EMPTY and group.protocol_type != CONSUMER:
            raise ApiError(ErrorCode.NON_EMPTY_GROUP)
        out = Outcome()
        stored, pending = self.of_group(request.group_id)
        topics = []
        for topic in request.topics:
            subscribed = group.is_subscribed_to(topic.name)
            code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if subscribed else ErrorCode.NONE
            indexes = [partition.partition_index for partition in topic.partitions]
            answers = [OffsetDeleteResponsePartition(partition_index=index, error_code=code) for index in indexes]
            topics.append(OffsetDeleteResponseTopic(name=topic.name, partitions=answers))
            if not subscribed:
                out.records += [
                    offset_tombstone(request.group_id, topic.name, index)
                    for index in indexes
                    if index in stored.get(topic.name, {}) or (topic.name, index) in pending
                ]
        out.reply = OffsetDeleteResponse(topics=topics)
        return out

    def delete_all(self, group_id: str) -> list[CoordinatorRecord]:
        """Return the tombstones of all offsets of a group, including pending offsets."""
        stored, pending = self.of_group(group_id)
        records = [
            offset_tombstone(group_id, topic, index) for topic, partitions in stored.items() for index in partitions
        ]
        records += [
            offset_tombstone(group_id, topic, index) for topic, index in pending if index not in stored.get(topic, {})
        ]
        return records

    def of_deleted_topics(self, deleted: Mapping[str, bytes]) -> Iterator[CoordinatorRecord | None]:
        """Hide the committed offsets of deleted topics, and return an iterator of the tombstones for these offsets.

        `deleted` maps topic names to topic ids. The iterator examines one offset at a time. It yields None for an
        offset of a transaction if that offset stays. Later commits belong to a new topic of the same name, and are not
        hidden.
        """
        newest = self._newest
        for name, topic_id in deleted.items():
            self._deleted[name] = (newest, topic_id)
        return self._tombstones(deleted, newest)

    def _tombstones(self, deleted: Mapping[str, bytes], newest: int) -> Iterator[CoordinatorRecord | None]:
        # Search the offsets of transactions first. If a transaction ends meanwhile, its offsets move to the part that
        # is searched later.
        for producer_id in list(self._pending):
            for place in list(self._pending.get(producer_id, ())):
                entry = self._pending.get(producer_id, {}).get(place)
                group_id, name, index = place
                removed = entry is not None and name in deleted and _is_of(entry, newest, deleted[name])
                yield offset_tombstone(group_id, name, index) if removed and self._is_settled(place, newest) else None
        for name, topic_id in deleted.items():
            for group_id in list(self._groups_by_topic.get(name, ())):
                for index in list(self._stored.get(group_id, {}).get(name, ())):
                    entry = self._stored.get(group_id, {}).get(name, {}).get(index)
                    if entry is not None and _is_of(entry, newest, topic_id):
                        place = group_id, name, index
                        yield offset_tombstone(group_id, name, index) if self._is_settled(place, newest) else None
            if self._deleted.get(name) == (newest, topic_id):
                del self._deleted[name]

    def _is_settled(self, place: tuple[str, str, int], newest: int) -> bool:
        """Return whether no open transaction has written an offset after `newest`.

        A tombstone would also remove such an offset.
        """
        group_id, name, index = place
        open_here = self._open.get(group_id, {}).get((name, index), ())
        return all(self._pending[producer_id][place][0] <= newest for producer_id in open_here)


def _is_of(entry: Stored, newest: int, topic_id: bytes) -> bool:
    """Whether the record of a committed offset is not after `newest`, and has the id `topic_id` or an unknown id."""
    return entry[0] <= newest and entry[1].topic_id in (ZERO_UUID, topic_id)


def _no_offset(index: int, code: ErrorCode) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=index, committed_offset=-1, committed_leader_epoch=-1, metadata="", error_code=code
    )


def _differ(held: bytes, asked: bytes) -> bool:
    """Return whether two topic ids are known and different."""
    return held != asked and held != ZERO_UUID and asked != ZERO_UUID


def _validate_fetch(group: ConsumerGroup | StreamsGroup, member_id: str | None, epoch: int) -> None:
    """Accept a fetch of offsets, or raise ApiError."""
    if member_id is None and epoch < 0:
        return
    member = group.member(member_id or "")
    if epoch != member.member_epoch:
        is_classic = isinstance(member, ConsumerMember) and member.classic is not None
        raise ApiError(ErrorCode.ILLEGAL_GENERATION if is_classic else ErrorCode.STALE_MEMBER_EPOCH)
