"""TxnOffsetCommit (key 28), versions 0-5: a group's positions become part of a transaction.

Behaviour: they are pending until the transaction ends, and then hold or are gone. Members of the current generation may
commit, and whoever names no member at all.
Version notes: v3 tells the member (KIP-447); up to v4 the transaction must have been told of the group by
AddOffsetsToTxn, since v5 that is done here (KIP-890); before v2 COORDINATOR_NOT_AVAILABLE stands for
COORDINATOR_LOAD_IN_PROGRESS, which old producers do not expect.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from kbroker.cluster_state import OFFSETS_TOPIC
from kbroker.coordination.client_errors import answerable
from kbroker.coordination.then import then
from kbroker.group_coordinator.coordinator import txn_commit_error
from kbroker.handlers.registry import RequestContext, handles
from kbroker.handlers.transaction_verification import Client, Question, Verdicts, verify
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.txn_offset_commit import (
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


def _failed(request: TxnOffsetCommitRequest, code: int, _message: str | None) -> TxnOffsetCommitResponse:
    return txn_commit_error(request, ErrorCode(code))


@handles(TxnOffsetCommitRequest, TxnOffsetCommitResponse, "0-5", _failed)
def txn_offset_commit(
    ctx: RequestContext, request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse | Awaitable[TxnOffsetCommitResponse]:
    """Store positions within a transaction."""
    refused = _refuse_unknown(ctx, request)
    finish = _finisher(ctx.version, refused)
    if not request.topics:
        return finish(TxnOffsetCommitResponse())
    if not request.group_id:
        return finish(txn_commit_error(request, ErrorCode.INVALID_GROUP_ID))
    groups, services = ctx.services.groups, ctx.services
    index = groups.partition_for(request.group_id)
    try:
        partition = services.replicas.leader(OFFSETS_TOPIC, index)
    except ApiError as err:
        return finish(txn_commit_error(request, answerable(err.code)))
    producer = Identity(request.producer_id, request.producer_epoch)
    question = Question(partition, _NO_SEQUENCE)
    verdicts = verify(services, request.transactional_id, producer, [question], _client(ctx.version))

    def commit(found: Verdicts) -> TxnOffsetCommitResponse | Awaitable[TxnOffsetCommitResponse]:
        code, guard = found[OFFSETS_TOPIC, index]
        if code:
            return finish(txn_commit_error(request, answerable(code)))
        return then(groups.commit_offsets_in_transaction(request, guard), finish)

    return commit(verdicts) if isinstance(verdicts, dict) else _later(verdicts, commit)


async def _later(
    verdicts: Awaitable[Verdicts],
    commit: Callable[[Verdicts], TxnOffsetCommitResponse | Awaitable[TxnOffsetCommitResponse]],
) -> TxnOffsetCommitResponse:
    answer = commit(await verdicts)
    return answer if isinstance(answer, TxnOffsetCommitResponse) else await answer


def _client(version: int) -> Client:
    if version >= _ADDS_IMPLICITLY_SINCE:
        return Client.ADDS_IMPLICITLY
    return Client.KNOWS_ABORTABLE if version >= _KNOWS_ABORTABLE_SINCE else Client.KNOWS_LITTLE


def _refuse_unknown(ctx: RequestContext, request: TxnOffsetCommitRequest) -> list[TxnOffsetCommitResponseTopic]:
    """Take what does not exist out of a request; return its answers."""
    state = ctx.services.controller.state
    refused, kept = [], []
    for topic in request.topics:
        unknown = [
            p.partition_index for p in topic.partitions if state.partition(topic.name, p.partition_index) is None
        ]
        if unknown:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            answers = [TxnOffsetCommitResponsePartition(partition_index=i, error_code=code) for i in unknown]
            refused.append(TxnOffsetCommitResponseTopic(name=topic.name, partitions=answers))
            topic.partitions = [p for p in topic.partitions if p.partition_index not in unknown]
        if topic.partitions:
            kept.append(topic)
    request.topics = kept
    return refused


def _finisher(
    version: int, refused: list[TxnOffsetCommitResponseTopic]
) -> Callable[[TxnOffsetCommitResponse], TxnOffsetCommitResponse]:
    def finish(response: TxnOffsetCommitResponse) -> TxnOffsetCommitResponse:
        if version < _EXPECTS_LOADING_SINCE:
            for topic in response.topics:
                for partition in topic.partitions:
                    if partition.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                        partition.error_code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        if refused:
            by_name = {topic.name: topic for topic in refused}
            for topic in response.topics:
                held = by_name.setdefault(topic.name, topic)
                if held is not topic:
                    held.partitions += topic.partitions
            response.topics = list(by_name.values())
        return response

    return finish
