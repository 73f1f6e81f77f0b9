"""The APIs of streams groups (KIP-1071): Kafka Streams applications with group.protocol=streams.

StreamsGroupHeartbeat (key 88), versions 0-1.

Behaviour: a member uses one request to join, heartbeat, give up tasks and leave. The response has the member's tasks if
they have changed, and the reasons for which the group cannot run (`status`). The broker creates the internal topics of
the topology, with the member's rights. If "streams" is missing from group.coordinator.rebalance.protocols, or the
feature streams.version is 0, the error is UNSUPPORTED_VERSION.

Version notes: v1 has a 64-bit acceptable recovery lag, and notifies a member of missing client tags.

StreamsGroupDescribe (key 89), versions 0-1.

Behaviour: returns state, topology, members and tasks of streams groups; other groups are GROUP_ID_NOT_FOUND.

Version notes: v1 has the assignor's name. The topology description of v1 is never stored, because this needs a plugin.

StreamsGroupTopologyDescriptionUpdate (key 93), version 0.

Behaviour: returns UNSUPPORTED_VERSION, like Apache Kafka without a plugin for these descriptions. No heartbeat response
requests a description.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kbroker.controller.features import STREAMS_VERSION
from kbroker.controller.topic_plans import MAX_PARTITIONS_PER_REQUEST
from kbroker.group_coordinator.streams.heartbeat import Sender
from kbroker.group_coordinator.topologies.configured_topology import StatusCode
from kbroker.group_coordinator.topologies.topology import topics_in
from kbroker.handlers.create_topics import check_room, plan_of
from kbroker.handlers.groups import described
from kbroker.handlers.mirrored_errors import mirrored
from kbroker.handlers.registry import RequestContext, handles
from kbroker.long_work import turn
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.streams_groups import (
    Status,
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    StreamsGroupTopologyDescriptionUpdateRequest,
    StreamsGroupTopologyDescriptionUpdateResponse,
    TopicInfo,
    Topology,
)
from kbroker.protocol.messages.topics import CreatableTopic, CreatableTopicConfig
from kbroker.topic_names import INTERNAL_TOPICS, topic_name_fault

MayCreate = Callable[[str], bool]
"""Whether the client may create a topic with this name."""
_CREATION_MS = 1_000
"""The time for which a heartbeat waits for the creation of internal topics in a cluster."""
_SHOWN = 3
_LONGEST_TEXT = 32_767
"""The maximum size in bytes of a string that clients can read.

Instead of sending a longer string, Kafka closes the connection.
"""


def _check_enabled(ctx: RequestContext) -> None:
    """Raise UNSUPPORTED_VERSION if streams groups are not enabled."""
    enabled = ctx.services.groups.config.streams.enabled
    if not enabled or ctx.services.controller.state.features.get(STREAMS_VERSION, 0) < 1:
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION)


@handles(StreamsGroupHeartbeatRequest, StreamsGroupHeartbeatResponse, "0-1")
async def streams_group_heartbeat(
    ctx: RequestContext, request: StreamsGroupHeartbeatRequest, *, may_create: MayCreate = lambda _topic: True
) -> StreamsGroupHeartbeatResponse:
    """Keep a member in its streams group, and create the missing topics of the group."""
    _check_enabled(ctx)
    if request.topology is not None:
        await _check_names(request.topology)
    sender = Sender(ctx.client_id or "", ctx.client_host, ctx.version)
    response, missing = await ctx.services.groups.streams_group_heartbeat(request, sender)
    if missing:
        refused = []
        for topic in missing:
            if not may_create(topic.name):
                refused.append(topic.name)
            await turn
        if refused:
            _add_detail(response, f"Unauthorized to CREATE on topics {', '.join(refused)}.")
        else:
            await _create(ctx, request.group_id, missing, response)
    for status in response.status or ():
        status.status_detail = _readable(status.status_detail)
    if response.error_message is not None:
        response.error_message = _readable(response.error_message)
    return response


def _readable(text: str) -> str:
    """Return a text, cut to a length that clients accept. A text with many or long names may be longer."""
    return text.encode()[:_LONGEST_TEXT].decode(errors="ignore")


async def _check_names(topology: Topology) -> None:
    """Raise STREAMS_INVALID_TOPOLOGY for the cluster's internal topics, and for names that no topic can have."""
    internal: dict[str, None] = {}
    invalid: dict[str, None] = {}
    for name in await topics_in(topology):
        if name in INTERNAL_TOPICS:
            internal[name] = None
        elif topic_name_fault(name) is not None:
            invalid[name] = None
        await turn
    if internal:
        text = f"Use of Kafka internal topics {','.join(internal)} in a Kafka Streams topology is prohibited."
        raise ApiError(ErrorCode.STREAMS_INVALID_TOPOLOGY, text)
    if invalid:
        text = f"Topic names {','.join(invalid)} are not valid topic names."
        raise ApiError(ErrorCode.STREAMS_INVALID_TOPOLOGY, _readable(text))


