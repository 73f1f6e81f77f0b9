"""OffsetCommit and TxnOffsetCommit: the permission to commit, and the records of a commit.

Owns the checks of generations and member epochs, for groups of all protocols. It does not change offsets itself: the
replay of the records does (offsets.py). commit_building.py builds the records in advance, because there may be many.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from kbroker.coordination.shard import InTransaction, Outcome
from kbroker.group_coordinator.classic.rebalance import schedule_session
from kbroker.group_coordinator.commit_building import Commit
from kbroker.group_coordinator.config import GroupConfig
from kbroker.group_coordinator.groups.classic_group import COMPLETING, EMPTY, PREPARING, STABLE, ClassicGroup
from kbroker.group_coordinator.groups.consumer_group import ConsumerGroup
from kbroker.group_coordinator.groups.store import Groups
from kbroker.group_coordinator.groups.streams_group import StreamsGroup
from kbroker.group_coordinator.offsets import Offsets
from kbroker.group_coordinator.topics import Topics
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.group_offsets import OffsetCommitRequest, TxnOffsetCommitRequest

GROUP_ID_NOT_FOUND_SINCE = 9
TXN_KNOWS_EPOCHS_SINCE = 6
"""The first version of TxnOffsetCommit whose clients understand GROUP_ID_NOT_FOUND and STALE_MEMBER_EPOCH."""
_NEWER_ERRORS = (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.STALE_MEMBER_EPOCH)
Check = Callable[[str, bytes, int], None]
"""Checks a commit to a partition, given the topic's name and id. Raises ApiError."""


class OffsetCommits:
    """Commits to the groups of a shard (shard.py)."""

    def __init__(self, groups: Groups, offsets: Offsets, topics: Topics, config: GroupConfig) -> None:
        self._groups = groups
        self._offsets = offsets
        self._topics = topics
        self._config = config

    def commit(self, request: OffsetCommitRequest, version: int, commit: Commit) -> Outcome:
        """Handle an OffsetCommit of existing partitions. Raises ApiError for all partitions."""
        out = Outcome()
        check = self._validate_commit(request, version, out)
        if check is not None:
            for topic, topic_id, index in commit.places:
                check(topic, topic_id, index)
        return self._write(commit, out)

    def _write(self, commit: Commit, out: Outcome) -> Outcome:
        """Add a commit to an outcome. A commit that is too large counts as a failed append."""
        if commit.too_large:
            out.refused = ErrorCode.MESSAGE_TOO_LARGE
            return out
        out.records, out.reply = commit.records, commit.reply
        if commit.encoded is not None:
            out.encoded, out.apply = commit.encoded, partial(self._apply, commit)
        return out

    def _apply(self, commit: Commit, offset: int, producer_id: int) -> None:
        """Apply a long commit as the replay of its records would."""
        group_id, put = commit.group_id, self._offsets.put
        if self._groups.get(group_id) is None:
            self._groups.put(ClassicGroup(group_id, commit.now_ms))
        for at, ((topic, _, index), value) in enumerate(zip(commit.places, commit.values, strict=True), offset):
            put(at, producer_id, group_id, topic, index, value)

    def _validate_commit(self, request: OffsetCommitRequest, version: int, out: Outcome) -> Check | None:
        """Accept a commit of the current generation, or a commit without a generation if the group has no members.

        The commit counts as a heartbeat, except while a rebalance expects a real heartbeat. For a consumer or streams
        group, the result can be a function, which the caller must then call for each partition.
        """
        generation, member_id = request.generation_id_or_member_epoch, request.member_id
        instance_id = request.group_instance_id
        group = self._groups.no_share(request.group_id)
        if isinstance(group, ConsumerGroup):
            return _validate_consumer_commit(group, member_id, instance_id, generation, version)
        if isinstance(group, StreamsGroup):
            return _validate_streams_commit(group, member_id, instance_id, generation, version)
        _validate_classic_commit(group, request, version, out)
        return None

    def commit_in_transaction(
        self, request: TxnOffsetCommitRequest, version: int, guard: object, commit: Commit
    ) -> Outcome:
        """Handle a TxnOffsetCommit of existing partitions. Raises ApiError for all partitions. See `commit`."""
        try:
            check = self._validate_in_transaction(request)
            if check is not None:
                for topic, topic_id, index in commit.places:
                    check(topic, topic_id, index)
        except ApiError as error:
            if version >= TXN_KNOWS_EPOCHS_SINCE or error.code not in _NEWER_ERRORS:
                raise
            raise ApiError(ErrorCode.ILLEGAL_GENERATION) from error
        producer = InTransaction(request.producer_id, request.producer_epoch, guard)
        return self._write(commit, Outcome(producer=producer if request.producer_id >= 0 else None))

    def _validate_in_transaction(self, request: TxnOffsetCommitRequest) -> Check | None:
        """Accept a member of the current generation, and a request without any member (before KIP-447).

        Unlike a plain commit, a transactional commit is accepted while a rebalance completes, and does not count as a
        heartbeat. For a consumer or streams group, the result can be a function, which the caller must then call for
        each partition.
        """
        group = self._groups.no_share(request.group_id)
        member = request.member_id, request.group_instance_id, request.generation_id_or_member_epoch
        if isinstance(group, ConsumerGroup):
            return _validate_consumer_commit(group, *member, 0, transactional=True)
        if isinstance(group, StreamsGroup):
            return _validate_streams_commit(group, *member, 0, transactional=True)
        _validate_classic_in_transaction(group, request)
        return None


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
        return  # the replay of the commit's record creates a simple group
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
    generation, member_id = request.generation_id_or_member_epoch, request.member_id
    instance_id = request.group_instance_id
    if group is None:
        if generation >= 0:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND)
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
) -> Check | None:
    """Accept a commit, or raise ApiError. For an older epoch, return a function that checks each partition.

    An older epoch is valid only for the partitions that the member has owned since that epoch (KIP-1251).
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

    def check(_topic: str, topic_id: bytes, partition: int) -> None:
        since = member.epoch_of(topic_id, partition)
        if since is None or epoch < since:
            raise ApiError(stale)

    return check


def _validate_streams_commit(
    group: StreamsGroup,
    member_id: str,
    instance_id: str | None,
    epoch: int,
    version: int,
    *,
    transactional: bool = False,
) -> Check | None:
    """Accept a commit, or raise ApiError. For an older epoch, return a function that checks each partition's task."""
    if epoch < 0 and not group.members:
        return None
    if transactional and epoch == -1 and not member_id and instance_id is None:
        return None
    member = group.member(member_id)
    if not transactional and version < 9:
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
    if epoch == member.member_epoch:
        return None
    if epoch > member.member_epoch or group.topology is None:
        raise ApiError(ErrorCode.STALE_MEMBER_EPOCH)
    by_source = group.topology.by_source

    def check(topic: str, _topic_id: bytes, partition: int) -> None:
        subtopology = by_source.get(topic)
        since = None if subtopology is None else member.epoch_of(subtopology, partition)
        if since is None or epoch < since:
            raise ApiError(ErrorCode.STALE_MEMBER_EPOCH)

    return check
