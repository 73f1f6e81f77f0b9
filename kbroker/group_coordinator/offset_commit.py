"""OffsetCommit and TxnOffsetCommit: who may commit, and the records of a commit.

Owns the checks of generations and member epochs, for groups of both protocols. It does not change offsets itself: the
replay of the records does (offsets.py). commit_building.py has built the records before, because there may be many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from kbroker.coordination.shard import InTransaction, Outcome
from kbroker.group_coordinator.classic.rebalance import schedule_session
from kbroker.group_coordinator.commit_building import Commit
from kbroker.group_coordinator.config import GroupConfig
from kbroker.group_coordinator.groups.classic_group import COMPLETING, EMPTY, PREPARING, STABLE, ClassicGroup
from kbroker.group_coordinator.groups.consumer_group import ConsumerGroup
from kbroker.group_coordinator.groups.store import Groups
from kbroker.group_coordinator.offsets import Offsets
from kbroker.group_coordinator.topics import Topics
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.group_offsets import OffsetCommitRequest, TxnOffsetCommitRequest

GROUP_ID_NOT_FOUND_SINCE = 9


class OffsetCommits:
    """Commits to the groups of a shard."""

    def __init__(self, groups: Groups, offsets: Offsets, topics: Topics, config: GroupConfig) -> None:
        self._groups = groups
        self._offsets = offsets
        self._topics = topics
        self._config = config

    def commit(self, request: OffsetCommitRequest, version: int, commit: Commit) -> Outcome:
        """Handle an OffsetCommit of existing partitions; raises ApiError for all of them."""
        out = Outcome()
        check = self._validate_commit(request, version, out)
        if check is not None:
            for _, topic_id, index in commit.places:
                check(topic_id, index)
        return self._write(commit, out)

    def _write(self, commit: Commit, out: Outcome) -> Outcome:
        """Add a commit to an outcome. One that is too large counts as a failed append."""
        if commit.too_large:
            out.refused = ErrorCode.MESSAGE_TOO_LARGE
            return out
        out.records, out.reply = commit.records, commit.reply
        if commit.encoded is not None:
            out.encoded, out.apply = commit.encoded, partial(self._apply, commit)
        return out

    def _apply(self, commit: Commit, offset: int, producer_id: int) -> None:
        """Apply a long commit like a replay of its records."""
        group_id, put = commit.group_id, self._offsets.put
        if self._groups.get(group_id) is None:
            self._groups.put(ClassicGroup(group_id, commit.now_ms))
        for at, ((topic, _, index), value) in enumerate(zip(commit.places, commit.values, strict=True), offset):
            put(at, producer_id, group_id, topic, index, value)

    def _validate_commit(
        self, request: OffsetCommitRequest, version: int, out: Outcome
    ) -> Callable[[bytes, int], None] | None:
        """Accept a commit of the current generation, or a commit without a generation if the group has no members.

        The commit counts as a heartbeat, except while a rebalance expects a real one. In a consumer group the returned
        function may have to check each partition.
        """
        generation, member_id = request.generation_id_or_member_epoch, request.member_id
        instance_id = request.group_instance_id
        group = self._groups.no_share(request.group_id)
        if isinstance(group, ConsumerGroup):
            return _validate_consumer_commit(group, member_id, instance_id, generation, version)
        _validate_classic_commit(group, request, version, out)
        return None

    def commit_in_transaction(self, request: TxnOffsetCommitRequest, guard: object, commit: Commit) -> Outcome:
        """Handle a TxnOffsetCommit of existing partitions; raises ApiError for all of them. See `commit`."""
        check = self._validate_in_transaction(request)
        if check is not None:
            for topic, _, index in commit.places:
                check(topic, index)
        producer = InTransaction(request.producer_id, request.producer_epoch, guard)
        return self._write(commit, Outcome(producer=producer if request.producer_id >= 0 else None))

    def _validate_in_transaction(self, request: TxnOffsetCommitRequest) -> Callable[[str, int], None] | None:
        """Accept a member of the current generation, and a request without any member (before KIP-447).

        Unlike a plain commit, a transactional one is accepted while a rebalance completes, and does not count as a
        heartbeat. In a consumer group the returned function may have to check each partition; the error of a stale
        epoch is ILLEGAL_GENERATION, which transactional producers know.
        """
        group = self._groups.no_share(request.group_id)
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
    """Accept a commit, or raise ApiError. For an older epoch, return a function that checks each partition.

    An older epoch is valid for the partitions that the member has owned since that epoch (KIP-1251).
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
