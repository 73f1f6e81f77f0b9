"""The APIs that store and delete positions of groups.

OffsetCommit (key 8), versions 2-10.

Behaviour: stores a group's positions if a member of the current generation sends them. While the group has no members,
any client may send them. The handler returns the errors of missing topics and partitions; the coordinator handles the
other partitions.

Version notes: v2-4 have a retention time; v9 returns GROUP_ID_NOT_FOUND instead of ILLEGAL_GENERATION; v10 names topics
by id (UNKNOWN_TOPIC_ID).

TxnOffsetCommit (key 28), versions 0-6: add a group's positions to a transaction.

Behaviour: the positions are pending until the transaction ends, and are then committed or dropped. Members of the
current generation may commit. Clients that send no member id may also commit.

Version notes: v3 has the member (KIP-447). Up to v4, AddOffsetsToTxn must have added the group to the transaction;
since v5, this request adds the group (KIP-890). Before v2 the error is COORDINATOR_NOT_AVAILABLE instead of
COORDINATOR_LOAD_IN_PROGRESS, which old producers do not expect. v6 names topics by id (UNKNOWN_TOPIC_ID), and returns
GROUP_ID_NOT_FOUND and STALE_MEMBER_EPOCH instead of ILLEGAL_GENERATION (KIP-1319).

OffsetDelete (key 47), version 0.

Behaviour: deletes positions of a group in topics that the group does not consume (GROUP_SUBSCRIBED_TO_TOPIC otherwise).
For a group that has members and is not a consumer group, the complete request fails with NON_EMPTY_GROUP (KIP-496).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from kbroker.cluster_state import OFFSETS_TOPIC, ClusterState
from kbroker.coordination.shard import answerable
from kbroker.handlers.mirrored_errors import mirrored
from kbroker.handlers.registry import RequestContext, handles
from kbroker.handlers.transaction_verification import Client, Question, verify
from kbroker.long_work import awaited, turn
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from kbroker.txn.shard import Identity

TOPIC_IDS_SINCE = 10
TXN_TOPIC_IDS_SINCE = 6
_EXPECTS_LOADING_SINCE = 2
_KNOWS_ABORTABLE_SINCE = 4
_ADDS_IMPLICITLY_SINCE = 5
_NO_SEQUENCE = -1
_Response = TypeVar("_Response", bound=OffsetCommitResponse | TxnOffsetCommitResponse | OffsetDeleteResponse)

_commit_failed = mirrored(OffsetCommitResponse)
_txn_commit_failed = mirrored(TxnOffsetCommitResponse)


class _Refused(Generic[_Response]):
    """The errors of one request for missing topics and partitions, grouped by topic name or topic id."""

    def __init__(
        self, response: type[_Response], topic: type[Any], partition: type[Any], *, by_id: bool = False
    ) -> None:
        self._response = response
        self._topic = topic
        self._partition = partition
        self._by_id = by_id
        self._topics: dict[str | bytes, Any] = {}

    async def existing(self, state: ClusterState, topics: Sequence[Any]) -> list[Any]:
        """Return the topics with their existing partitions, and add errors for missing partitions."""
        known = []
        for topic in topics:
            code = _resolve(state, topic, self._by_id)
            count = 0 if code else len(state.topics[topic.name].partitions)
            existing, wrong = [], []
            for partition in topic.partitions:
                if 0 <= partition.partition_index < count:
                    existing.append(partition)
                else:
                    error = code or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    wrong.append(self._partition(partition_index=partition.partition_index, error_code=error))
                await turn
            if wrong:
                ids = {"topic_id": topic.topic_id} if self._by_id else {}
                self._of(topic, self._topic(name=topic.name, **ids)).partitions += wrong
            if existing:
                topic.partitions = existing
                known.append(topic)
            await turn
        return known

    def _of(self, topic: Any, answer: Any) -> Any:
        return self._topics.setdefault(topic.topic_id if self._by_id else topic.name, answer)

    async def with_decided(self, decided: _Response) -> _Response:
        """Return the response: first these errors, then the coordinator's results."""
        if not self._topics:
            return decided
        for topic in decided.topics:
            answered = self._of(topic, topic)
            if answered is not topic:
                answered.partitions += topic.partitions
            await turn
        return self._response(topics=list(self._topics.values()))


def _resolve(state: ClusterState, topic: Any, by_id: bool) -> ErrorCode:
    """Complete the topic: add the name if the request contains the id, or the id if the request contains the name."""
    if by_id:
        topic.name = state.topic_names.get(topic.topic_id, "")
        return ErrorCode.NONE if topic.name else ErrorCode.UNKNOWN_TOPIC_ID
    held = state.topics.get(topic.name)
    if held is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if isinstance(topic, (OffsetCommitRequestTopic, TxnOffsetCommitRequestTopic)):
        topic.topic_id = held.topic_id
    return ErrorCode.NONE


