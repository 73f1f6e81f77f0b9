"""FindCoordinator (key 10), versions 0-6.

Behaviour: each key belongs to a partition of an internal topic, whose leader is the coordinator. The topic is
`__consumer_offsets` for a group (key type 0), `__transaction_state` for a transactional id (1), and
`__share_group_state` for a share partition (2, v6, "group:topic id:partition"). The first request creates these topics.
Since v4 one request has several keys, and each result has its own error without a text. Without share groups
(share.version 0) share partitions have no coordinator: COORDINATOR_NOT_AVAILABLE, as in Kafka while their topic is
created.
"""

from __future__ import annotations

from kbroker.cluster_state import OFFSETS_TOPIC, SHARE_STATE_TOPIC, TRANSACTIONS_TOPIC
from kbroker.group_coordinator.coordinator import GroupCoordinator
from kbroker.handlers.registry import RequestContext, handles
from kbroker.handlers.services import has_share_groups
from kbroker.long_work import each, turn
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.groups import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from kbroker.protocol.wire import parse_uuid
from kbroker.share_coordinator.coordinator import ShareCoordinator
from kbroker.txn.coordinator import TransactionCoordinator

GROUP, TRANSACTION, SHARE = 0, 1, 2
BATCHED_SINCE = 4
SHARE_SINCE = 6

_TEXTS = {
    ErrorCode.NONE: "NONE",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "The coordinator is not available.",
    ErrorCode.INVALID_REQUEST: (
        "This most likely occurs because of a request being malformed by the client library or the message was sent to "
        "an incompatible broker. See the broker logs for more details."
    ),
}


async def _failed(request: FindCoordinatorRequest, code: int, message: str | None) -> FindCoordinatorResponse:
    text = message or _TEXTS.get(ErrorCode(code), ErrorCode(code).name)
    if not request.coordinator_keys:
        return FindCoordinatorResponse(error_code=code, error_message=text, node_id=-1, host="", port=-1)

    def fail(key: str) -> Coordinator:
        return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=code, error_message=text)

    return FindCoordinatorResponse(coordinators=await each(request.coordinator_keys, fail))


@handles(FindCoordinatorRequest, FindCoordinatorResponse, "0-6", _failed)
async def find_coordinator(ctx: RequestContext, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
    """Return the broker that coordinates each key. Create the coordinators' internal topic if it is missing."""
    if request.key_type not in (GROUP, TRANSACTION, SHARE):
        return await _failed(request, ErrorCode.INVALID_REQUEST, None)
    coordinator = await _asked(ctx, request)
    if coordinator is not None and not coordinator.ensure_topic():
        created = ctx.services.controller.auto_created(_TOPICS[request.key_type])
        if created is not None:
            await created
    return await _find_all(ctx, request)


_TOPICS = {GROUP: OFFSETS_TOPIC, TRANSACTION: TRANSACTIONS_TOPIC, SHARE: SHARE_STATE_TOPIC}


def _coordinator(
    ctx: RequestContext, key_type: int
) -> GroupCoordinator | TransactionCoordinator | ShareCoordinator | None:
    """Return the coordinator of a key type; None for share partitions if share groups are not enabled."""
    services = ctx.services
    if key_type == SHARE:
        return services.shares if has_share_groups(services) else None
    return services.groups if key_type == GROUP else services.transactions


async def _asked(
    ctx: RequestContext, request: FindCoordinatorRequest
) -> GroupCoordinator | TransactionCoordinator | ShareCoordinator | None:
    """Return the coordinator whose internal topic the request needs. Return None if the request has no valid key."""
    if request.key_type != SHARE:
        some = request.coordinator_keys or ctx.version < BATCHED_SINCE
        return _coordinator(ctx, request.key_type) if some else None
    if ctx.version >= SHARE_SINCE:
        for key in request.coordinator_keys:
            if _is_share_key(key):
                return _coordinator(ctx, SHARE)
            await turn
    return None


async def _find_all(ctx: RequestContext, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
    if ctx.version >= BATCHED_SINCE:
        found = await each(request.coordinator_keys, lambda key: _find(ctx, request.key_type, key))
        await _hosted(ctx, request.key_type)
        return FindCoordinatorResponse(coordinators=found)
    one = _find(ctx, request.key_type, request.key)
    await _hosted(ctx, request.key_type)
    return FindCoordinatorResponse(
        error_code=one.error_code,
        error_message=_TEXTS[ErrorCode(one.error_code)],
        node_id=one.node_id,
        host=one.host,
        port=one.port,
    )


async def _hosted(ctx: RequestContext, key_type: int) -> None:
    """Wait until this broker hosts its replicas of the new topic. The client's next request follows immediately."""
    if _coordinator(ctx, key_type) is not None:
        await ctx.services.replicas.hosted_of(_TOPICS[key_type])


def _find(ctx: RequestContext, key_type: int, key: str) -> Coordinator:
    absent = Coordinator(key=key, node_id=-1, host="", port=-1, error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
    if key_type == SHARE and (ctx.version < SHARE_SINCE or not _is_share_key(key)):
        absent.error_code = ErrorCode.INVALID_REQUEST
        return absent
    coordinator = _coordinator(ctx, key_type)
    if coordinator is None:
        return absent
    state = ctx.services.controller.state
    partition = state.partition(_TOPICS[key_type], coordinator.partition_for(key))
    leader = state.brokers.get(partition.leader) if partition is not None else None
    broker = leader.by(ctx.listener) if leader is not None else None
    if broker is None:
        return absent
    return Coordinator(key=key, node_id=broker.node_id, host=broker.host, port=broker.port)


def _is_share_key(key: str) -> bool:
    """Whether a key has the form group:topic id:partition."""
    parts = key.split(":")
    if len(parts) != 3 or not parts[0].strip():
        return False
    try:
        parse_uuid(parts[1])
        int(parts[2])
    except ValueError:
        return False
    return True
