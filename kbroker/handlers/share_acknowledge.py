"""ShareAcknowledge (key 79), versions 1-2: acknowledge acquired records of a share group (KIP-932).

Owns the check of the session epoch, and the end of the session at its last epoch. The acknowledgements themselves are
in share_acknowledgements.py.
"""

from __future__ import annotations

from kbroker.handlers.leader_hints import LeaderHints
from kbroker.handlers.registry import RequestContext, handles
from kbroker.handlers.services import has_share_groups
from kbroker.handlers.share_acknowledgements import MayRead, acknowledge, delivery_of
from kbroker.long_work import turn
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.share_acknowledge import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareAcknowledgeTopicResponse,
)
from kbroker.share_partition.sessions import FINAL_EPOCH, INITIAL_EPOCH


def _on_error(_request: ShareAcknowledgeRequest, code: int, _message: str | None) -> ShareAcknowledgeResponse:
    return ShareAcknowledgeResponse(error_code=code)


@handles(
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    "1-2",
    _on_error,
    advertised=has_share_groups,
)
async def share_acknowledge(
    ctx: RequestContext, request: ShareAcknowledgeRequest, may_read: MayRead = lambda _topic: True
) -> ShareAcknowledgeResponse:
    """Store the acknowledgements, then respond. A request with the last epoch ends the session."""
    share = delivery_of(ctx, request)
    assert request.group_id is not None
    assert request.member_id is not None
    if request.share_session_epoch == INITIAL_EPOCH:
        raise ApiError(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
    session = share.sessions.get(request.group_id, request.member_id)
    if request.share_session_epoch != FINAL_EPOCH:
        share.sessions.proceed(request.group_id, request.member_id, request.share_session_epoch)
    results = await acknowledge(ctx, share, request, may_read)
    if request.share_session_epoch == FINAL_EPOCH:
        share.end_session(session)
    answer = ShareAcknowledgeResponse(
        acquisition_lock_timeout_ms=share.settings.limits(request.group_id).lock_ms, responses=[]
    )
    topics: dict[bytes, ShareAcknowledgeTopicResponse] = {}
    hints = LeaderHints(ctx)
    for (topic_id, index), (code, message) in results.items():
        leader = None
        if code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH):
            leader = hints.leader(topic_id, "", index) or (-1, -1)
        topic = topics.get(topic_id)
        if topic is None:
            topic = topics[topic_id] = ShareAcknowledgeTopicResponse(topic_id, [])
            answer.responses.append(topic)
        topic.partitions.append(PartitionData(index, code, message, LeaderIdAndEpoch(*(leader or (0, 0)))))
        await turn
    answer.node_endpoints = [NodeEndpoint(node.node_id, node.host, node.port, node.rack) for node in hints.nodes]
    return answer
