"""The acknowledgements in ShareFetch and ShareAcknowledge requests, which mean the same in both.

Owns the checks of acknowledgements, in the order of Apache Kafka (KafkaApis.handleAcknowledgements), and the results by
partition. Serves no API itself. Decisions about records are made in share_partition/.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from kbroker.handlers.registry import RequestContext
from kbroker.handlers.services import has_share_groups
from kbroker.long_work import turn
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.share_acknowledge import ShareAcknowledgeRequest
from kbroker.protocol.messages.share_fetch import ShareFetchRequest
from kbroker.share_partition.delivery import ShareDelivery
from kbroker.share_partition.sessions import PartitionKey
from kbroker.share_partition.states import AckBatch, AcknowledgeType

MayRead: TypeAlias = Callable[[str], bool]
"""Whether the client may read a topic."""
_MOST_MEMBER_ID: Final = 36
_TYPES_AT_ONCE: Final = 4096


class Result(NamedTuple):
    """The result of the acknowledgements for one partition."""

    code: int = ErrorCode.NONE
    message: str | None = None


def delivery_of(ctx: RequestContext, request: ShareFetchRequest | ShareAcknowledgeRequest) -> ShareDelivery:
    """Return the broker's share partitions, for a request with a group and a member. Raises ApiError."""
    if not has_share_groups(ctx.services):
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
    if request.group_id is None or not request.member_id or len(request.member_id) > _MOST_MEMBER_ID:
        raise ApiError(ErrorCode.INVALID_REQUEST)
    return ctx.services.share


async def acknowledge(
    ctx: RequestContext,
    share: ShareDelivery,
    request: ShareFetchRequest | ShareAcknowledgeRequest,
    may_read: MayRead,
) -> dict[PartitionKey, Result]:
    """Check and apply a request's acknowledgements. Return the results once the acknowledgements are stored."""
    results: dict[PartitionKey, Result] = {}
    without: list[PartitionKey] = []
    waiting: dict[PartitionKey, asyncio.Future[ErrorCode]] = {}
    is_any = False
    state = ctx.services.controller.state
    for topic in request.topics:
        for partition in topic.partitions:
            await turn
            key = topic.topic_id, partition.partition_index
            name = state.topic_names.get(topic.topic_id)
            if name is None:
                results[key] = Result(ErrorCode.UNKNOWN_TOPIC_ID)
                continue
            batches = [
                AckBatch(batch.first_offset, batch.last_offset, batch.acknowledge_types)
                for batch in partition.acknowledgement_batches[:_TYPES_AT_ONCE]
            ]
            for batch in partition.acknowledgement_batches[_TYPES_AT_ONCE:]:
                batches.append(AckBatch(batch.first_offset, batch.last_offset, batch.acknowledge_types))
                await turn
            if not await _are_sound(batches, renews=ctx.version >= 2 and request.is_renew_ack, version=ctx.version):
                results[key] = Result(ErrorCode.INVALID_REQUEST)
            elif not may_read(name):
                results[key] = Result(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            elif state.partition(name, key[1]) is None:
                results[key] = Result(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            elif not batches:
                without.append(key)
            else:
                is_any = True
                results[key] = await _decide(share, request, key, batches, waiting)
        await turn
    for key, future in waiting.items():
        code = await future
        if code:
            results[key] = Result(code)
    for key in without if is_any else ():
        results[key] = Result()
        await turn
    return results


async def _decide(
    share: ShareDelivery,
    request: ShareFetchRequest | ShareAcknowledgeRequest,
    key: PartitionKey,
    batches: list[AckBatch],
    waiting: dict[PartitionKey, asyncio.Future[ErrorCode]],
) -> Result:
    """Apply the acknowledgements for one partition. Results that are not stored yet are added to `waiting`."""
    assert request.group_id is not None
    assert request.member_id is not None
    hosted = share.get(request.group_id, *key)
    if hosted is None:
        return Result(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    try:
        future = await hosted.acknowledge(request.member_id, batches)
    except ApiError as err:
        return Result(err.code, err.message)
    if future is not None:
        waiting[key] = future
    return Result()


async def _are_sound(batches: list[AckBatch], *, renews: bool, version: int) -> bool:
    """Whether batches are in order and have one type, or one type for each offset (validateAcknowledgementBatches)."""
    highest = AcknowledgeType.RENEW if version >= 2 else AcknowledgeType.REJECT
    before = -1
    for first, last, types in batches:
        if first > last or first < before or not types or (len(types) > 1 and last - first != len(types) - 1):
            return False
        for begin in range(0, len(types), _TYPES_AT_ONCE):
            some = types[begin : begin + _TYPES_AT_ONCE]
            if min(some) < 0 or max(some) > highest or (AcknowledgeType.RENEW in some and not renews):
                return False
            await turn
        before = last
        await turn
    return True
