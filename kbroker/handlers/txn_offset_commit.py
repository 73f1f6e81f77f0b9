"""TxnOffsetCommit (key 28), versions 0-5: add a group's positions to a transaction.

Behaviour: they are pending until the transaction ends, and are then valid or dropped. Members of the current generation
may commit, and so may clients that name no member at all.
Version notes: v3 has the member (KIP-447); up to v4 AddOffsetsToTxn must have added the group to the transaction, since
v5 this request does so (KIP-890); before v2 COORDINATOR_NOT_AVAILABLE stands for COORDINATOR_LOAD_IN_PROGRESS, which
old producers do not expect.
"""

from __future__ import annotations

from kbroker.cluster_state import OFFSETS_TOPIC, ClusterState
from kbroker.coordination.outcome import answerable
from kbroker.handlers.mirrored_errors import mirrored
from kbroker.handlers.offset_commit import are_still_there
from kbroker.handlers.registry import RequestContext, handles
from kbroker.handlers.transaction_verification import Client, Question, verify
from kbroker.long_work import awaited, turn
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.group_offsets import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from kbroker.txn.shard import Identity

_EXPECTS_LOADING_SINCE = 2
_KNOWS_ABORTABLE_SINCE = 4
_ADDS_IMPLICITLY_SINCE = 5
_NO_SEQUENCE = -1


_Decided = TxnOffsetCommitResponse | ErrorCode


_failed = mirrored(TxnOffsetCommitResponse)


@handles(TxnOffsetCommitRequest, TxnOffsetCommitResponse, "0-5", _failed)
async def txn_offset_commit(ctx: RequestContext, request: TxnOffsetCommitRequest) -> TxnOffsetCommitResponse:
    """Store positions within a transaction."""
    refused: _Refused = {}
    try:
        decided = await _decided(ctx, request, refused)
    except ApiError as err:
        decided = answerable(err.code)
    return await _finished(request, decided, refused, ctx.version)


async def _decided(ctx: RequestContext, request: TxnOffsetCommitRequest, refused: _Refused) -> _Decided:
    """Commit the existing partitions, and add results for the others to `refused`. Raises ApiError."""
    version, groups, services = ctx.version, ctx.services.groups, ctx.services
    while True:
        state = services.controller.state
        await _refuse_unknown(state, request, refused)
        if not request.topics:
            return TxnOffsetCommitResponse()
        if not request.group_id:
            return ErrorCode.INVALID_GROUP_ID
        built = await groups.build_commit_in_transaction(request)
        if built.too_large or are_still_there(request.topics, state, services.controller.state):
            break
    index = groups.partition_for(request.group_id)
    partition = services.replicas.leader(OFFSETS_TOPIC, index)
    producer = Identity(request.producer_id, request.producer_epoch)
    question = Question(partition, _NO_SEQUENCE)
    verdicts = await awaited(verify(services, request.transactional_id, producer, [question], _client(version)))
    code, guard = verdicts[OFFSETS_TOPIC, index]
    if code:
        return answerable(code)
    return await awaited(groups.commit_offsets_in_transaction(request, guard, built))


def _client(version: int) -> Client:
    if version >= _ADDS_IMPLICITLY_SINCE:
        return Client.ADDS_IMPLICITLY
    return Client.KNOWS_ABORTABLE if version >= _KNOWS_ABORTABLE_SINCE else Client.KNOWS_LITTLE


_Refused = dict[str, TxnOffsetCommitResponseTopic]


async def _refuse_unknown(state: ClusterState, request: TxnOffsetCommitRequest, refused: _Refused) -> None:
    """Remove missing topics and partitions from a request, and add their results to `refused`."""
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    kept = []
    for topic in request.topics:
        existing, unknown = [], []
        for partition in topic.partitions:
            if state.partition(topic.name, partition.partition_index) is not None:
                existing.append(partition)
            else:
                unknown.append(TxnOffsetCommitResponsePartition(partition.partition_index, code))
            await turn
        if unknown:
            answer = refused.setdefault(topic.name, TxnOffsetCommitResponseTopic(name=topic.name))
            answer.partitions += unknown
        if existing:
            topic.partitions = existing
            kept.append(topic)
        await turn
    request.topics = kept


async def _finished(
    request: TxnOffsetCommitRequest, decided: _Decided, refused: _Refused, version: int
) -> TxnOffsetCommitResponse:
    """Return the response: the results that were refused here, then the coordinator's."""
    if not isinstance(decided, TxnOffsetCommitResponse):
        if version < _EXPECTS_LOADING_SINCE and decided == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            decided = ErrorCode.COORDINATOR_NOT_AVAILABLE
        decided = await _failed(request, decided, None)
    if not refused:
        return decided
    for topic in decided.topics:
        held = refused.setdefault(topic.name, topic)
        if held is not topic:
            held.partitions += topic.partitions
        await turn
    return TxnOffsetCommitResponse(topics=list(refused.values()))
