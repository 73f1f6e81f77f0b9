"""ShareFetch (key 78), versions 1-2: acquire records for a member of a share group, and acknowledge earlier records.

Owns the request's session, the order of its checks, and the answer (KafkaApis.handleShareFetchRequest, KIP-932).
Acknowledgements (share_acknowledgements.py) take effect before records are acquired. share_fetch_attempt.py reads and
waits. As in Apache Kafka, only the session is checked, not the membership in the group.
"""

from __future__ import annotations

from typing import Final

from kbroker.handlers.leader_hints import LeaderHints
from kbroker.handlers.registry import RequestContext, handles
from kbroker.handlers.services import has_share_groups
from kbroker.handlers.share_acknowledgements import MayRead, Result, acknowledge, delivery_of
from kbroker.handlers.share_fetch_attempt import ShareFetchAttempt, empty
from kbroker.long_work import turn
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.share_fetch import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
    ShareFetchableTopicResponse,
    ShareFetchRequest,
    ShareFetchResponse,
)
from kbroker.share_partition.delivery import ShareDelivery
from kbroker.share_partition.sessions import FINAL_EPOCH, INITIAL_EPOCH, PartitionKey, ShareSession

_FIRST_RENEW_VERSION: Final = 2
_ACQUIRE_MODES: Final = (0, 1)
_BYTES_ALWAYS, _BYTES_OF_PARTITION, _BYTES_OF_ACQUIRED = 20, 50, 19
"""The sizes in bytes of a response without records, of each partition in it, and of each range of acquired records."""


def _on_error(_request: ShareFetchRequest, code: int, _message: str | None) -> ShareFetchResponse:
    return ShareFetchResponse(error_code=code)


@handles(
    ShareFetchRequest,
    ShareFetchResponse,
    "1-2",
    _on_error,
    advertised=has_share_groups,
)
async def share_fetch(
    ctx: RequestContext, request: ShareFetchRequest, may_read: MayRead = lambda _topic: True
) -> ShareFetchResponse:
    """Apply acknowledgements, then acquire records, with or without a wait. The last epoch ends the session."""
    share = delivery_of(ctx, request)
    assert request.group_id is not None
    has_acknowledgements = await _has_acknowledgements(request)
    is_renewal = ctx.version >= _FIRST_RENEW_VERSION and request.is_renew_ack
    if is_renewal and (request.max_bytes or request.min_bytes or request.max_records or request.max_wait_ms):
        raise ApiError(ErrorCode.INVALID_REQUEST)
    session = await _session_of(ctx, share, request, has_acknowledgements=has_acknowledgements)
    is_final = request.share_session_epoch == FINAL_EPOCH
    acknowledged: dict[PartitionKey, Result] = {}
    if has_acknowledgements:
        acknowledged = await acknowledge(ctx, share, request, may_read)
    answers: dict[PartitionKey, PartitionData] = {}
    if not is_final and not is_renewal:
        answers = await _fetch(ctx, share, request, session, may_read)
    if request.share_session_epoch not in (INITIAL_EPOCH, FINAL_EPOCH):
        answers = await _told(session, answers)
    for key, (code, message) in acknowledged.items():
        answer = answers.setdefault(key, empty(key[1]))
        answer.acknowledge_error_code, answer.acknowledge_error_message = code, message
        await turn
    if is_final:
        share.end_session(session)
    return await _response(ctx, share.settings.limits(request.group_id).lock_ms, answers)


async def _has_acknowledgements(request: ShareFetchRequest) -> bool:
    for topic in request.topics:
        for partition in topic.partitions:
            if partition.acknowledgement_batches:
                return True
            await turn
        await turn
    return False


