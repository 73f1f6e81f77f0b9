"""Committed offsets: commit, fetch, delete, expiry.

Owns what a group's position in a partition is, including positions that a transaction has written and not yet ended
(KIP-447). Changes only by replaying records; every method that decides returns the records that would change it.

An offset is kept as (offset of its record, OffsetCommitValue). The record's offset decides between a transactional and
a plain commit: the later record wins, whichever was ended last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from kbroker.coordination.outcome import CoordinatorRecord, InTransaction, Outcome
from kbroker.group_coordinator.config import GroupConfig
from kbroker.group_coordinator.consumer.group import ConsumerGroup
from kbroker.group_coordinator.group import COMPLETING, CONSUMER, DEAD, EMPTY, PREPARING, STABLE, ClassicGroup
from kbroker.group_coordinator.rebalance import schedule_session
from kbroker.group_coordinator.records import offset_commit, offset_tombstone
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.group_records import OffsetCommitValue
from kbroker.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from kbroker.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from kbroker.protocol.messages.offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from kbroker.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from kbroker.protocol.wire import ZERO_UUID

GROUP_ID_NOT_FOUND_SINCE = 9

Stored = tuple[int, OffsetCommitValue]
Place = tuple[str, int]


class Offsets:
    """The offsets of all groups of a shard. Shares the shard's groups of both kinds.

    `topic_id` returns a topic's id by its name, None where there is no such topic.
    """

    def __init__(
        self,
        groups: dict[str, ClassicGroup],
        consumer_groups: dict[str, ConsumerGroup],
        topic_id: Callable[[str], bytes | None],
        config: GroupConfig,
    ) -> None:
        self._groups = groups
        self._consumer_groups = consumer_groups
        self._topic_id = topic_id
        self._config = config
        self._stored: dict[str, dict[str, dict[int, Stored]]] = {}
        self._pending: dict[int, dict[tuple[str, str, int], Stored]] = {}  # by producer id
        self._open: dict[str, dict[Place, set[int]]] = {}  # producer ids by group and place

    # -- replay

    def put(
        self, record_offset: int, producer_id: int, group: str, topic: str, partition: int, value: OffsetCommitValue
    ) -> None:
        """Apply a commit; one of a transaction stays invisible until the transaction ends."""
        if producer_id >= 0:
            self._pending.setdefault(producer_id, {})[group, topic, partition] = (record_offset, value)
            self._open.setdefault(group, {}).setdefault((topic, partition), set()).add(producer_id)
            return
        try:
            self._stored[group][topic][partition] = (record_offset, value)
        except KeyError:
            self._stored.setdefault(group, {}).setdefault(topic, {})[partition] = (record_offset, value)

    def remove(self, group: str, topic: str, partition: int) -> None:
        """Apply a tombstone: the offset is gone, and so are the pending ones in its place."""
        topics = self._stored.get(group)
        partitions = topics.get(topic) if topics is not None else None
        if topics is not None and partitions is not None:
            partitions.pop(partition, None)
            if not partitions:
                del topics[topic]
                if not topics:
                    del self._stored[group]
        for producer_id in self._open.get(group, {}).get((topic, partition), set()).copy():
            self._close(producer_id, group, topic, partition)
            pending = self._pending[producer_id]
            del pending[group, topic, partition]
            if not pending:
                del self._pending[producer_id]

    def end_transaction(self, producer_id: int, committed: bool) -> None:
        """Apply a transaction marker."""
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

    # -- commit

    def commit(self, request: OffsetCommitRequest, version: int, now_ms: int) -> Outcome:
        """Handle an OffsetCommit of partitions that exist; raises ApiError for all of them."""
        out = Outcome()
        check = self._validate_commit(request, version, out)
        expire = -1 if request.retention_time_ms == -1 else now_ms + request.retention_time_ms
        limit = self._config.offset_metadata_max_bytes
        group_id = request.group_id
        topics = []
        for topic in request.topics:
            partitions = []
            for asked in topic.partitions:
                metadata = asked.committed_metadata or ""
                if len(metadata) * 2 > limit and _java_length(metadata) > limit:
                    code = ErrorCode.OFFSET_METADATA_TOO_LARGE
                else:
                    code = ErrorCode.NONE
                    if check is not None:
                        check(topic.topic_id, asked.partition_index)
                    value = OffsetCommitValue(
                        offset=asked.committed_offset,
                        leader_epoch=asked.committed_leader_epoch if asked.committed_leader_epoch >= 0 else -1,
                        metadata=metadata,
                        commit_timestamp=now_ms,
                        expire_timestamp=expire,
                        topic_id=topic.topic_id,
                    )
                    out.records.append(offset_commit(group_id, topic.name, asked.partition_index, value))
                partitions.append(OffsetCommitResponsePartition(partition_index=asked.partition_index, error_code=code))
            topics.append(OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=partitions))
        out.reply = OffsetCommitResponse(topics=topics)
        return out

    def _validate_commit(
        self, request: OffsetCommitRequest, version: int, out: Outcome
    ) -> Callable[[bytes, int], None] | None:
        """Let a commit of the current generation pass, or one without a generation to a group without members.

        It counts as a heartbeat where a rebalance does not want to hear one of its own. In a consumer group each
        partition may have to be checked by what is returned.
        """
        generation, member_id = request.generation_id_or_member_epoch, request.member_id
        instance_id = request.group_instance_id
        consumer_group = self._consumer_groups.get(request.group_id)
        if consumer_group is not None:
            return consumer_group.validate_commit(member_id, instance_id, generation, version)
        self._validate_classic_commit(request, version, out)
        return None

    def _validate_classic_commit(self, request: OffsetCommitRequest, version: int, out: Outcome) -> None:
        generation, member_id = request.generation_id_or_member_epoch, request.member_id
        instance_id = request.group_instance_id
        group = self._groups.get(request.group_id)
        if group is None:
            if generation >= 0:
                raise ApiError(
                    ErrorCode.GROUP_ID_NOT_FOUND
                    if version >= GROUP_ID_NOT_FOUND_SINCE
                    else ErrorCode.ILLEGAL_GENERATION
                )
            return  # replaying the record creates a simple group
        if group.state is DEAD:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if generation < 0 and group.state is EMPTY:
            return
        if generation < 0 and not member_id and instance_id is None:
            if group.state is not EMPTY:
                raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
            return
        member = group.validate_member(member_id, instance_id)
        if generation != group.generation:
            raise ApiError(ErrorCode.ILLEGAL_GENERATION)
        if group.state is COMPLETING:
            raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS)
        if group.state in (STABLE, PREPARING):
            schedule_session(group, member, out)

    def commit_in_transaction(self, request: TxnOffsetCommitRequest, guard: object, now_ms: int) -> Outcome:
        """Handle a TxnOffsetCommit of partitions that exist; raises ApiError for all of them."""
        check = self._validate_in_transaction(request)
        limit = self._config.offset_metadata_max_bytes
        producer = InTransaction(request.producer_id, request.producer_epoch, guard)
        out = Outcome(producer=producer if request.producer_id >= 0 else None)
        topics = []
        for topic in request.topics:
            partitions = []
            for asked in topic.partitions:
                metadata = asked.committed_metadata or ""
                code = ErrorCode.NONE
                if len(metadata) * 2 > limit and _java_length(metadata) > limit:
                    code = ErrorCode.OFFSET_METADATA_TOO_LARGE
                else:
                    if check is not None:
                        check(topic.name, asked.partition_index)
                    value = OffsetCommitValue(
                        offset=asked.committed_offset,
                        leader_epoch=max(asked.committed_leader_epoch, -1),
                        metadata=metadata,
                        commit_timestamp=now_ms,
                    )
                    out.records.append(offset_commit(request.group_id, topic.name, asked.partition_index, value))
                partitions.append(
                    TxnOffsetCommitResponsePartition(partition_index=asked.partition_index, error_code=code)
                )
            topics.append(TxnOffsetCommitResponseTopic(name=topic.name, partitions=partitions))
        out.reply = TxnOffsetCommitResponse(topics=topics)
        return out

    def _validate_in_transaction(self, request: TxnOffsetCommitRequest) -> Callable[[str, int], None] | None:
        """Let a member of the current generation pass, and whoever names no member at all (before KIP-447).

        Unlike a plain commit this one is let through while a rebalance completes, and counts as no heartbeat. In a
        consumer group each partition may have to be checked by what is returned; a stale epoch is ILLEGAL_GENERATION,
        which is what transactional producers know.
        """
        consumer_group = self._consumer_groups.get(request.group_id)
        if consumer_group is None:
            self._validate_classic_in_transaction(request)
            return None
        with _stale_as_illegal():
            check = consumer_group.validate_commit(
                request.member_id, request.group_instance_id, request.generation_id, 0, transactional=True
            )
        if check is None:
            return None

        def checked(topic: str, partition: int) -> None:
            topic_id = self._topic_id(topic)
            if topic_id is None:
                raise ApiError(ErrorCode.ILLEGAL_GENERATION)
            with _stale_as_illegal():
                check(topic_id, partition)

        return checked

    def _validate_classic_in_transaction(self, request: TxnOffsetCommitRequest) -> None:
        generation, member_id, instance_id = request.generation_id, request.member_id, request.group_instance_id
        group = self._groups.get(request.group_id)
        if group is None:
            if generation >= 0:
                raise ApiError(ErrorCode.ILLEGAL_GENERATION)
            return
        if group.state is DEAD:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if generation < 0 and (group.state is EMPTY or (not member_id and instance_id is None)):
            return
        group.validate_member(member_id, instance_id)
        if generation != group.generation:
            raise ApiError(ErrorCode.ILLEGAL_GENERATION)

    # -- fetch

    def fetch(self, request: OffsetFetchRequestGroup, require_stable: bool) -> OffsetFetchResponseGroup:
        """Handle one group of an OffsetFetch; raises ApiError. An unknown group has no offsets, which is no error."""
        consumer_group = self._consumer_groups.get(request.group_id)
        if consumer_group is not None:
            consumer_group.validate_fetch(request.member_id, request.member_epoch)
        group = self._groups.get(request.group_id)
        known = consumer_group is not None or (group is not None and group.state is not DEAD)
        stored = self._stored.get(request.group_id, {}) if known else {}
        unstable = self._open.get(request.group_id, {}) if require_stable else {}
        if request.topics is None:
            wanted = [(topic, ZERO_UUID, list(partitions)) for topic, partitions in stored.items()]
        else:
            wanted = [(topic.name, topic.topic_id, topic.partition_indexes) for topic in request.topics]
        topics = []
        for name, topic_id, indexes in wanted:
            held = stored.get(name, {})
            partitions = []
            for index in indexes:
                entry = held.get(index)
                if unstable and (name, index) in unstable:
                    partitions.append(_no_offset(index, ErrorCode.UNSTABLE_OFFSET_COMMIT))
                elif entry is None or _differ(entry[1].topic_id, topic_id):
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
            topics.append(OffsetFetchResponseTopics(name=name, topic_id=topic_id, partitions=partitions))
        return OffsetFetchResponseGroup(group_id=request.group_id, topics=topics)

    # -- delete

    def delete(self, request: OffsetDeleteRequest) -> Outcome:
        """Handle an OffsetDelete of partitions that exist; raises ApiError."""
        group = self._consumer_groups.get(request.group_id) or self._groups.get(request.group_id)
        if group is None or group.state is DEAD:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND)
        if isinstance(group, ClassicGroup) and group.state is not EMPTY and group.protocol_type != CONSUMER:
            raise ApiError(ErrorCode.NON_EMPTY_GROUP)
        out = Outcome()
        stored, pending = self._stored.get(request.group_id, {}), self._open.get(request.group_id, {})
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
        """Return the tombstones of all offsets of a group, pending ones included."""
        stored = self._stored.get(group_id, {})
        records = [
            offset_tombstone(group_id, topic, index) for topic, partitions in stored.items() for index in partitions
        ]
        records += [
            offset_tombstone(group_id, topic, index)
            for topic, index in self._open.get(group_id, {})
            if index not in stored.get(topic, {})
        ]
        return records

    def on_topics_deleted(self, deleted: Mapping[str, bytes]) -> list[CoordinatorRecord]:
        """Return the tombstones of the offsets in deleted topics (name to id), unless they are of a namesake."""
        records = []
        for group_id, topics in self._stored.items():
            for name in deleted.keys() & topics.keys():
                records += [
                    offset_tombstone(group_id, name, index)
                    for index, (_, value) in topics[name].items()
                    if value.topic_id in (ZERO_UUID, deleted[name])
                ]
        for pending in self._pending.values():
            records += [
                offset_tombstone(group_id, name, index)
                for (group_id, name, index), (_, value) in pending.items()
                if name in deleted and value.topic_id in (ZERO_UUID, deleted[name])
            ]
        return records

    # -- expiry (KIP-211)

    def expired(self, group: ClassicGroup | ConsumerGroup, now_ms: int) -> tuple[list[CoordinatorRecord], bool]:
        """Return the tombstones of a group's expired offsets, and whether none will be left."""
        topics = self._stored.get(group.group_id)
        has_pending = group.group_id in self._open
        if topics is None:
            return [], not has_pending
        is_expired = self._expiry(group, now_ms)
        if is_expired is None:
            return [], False
        pending = self._open.get(group.group_id, {})
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
        return records, none_left and not has_pending

    def _expiry(self, group: ClassicGroup | ConsumerGroup, now_ms: int) -> Callable[[OffsetCommitValue], bool] | None:
        """Return what tells an expired offset of this group; None where offsets do not expire.

        A group with members keeps its offsets, except those of topics it has stopped consuming; one without keeps them
        for the retention from when it became empty; a simple group, and a consumer group, from when each was committed.
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


def _no_offset(index: int, code: ErrorCode) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=index, committed_offset=-1, committed_leader_epoch=-1, metadata="", error_code=code
    )


def _differ(held: bytes, asked: bytes) -> bool:
    """Tell whether two topic ids are known and not the same."""
    return held != asked and held != ZERO_UUID and asked != ZERO_UUID


@contextmanager
def _stale_as_illegal() -> Iterator[None]:
    try:
        yield
    except ApiError as error:
        if error.code is not ErrorCode.STALE_MEMBER_EPOCH:
            raise
        raise ApiError(ErrorCode.ILLEGAL_GENERATION) from error


def _java_length(text: str) -> int:
    """Return how long Java finds a string: in UTF-16 units."""
    return len(text) + sum(character > "\uffff" for character in text)
