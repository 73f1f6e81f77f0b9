"""OffsetCommit and TxnOffsetCommit: who may commit, and what is written.

Owns the checks of generations and member epochs, for groups of both protocols. Changes nothing: the records do, once
they are replayed (offsets.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kbroker.coordination.outcome import InTransaction, Outcome
from kbroker.group_coordinator.classic.rebalance import schedule_session
from kbroker.group_coordinator.config import GroupConfig
from kbroker.group_coordinator.groups.classic_group import COMPLETING, EMPTY, PREPARING, STABLE, ClassicGroup
from kbroker.group_coordinator.groups.consumer_group import ConsumerGroup
from kbroker.group_coordinator.groups.store import Groups
from kbroker.group_coordinator.records.offsets import offset_commit
from kbroker.group_coordinator.topics import Topics
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.group_records import OffsetCommitValue
from kbroker.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from kbroker.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

GROUP_ID_NOT_FOUND_SINCE = 9
NO_BOUND = 1 << 40
_LEAST_BYTES = 41
"""What a record of an offset takes at least beside the topic's name and the metadata, and the group's id."""


class OffsetCommits:
    """Commits to the groups of a shard."""

    def __init__(self, groups: Groups, topics: Topics, config: GroupConfig) -> None:
        self._groups = groups
        self._topics = topics
        self._config = config

    def commit(self, request: OffsetCommitRequest, version: int, now_ms: int, most_bytes: int = NO_BOUND) -> Outcome:
        """Handle an OffsetCommit of partitions that exist; raises ApiError for all of them.

        A batch of more than `most_bytes` is not built, as it would not be taken.
        """
        out = Outcome()
        check = self._validate_commit(request, version, out)
        left = most_bytes - _LEAST_BYTES * sum(len(topic.partitions) for topic in request.topics)
        expire = -1 if request.retention_time_ms == -1 else now_ms + request.retention_time_ms
        topics = []
        for topic in request.topics:
            partitions = []
            for asked in topic.partitions:
                if left < 0:
                    return _too_large(out)
                code = self._refuses(asked)
                if code is ErrorCode.NONE:
                    if check is not None:
                        check(topic.topic_id, asked.partition_index)
                    left -= len(topic.name) + len(asked.committed_metadata or "")
                    value = _value(asked, now_ms)
                    value.expire_timestamp, value.topic_id = expire, topic.topic_id
                    out.records.append(offset_commit(request.group_id, topic.name, asked.partition_index, value))
                partitions.append(OffsetCommitResponsePartition(partition_index=asked.partition_index, error_code=code))
            topics.append(OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=partitions))
        out.reply = OffsetCommitResponse(topics=topics)
        return out

    def _refuses(self, asked: OffsetCommitRequestPartition | TxnOffsetCommitRequestPartition) -> ErrorCode:
        """Return the error of metadata that are too long; Java finds a string as long as it has UTF-16 units."""
        metadata, limit = asked.committed_metadata or "", self._config.offset_metadata_max_bytes
        if len(metadata) * 2 > limit and len(metadata) + sum(each > "\uffff" for each in metadata) > limit:
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        return ErrorCode.NONE

    def _validate_commit(
        self, request: OffsetCommitRequest, version: int, out: Outcome
    ) -> Callable[[bytes, int], None] | None:
        """Let a commit of the current generation pass, or one without a generation to a group without members.

        It counts as a heartbeat where a rebalance does not want to hear one of its own. In a consumer group each
        partition may have to be checked by what is returned.
        """
        generation, member_id = request.generation_id_or_member_epoch, request.member_id
        instance_id = request.group_instance_id
        group = self._groups.get(request.group_id)
        if isinstance(group, ConsumerGroup):
            return _validate_consumer_commit(group, member_id, instance_id, generation, version)
        _validate_classic_commit(group, request, version, out)
        return None

    def commit_in_transaction(
        self, request: TxnOffsetCommitRequest, guard: object, now_ms: int, most_bytes: int = NO_BOUND
    ) -> Outcome:
        """Handle a TxnOffsetCommit of partitions that exist; raises ApiError for all of them. See `commit`."""
        check = self._validate_in_transaction(request)
        producer = InTransaction(request.producer_id, request.producer_epoch, guard)
        out = Outcome(producer=producer if request.producer_id >= 0 else None)
        left = most_bytes - _LEAST_BYTES * sum(len(topic.partitions) for topic in request.topics)
        topics = []
        for topic in request.topics:
            partitions = []
            for asked in topic.partitions:
                if left < 0:
                    return _too_large(out)
                index, code = asked.partition_index, self._refuses(asked)
                if code is ErrorCode.NONE:
                    left -= len(topic.name) + len(asked.committed_metadata or "")
                    if check is not None:
                        check(topic.name, index)
                    out.records.append(offset_commit(request.group_id, topic.name, index, _value(asked, now_ms)))
                partitions.append(TxnOffsetCommitResponsePartition(partition_index=index, error_code=code))
            topics.append(TxnOffsetCommitResponseTopic(name=topic.name, partitions=partitions))
        out.reply = TxnOffsetCommitResponse(topics=topics)
        return out

    def _validate_in_transaction(self, request: TxnOffsetCommitRequest) -> Callable[[str, int], None] | None:
        """Let a member of the current generation pass, and whoever names no member at all (before KIP-447).

        Unlike a plain commit this one is let through while a rebalance completes, and counts as no heartbeat. In a
        consumer group each partition may have to be checked by what is returned; a stale epoch is ILLEGAL_GENERATION,
        which is what transactional producers know.
        """
        group = self._groups.get(request.group_id)
        if not isinstance(group, ConsumerGroup):
            _validate_classic_in_transaction(group, request)
            return None
        with _stale_as_illegal():
            check = _validate_consumer_commit(
                group, request.member_id, request.group_instance_id, request.generation_id, 0, transactional=True
            )
        if check is None:
            return None

        def checked(topic: str, partition: int) -> None:
            topic_id = self._topics.id_of(topic)
            if topic_id is None:
                raise ApiError(ErrorCode.ILLEGAL_GENERATION)
            with _stale_as_illegal():
                check(topic_id, partition)

        return checked


def _too_large(out: Outcome) -> Outcome:
    """Let an outcome count as an append that was too large; what else it does stays."""
    out.records.clear()
    out.refused = ErrorCode.MESSAGE_TOO_LARGE
    return out


def _validate_classic_commit(
    group: ClassicGroup | None, request: OffsetCommitRequest, version: int, out: Outcome
) -> None:
    generation, member_id = request.generation_id_or_member_epoch, request.member_id
    instance_id = request.group_instance_id
    if group is None:
        if generation >= 0:
            raise ApiError(
                ErrorCode.GROUP_ID_NOT_FOUND if version >= GROUP_ID_NOT_FOUND_SINCE else ErrorCode.ILLEGAL_GENERATION
            )
        return  # replaying the record creates a simple group
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


def _validate_classic_in_transaction(group: ClassicGroup | None, request: TxnOffsetCommitRequest) -> None:
    generation, member_id, instance_id = request.generation_id, request.member_id, request.group_instance_id
    if group is None:
        if generation >= 0:
            raise ApiError(ErrorCode.ILLEGAL_GENERATION)
        return
    if generation < 0 and (group.state is EMPTY or (not member_id and instance_id is None)):
        return
    group.validate_member(member_id, instance_id)
    if generation != group.generation:
        raise ApiError(ErrorCode.ILLEGAL_GENERATION)


def _validate_consumer_commit(
    group: ConsumerGroup,
    member_id: str,
    instance_id: str | None,
    epoch: int,
    version: int,
    *,
    transactional: bool = False,
) -> Callable[[bytes, int], None] | None:
    """Let a commit pass, or raise ApiError. Returns what checks each partition where the epoch is an older one.

    An older epoch is good for the partitions that the member has had since then (KIP-1251).
    """
    if epoch < 0 and not group.members:
        return None
    if transactional and epoch == -1 and not member_id and instance_id is None:
        return None
    member = group.member(member_id)
    is_classic = member.classic is not None
    if not transactional and not is_classic and version < 9:
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
    if epoch == member.member_epoch:
        return None
    stale = ErrorCode.ILLEGAL_GENERATION if is_classic else ErrorCode.STALE_MEMBER_EPOCH
    if epoch > member.member_epoch:
        raise ApiError(stale)

    def check(topic_id: bytes, partition: int) -> None:
        since = member.epoch_of(topic_id, partition)
        if since is None or epoch < since:
            raise ApiError(stale)

    return check


@contextmanager
def _stale_as_illegal() -> Iterator[None]:
    try:
        yield
    except ApiError as error:
        if error.code is not ErrorCode.STALE_MEMBER_EPOCH:
            raise
        raise ApiError(ErrorCode.ILLEGAL_GENERATION) from error


def _value(asked: OffsetCommitRequestPartition | TxnOffsetCommitRequestPartition, now_ms: int) -> OffsetCommitValue:
    return OffsetCommitValue(
        offset=asked.committed_offset,
        leader_epoch=max(asked.committed_leader_epoch, -1),
        metadata=asked.committed_metadata or "",
        commit_timestamp=now_ms,
    )
