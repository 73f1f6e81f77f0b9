"""The APIs of share groups (KIP-932), for their members and for administrators.

ShareGroupHeartbeat (key 76), version 1: a member joins, stays and leaves. The response has an assignment only if it
changed or if the member sends its subscription. Behaviour: the share coordinator initialises new share partitions after
the response. They are assigned when this is done.

ShareGroupDescribe (key 77), version 1: state, epochs, members and assignments of share groups; other groups are
GROUP_ID_NOT_FOUND.

DescribeShareGroupOffsets (key 90), versions 0-1: start offsets of share partitions. Version 1 has the lag (KIP-1226).

AlterShareGroupOffsets (key 91), version 0: new start offsets, for a group without members.

DeleteShareGroupOffsets (key 92), version 0: deletes the states of a group's share partitions of the named topics.

If the feature share.version is 0, all these APIs return UNSUPPORTED_VERSION. If a request repeats a group, the response
repeats its answer, within a limit (groups.py).
"""

from __future__ import annotations

from kbroker.group_coordinator.share_groups import ShareGroups
from kbroker.handlers.groups import ALL_OPERATIONS, REFUSAL, distinct, paired, with_repeats
from kbroker.handlers.mirrored_errors import mirrored
from kbroker.handlers.registry import RequestContext, handles
from kbroker.handlers.services import has_share_groups
from kbroker.long_work import every, turn
from kbroker.protocol.compiler import encode
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.share_groups import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DescribedGroup,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)

MOST_ID_LENGTH = 36


def is_member_id(text: str) -> bool:
    """Whether a text is allowed as a member id."""
    return 0 < len(text) <= MOST_ID_LENGTH


def _share_groups(ctx: RequestContext) -> ShareGroups:
    """Return the share groups of this broker. Raises ApiError if share groups are not enabled."""
    groups = ctx.services.groups.share_groups
    if groups is None or not has_share_groups(ctx.services):
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
    return groups


@handles(ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse, "1", advertised=has_share_groups)
async def share_group_heartbeat(
    ctx: RequestContext, request: ShareGroupHeartbeatRequest
) -> ShareGroupHeartbeatResponse:
    """Keep a member in its share group."""
    groups = _share_groups(ctx)
    if not is_member_id(request.member_id):
        return ShareGroupHeartbeatResponse(error_code=ErrorCode.INVALID_REQUEST)
    return await groups.heartbeat(request, ctx.client_id or "", ctx.client_host)


@handles(
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    "1",
    mirrored(ShareGroupDescribeResponse, "group_ids", error_message=None),
    advertised=has_share_groups,
)
async def share_group_describe(ctx: RequestContext, request: ShareGroupDescribeRequest) -> ShareGroupDescribeResponse:
    """Describe share groups."""
    coordinator = _share_groups(ctx)
    names = await distinct(request.group_ids)
    groups = await coordinator.describe(names)
    if request.include_authorized_operations:
        for group in groups:
            if not group.error_code:
                group.authorized_operations = ALL_OPERATIONS
            await turn
    if len(names) < len(request.group_ids):
        groups = await with_repeats(
            request.group_ids,
            await paired(names, groups),
            lambda group: len(encode(ShareGroupDescribeResponse(groups=[group]), ctx.version)),
            lambda name: DescribedGroup(group_id=name, error_code=ErrorCode.INVALID_REQUEST, error_message=REFUSAL),
        )
    return ShareGroupDescribeResponse(groups=groups)


@handles(
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
    "0-1",
    mirrored(DescribeShareGroupOffsetsResponse, "groups", error_message=None),
    advertised=has_share_groups,
)
async def describe_share_group_offsets(
    ctx: RequestContext, request: DescribeShareGroupOffsetsRequest
) -> DescribeShareGroupOffsetsResponse:
    """Return the start offsets and the lag of share partitions."""
    coordinator = _share_groups(ctx)
    asked: list[tuple[int, str]] = []
    distinct_ones: dict[tuple[int, str], DescribeShareGroupOffsetsRequestGroup] = {}
    for number, group in enumerate(request.groups):
        asked.append((-1 if group.topics is None else number, group.group_id))
        distinct_ones[asked[-1]] = group
        await turn
    groups = await every(distinct_ones.values(), coordinator.describe_offsets)
    if len(groups) < len(asked):
        groups = await with_repeats(
            asked,
            await paired(distinct_ones, groups),
            lambda group: len(encode(DescribeShareGroupOffsetsResponse(groups=[group]), ctx.version)),
            lambda key: DescribeShareGroupOffsetsResponseGroup(
                group_id=key[1], error_code=ErrorCode.INVALID_REQUEST, error_message=REFUSAL
            ),
        )
    return DescribeShareGroupOffsetsResponse(groups=groups)


@handles(AlterShareGroupOffsetsRequest, AlterShareGroupOffsetsResponse, "0", advertised=has_share_groups)
async def alter_share_group_offsets(
    ctx: RequestContext, request: AlterShareGroupOffsetsRequest
) -> AlterShareGroupOffsetsResponse:
    """Set the start offsets of share partitions."""
    return await _share_groups(ctx).alter_offsets(request)


@handles(DeleteShareGroupOffsetsRequest, DeleteShareGroupOffsetsResponse, "0", advertised=has_share_groups)
async def delete_share_group_offsets(
    ctx: RequestContext, request: DeleteShareGroupOffsetsRequest
) -> DeleteShareGroupOffsetsResponse:
    """Delete the states of share partitions."""
    return await _share_groups(ctx).delete_offsets(request)