async def _create(
    ctx: RequestContext, group_id: str, missing: Sequence[TopicInfo], response: StreamsGroupHeartbeatResponse
) -> None:
    """Create internal topics.

    Retry a failed topic only after two heartbeat intervals; until then add the failure to `response`.
    """
    groups, now_ms = ctx.services.groups, ctx.services.clock.monotonic_ms()
    failed = groups.failed_topics.of((topic.name for topic in missing), now_ms)
    if failed:
        told = ", ".join(f"{name} ({why})" for name, why in list(failed.items())[:_SHOWN])
        more = f" and {len(failed) - _SHOWN} more" if len(failed) > _SHOWN else ""
        _add_detail(response, f"Creation failed: {told}{more}.")
    plans, errors, partitions = [], dict[str, ApiError](), 0
    for topic in missing:
        if topic.name in failed:
            continue
        try:
            plan = await plan_of(ctx, _creatable(topic))
            partitions += len(plan.partitions)
            if partitions > MAX_PARTITIONS_PER_REQUEST:
                raise ApiError(ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request.")
            check_room(ctx, len(plan.partitions))
            if ctx.metering is not None:
                ctx.metering.mutate(len(plan.partitions), strict=True)
            plans.append(plan)
        except ApiError as err:
            errors[topic.name] = err
        await turn
    errors |= await ctx.services.controller.put_in_pieces(plans, _CREATION_MS)
    for name, error in errors.items():
        if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
            until = now_ms + 2 * groups.streams.heartbeat_interval_ms(group_id)
            groups.failed_topics.add(name, error.message or error.code.name, until)


def _creatable(topic: TopicInfo) -> CreatableTopic:
    return CreatableTopic(
        name=topic.name,
        num_partitions=topic.partitions,
        replication_factor=topic.replication_factor or -1,
        configs=[CreatableTopicConfig(each.key, each.value) for each in topic.topic_configs],
    )


def _add_detail(response: StreamsGroupHeartbeatResponse, text: str) -> None:
    """Add a text to the status of missing internal topics."""
    for status in response.status or ():
        if status.status_code == StatusCode.MISSING_INTERNAL_TOPICS:
            status.status_detail = f"{status.status_detail}; {text}"
            return
    response.status = [*(response.status or ()), Status(StatusCode.MISSING_INTERNAL_TOPICS, text)]


@handles(
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
    "0-1",
    mirrored(StreamsGroupDescribeResponse, "group_ids", error_message=None),
)
async def streams_group_describe(
    ctx: RequestContext, request: StreamsGroupDescribeRequest
) -> StreamsGroupDescribeResponse:
    """Describe streams groups."""
    _check_enabled(ctx)
    describe = ctx.services.groups.describe_streams_groups
    groups = await described(ctx, request, request.group_ids, describe, StreamsGroupDescribeResponse)
    return StreamsGroupDescribeResponse(groups=groups)


@handles(StreamsGroupTopologyDescriptionUpdateRequest, StreamsGroupTopologyDescriptionUpdateResponse, "0")
def streams_group_topology_description_update(
    ctx: RequestContext, _request: StreamsGroupTopologyDescriptionUpdateRequest
) -> StreamsGroupTopologyDescriptionUpdateResponse:
    """Refuse a description of a topology, because this broker cannot store it."""
    _check_enabled(ctx)
    text = "The broker has no streams group topology description plugin configured."
    raise ApiError(ErrorCode.UNSUPPORTED_VERSION, text)