def _are_still_there(
    asked: Sequence[OffsetCommitRequestTopic | TxnOffsetCommitRequestTopic], before: ClusterState, now: ClusterState
) -> bool:
    """Whether all requested topics still exist. The offset of a deleted topic must not be stored."""
    if now.topics is before.topics:
        return True
    return all(
        (topic := now.topics.get(each.name)) is not None and topic.topic_id == before.topics[each.name].topic_id
        for each in asked
    )


@handles(OffsetCommitRequest, OffsetCommitResponse, "2-10", _commit_failed)
async def offset_commit(ctx: RequestContext, request: OffsetCommitRequest) -> OffsetCommitResponse:
    """Store a group's positions."""
    by_id = ctx.version >= TOPIC_IDS_SINCE
    groups, controller = ctx.services.groups, ctx.services.controller
    refused = _Refused(OffsetCommitResponse, OffsetCommitResponseTopic, OffsetCommitResponsePartition, by_id=by_id)
    while True:
        state = controller.state
        request.topics = await refused.existing(state, request.topics)
        if not request.topics:
            return await refused.with_decided(OffsetCommitResponse())
        try:
            commit = await groups.build_commit(request)
        except ApiError as err:
            decided: OffsetCommitResponse | ErrorCode = answerable(err.code)
            break
        if commit.too_large or _are_still_there(request.topics, state, controller.state):
            decided = await awaited(groups.commit_offsets(request, commit, version=ctx.version))
            break
    if not isinstance(decided, OffsetCommitResponse):
        decided = await _commit_failed(request, decided, None)
    return await refused.with_decided(decided)


@handles(TxnOffsetCommitRequest, TxnOffsetCommitResponse, "0-6", _txn_commit_failed)
async def txn_offset_commit(ctx: RequestContext, request: TxnOffsetCommitRequest) -> TxnOffsetCommitResponse:
    """Store positions within a transaction."""
    by_id = ctx.version >= TXN_TOPIC_IDS_SINCE
    answers = TxnOffsetCommitResponse, TxnOffsetCommitResponseTopic, TxnOffsetCommitResponsePartition
    refused = _Refused(*answers, by_id=by_id)
    try:
        decided = await _decided(ctx, request, refused)
    except ApiError as err:
        decided = answerable(err.code)
    if not isinstance(decided, TxnOffsetCommitResponse):
        if ctx.version < _EXPECTS_LOADING_SINCE and decided == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            decided = ErrorCode.COORDINATOR_NOT_AVAILABLE
        decided = await _txn_commit_failed(request, decided, None)
    return await refused.with_decided(decided)


async def _decided(
    ctx: RequestContext, request: TxnOffsetCommitRequest, refused: _Refused[TxnOffsetCommitResponse]
) -> TxnOffsetCommitResponse | ErrorCode:
    """Commit the offsets of existing partitions, and add errors for missing partitions to `refused`.

    Raises ApiError.
    """
    groups, services = ctx.services.groups, ctx.services
    while True:
        state = services.controller.state
        request.topics = await refused.existing(state, request.topics)
        if not request.topics:
            return TxnOffsetCommitResponse()
        if not request.group_id:
            return ErrorCode.INVALID_GROUP_ID
        built = await groups.build_commit_in_transaction(request)
        if built.too_large or _are_still_there(request.topics, state, services.controller.state):
            break
    index = groups.partition_for(request.group_id)
    partition = services.replicas.leader(OFFSETS_TOPIC, index)
    producer = Identity(request.producer_id, request.producer_epoch)
    question = Question(partition, _NO_SEQUENCE)
    verdicts = await awaited(verify(services, request.transactional_id, producer, [question], _client(ctx.version)))
    code, guard = verdicts[OFFSETS_TOPIC, index]
    if code:
        return answerable(code)
    return await awaited(groups.commit_offsets_in_transaction(request, guard, built, version=ctx.version))


def _client(version: int) -> Client:
    if version >= _ADDS_IMPLICITLY_SINCE:
        return Client.ADDS_IMPLICITLY
    return Client.KNOWS_ABORTABLE if version >= _KNOWS_ABORTABLE_SINCE else Client.KNOWS_LITTLE


@handles(OffsetDeleteRequest, OffsetDeleteResponse, "0")
async def offset_delete(ctx: RequestContext, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
    """Delete a group's positions."""
    refused = _Refused(OffsetDeleteResponse, OffsetDeleteResponseTopic, OffsetDeleteResponsePartition)
    request.topics = await refused.existing(ctx.services.controller.state, request.topics)
    response = await ctx.services.groups.delete_offsets(request)
    return response if response.error_code else await refused.with_decided(response)