async def _session_of(
    ctx: RequestContext, share: ShareDelivery, request: ShareFetchRequest, *, has_acknowledgements: bool
) -> ShareSession:
    """Return the request's session, after adding and removing the request's partitions. Raises ApiError."""
    assert request.group_id is not None
    assert request.member_id is not None
    group, member, epoch = request.group_id, request.member_id, request.share_session_epoch
    if epoch == FINAL_EPOCH:
        return share.sessions.get(group, member)
    if epoch == INITIAL_EPOCH:
        if has_acknowledgements:
            raise ApiError(ErrorCode.INVALID_REQUEST)
        try:
            session = share.open_session(group, member, ctx)
        except ApiError:
            await share.pause(max(request.max_wait_ms, 0))  # without this wait the client would retry immediately
            raise
    else:
        session = share.sessions.proceed(group, member, epoch)
    try:
        for topic in request.topics:
            for partition in topic.partitions:
                key = topic.topic_id, partition.partition_index
                share.sessions.take(session, key, is_told=epoch == INITIAL_EPOCH)
                await turn
            await turn
    except ApiError:
        share.end_session(session)
        raise
    for forgotten in request.forgotten_topics_data if epoch != INITIAL_EPOCH else ():
        for index in forgotten.partitions:
            share.sessions.leave_out(session, (forgotten.topic_id, index))
            await turn
        await turn
    return session


async def _fetch(
    ctx: RequestContext, share: ShareDelivery, request: ShareFetchRequest, session: ShareSession, may_read: MayRead
) -> dict[PartitionKey, PartitionData]:
    """Acquire records of the session's partitions. Return the answers for these partitions."""
    answers: dict[PartitionKey, PartitionData] = {}
    wanted: list[tuple[PartitionKey, str]] = []
    state = ctx.services.controller.state
    for key in list(session.partitions):
        name = state.topic_names.get(key[0])
        if name is None:
            answers[key] = empty(key[1], ErrorCode.UNKNOWN_TOPIC_ID)
        elif not may_read(name):
            answers[key] = empty(key[1], ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        elif state.partition(name, key[1]) is None:
            answers[key] = empty(key[1], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        else:
            wanted.append((key, name))
        await turn
    if not wanted or not request.max_records or not request.max_bytes:
        return answers
    if request.share_acquire_mode not in _ACQUIRE_MODES:
        raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR)
    # with this order, each partition is the first one from time to time
    begin = max(request.share_session_epoch, 0) % len(wanted)
    attempt = ShareFetchAttempt(ctx, share, request, session, wanted[begin:] + wanted[:begin])
    await attempt.run()
    return attempt.answers | answers


async def _told(session: ShareSession, answers: dict[PartitionKey, PartitionData]) -> dict[PartitionKey, PartitionData]:
    """Return the answers that the response in a session must contain."""
    told = {}
    for key, answer in answers.items():
        if session.must_tell(key, has_records=bool(answer.records), has_error=bool(answer.error_code)):
            told[key] = answer
        await turn
    return told


async def _response(
    ctx: RequestContext, lock_ms: int, answers: dict[PartitionKey, PartitionData]
) -> ShareFetchResponse:
    topics: dict[bytes, ShareFetchableTopicResponse] = {}
    hints, size = LeaderHints(ctx), _BYTES_ALWAYS
    for (topic_id, index), answer in answers.items():
        if answer.error_code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH):
            answer.current_leader = LeaderIdAndEpoch(*(hints.leader(topic_id, "", index) or (-1, -1)))
        topic = topics.get(topic_id)
        if topic is None:
            topic = topics[topic_id] = ShareFetchableTopicResponse(topic_id, [])
        topic.partitions.append(answer)
        size += _BYTES_OF_PARTITION + _BYTES_OF_ACQUIRED * len(answer.acquired_records) + len(answer.records or b"")
        await turn
    metering = ctx.metering
    if metering is not None and metering.running:
        metering.settle_fetch(size, is_sent=True)
    return ShareFetchResponse(
        acquisition_lock_timeout_ms=lock_ms,
        responses=list(topics.values()),
        node_endpoints=[NodeEndpoint(node.node_id, node.host, node.port, node.rack) for node in hints.nodes],
    )
