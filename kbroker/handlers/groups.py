"""The APIs of groups: of administrators, of members of classic groups, and of consumer groups (KIP-848).

ListGroups (key 16), versions 0-5.

Behaviour: lists the groups that this broker coordinates; since v4 filters by state (KIP-518), since v5 by type
(KIP-848).

DescribeGroups (key 15), versions 0-6.

Behaviour: returns the state, protocol and members of classic groups. Metadata and protocol are returned only while a
group is Stable. If a request repeats a group, the response repeats its description, within a limit.

Version notes: v3 adds the authorized operations. The state of a group that does not exist is Dead. Since v6 the
description of such a group also has an error.

DeleteGroups (key 42), versions 0-3. v3 adds an error message, which Kafka sets only for groups of other types.

Behaviour: deletes groups without members, with their offsets. Other groups get NON_EMPTY_GROUP or GROUP_ID_NOT_FOUND.

Owns the results for groups that a request names more than once. As in Apache Kafka, each occurrence gets a result. The
work is done once for each group. The size of repeated results is limited, because a few bytes in a request can repeat a
group, and the response then repeats its complete description. Results beyond the limit are INVALID_REQUEST.

JoinGroup (key 11), versions 0-9.

Behaviour: the request is parked until the group's next generation begins. v1 adds the rebalance timeout, v4
MEMBER_ID_REQUIRED (KIP-394), v5 static members (KIP-345), v9 skip_assignment.

Version notes: v7 made the protocol's name nullable; older clients receive an empty name.

SyncGroup (key 14), versions 0-5.

Behaviour: the leader sends the assignment, and each member receives its own part once the assignment is in the log.

Version notes: since v5 the protocol's type and name are not optional.

Heartbeat (key 12), versions 0-4.

Behaviour: keeps a member's session alive, and notifies the member when it must join again (REBALANCE_IN_PROGRESS).

LeaveGroup (key 13), versions 0-5.

Behaviour: since v3 the request has a list of members, and each member gets its own error. An administrator removes a
member by an entry with an instance id but no member id. v5 adds reasons, which are logged.

Version notes: before v3 the response's error is the error of its only member.

ConsumerGroupHeartbeat (key 68), versions 0-1.

Behaviour: a member uses one request to join, heartbeat, acknowledge and leave (KIP-848). The response has an assignment
only if it changed or if the member requests all. If "consumer" is missing from group.coordinator.rebalance.protocols,
or the feature group.version is 0, the error is UNSUPPORTED_VERSION, as clients expect.

Version notes: v1 adds subscriptions by pattern, and member ids that clients generate (KIP-1082).

ConsumerGroupDescribe (key 69), versions 0-1.

Behaviour: returns state, epochs, members and assignments of consumer groups (KIP-848); other groups are
GROUP_ID_NOT_FOUND. If a request repeats a group, the response repeats its description, within a limit.

Version notes: v1 has the protocol of each member.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from kbroker.controller.features import GROUP_VERSION
from kbroker.group_coordinator.consumer.regexes import MaySee, everything
from kbroker.handlers.mirrored_errors import mirrored
from kbroker.handlers.registry import Reply, RequestContext, handles
from kbroker.long_work import awaited, each, turn
from kbroker.protocol.compiler import encode
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from kbroker.protocol.messages.consumer_groups import DescribedGroup as DescribedConsumerGroup
from kbroker.protocol.messages.groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    Reread,
    SyncGroupRequest,
    SyncGroupResponse,
)
from kbroker.protocol.messages.streams_groups import DescribedStreamsGroup, StreamsGroupDescribeRequest

ALL_OPERATIONS = sum(1 << operation for operation in (3, 6, 8, 10, 11))
"""The operations on a group, as bits of AclOperation's codes: READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS.
"""
Key = TypeVar("Key", bound=Hashable)
Answer = TypeVar("Answer")
Group = TypeVar("Group", DescribedGroup, DescribedConsumerGroup, DescribedStreamsGroup)
MAX_REPEATED_BYTES = 4 << 20
"""The maximum size in bytes of repeated results in one response."""
REFUSAL = "The request names this group too often."


@handles(ListGroupsRequest, ListGroupsResponse, "0-5")
async def list_groups(ctx: RequestContext, request: ListGroupsRequest) -> ListGroupsResponse:
    """List groups."""
    return await ctx.services.groups.list_groups(request)


@handles(
    DescribeGroupsRequest, DescribeGroupsResponse, "0-6", mirrored(DescribeGroupsResponse, "groups", error_message=None)
)
async def describe_groups(ctx: RequestContext, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
    """Describe groups."""
    describe = partial(ctx.services.groups.describe_groups, version=ctx.version)
    return DescribeGroupsResponse(
        groups=await described(ctx, request, request.groups, describe, DescribeGroupsResponse),
        rereads=[Reread(*each) for each in ctx.services.groups.rereads()] if request.wants_rereads else [],
    )


async def described(
    ctx: RequestContext,
    request: DescribeGroupsRequest | ConsumerGroupDescribeRequest | StreamsGroupDescribeRequest,
    asked: Sequence[str],
    describe: Callable[[Iterable[str]], Awaitable[list[Group]]],
    response: Callable[..., Any],
) -> list[Group]:
    """Return the descriptions of the requested groups. `describe` is called once for each group."""
    names = await distinct(asked)
    groups = await describe(names)
    if request.include_authorized_operations:
        for group in groups:
            if not group.error_code:
                group.authorized_operations = ALL_OPERATIONS
            await turn
    if len(names) < len(asked):
        version, form = ctx.version, type(groups[0])
        return await with_repeats(
            asked,
            await paired(names, groups),
            lambda group: len(encode(response(groups=[group]), version)),
            lambda name: form(group_id=name, error_code=ErrorCode.INVALID_REQUEST, error_message=REFUSAL),
        )
    return groups


async def _deletions_failed(request: DeleteGroupsRequest, code: int, _message: str | None) -> DeleteGroupsResponse:
    names = await distinct(request.groups_names)
    failed = each(names, lambda group_id: DeletableGroupResult(group_id=group_id, error_code=code))
    return DeleteGroupsResponse(results=await failed)


@handles(DeleteGroupsRequest, DeleteGroupsResponse, "0-3", _deletions_failed)
async def delete_groups(ctx: RequestContext, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
    """Delete groups."""
    return await ctx.services.groups.delete_groups(request.groups_names)


async def with_repeats(
    asked: Iterable[Key],
    answers: Mapping[Key, Answer],
    size_of: Callable[[Answer], int],
    refuse: Callable[[Key], Answer],
) -> list[Answer]:
    """Return an answer for each key in `asked`, in the same order. `size_of` returns an answer's size in bytes."""
    left = MAX_REPEATED_BYTES
    sizes: dict[Key, int | None] = {}
    out = []
    for key in asked:
        answer = answers[key]
        if key in sizes:
            size = sizes[key]
            if size is None:
                size = sizes[key] = size_of(answer)
            if size > left:
                answer = refuse(key)
            else:
                left -= size
        else:
            sizes[key] = None
        out.append(answer)
        await turn
    return out


async def distinct(asked: Iterable[Key]) -> dict[Key, None]:
    """Return the keys without duplicates, in the given order."""
    found: dict[Key, None] = {}
    for key in asked:
        found[key] = None
        await turn
    return found


async def counted(asked: Iterable[Key]) -> Counter[Key]:
    """Return the number of occurrences of each key."""
    counts: Counter[Key] = Counter()
    for key in asked:
        counts[key] += 1
        await turn
    return counts


async def paired(keys: Iterable[Key], answers: Iterable[Answer]) -> dict[Key, Answer]:
    """Return the answers as a mapping by key."""
    found: dict[Key, Answer] = {}
    for key, answer in zip(keys, answers, strict=True):
        found[key] = answer
        await turn
    return found


NULLABLE_NAME_SINCE = 7
PROTOCOL_REQUIRED_SINCE = 5
LIST_SINCE = 3


@handles(JoinGroupRequest, JoinGroupResponse, "0-9")
async def join_group(ctx: RequestContext, request: JoinGroupRequest) -> JoinGroupResponse:
    """Add a member to the next generation of its group."""
    absent = None if ctx.version >= NULLABLE_NAME_SINCE else ""
    answer = ctx.services.groups.join_group(
        request, version=ctx.version, client_id=ctx.client_id or "", client_host=ctx.client_host
    )
    response = await awaited(answer)
    response.protocol_name = response.protocol_name or absent
    return response


@handles(SyncGroupRequest, SyncGroupResponse, "0-5")
async def sync_group(ctx: RequestContext, request: SyncGroupRequest) -> SyncGroupResponse:
    """Return a member's assignment."""
    if ctx.version >= PROTOCOL_REQUIRED_SINCE and (request.protocol_type is None or request.protocol_name is None):
        return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    return await ctx.services.groups.sync_group(request)


@handles(HeartbeatRequest, HeartbeatResponse, "0-4")
def heartbeat(ctx: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse | Awaitable[HeartbeatResponse]:
    """Keep a member's session alive."""
    return ctx.services.groups.heartbeat(request)


@handles(LeaveGroupRequest, LeaveGroupResponse, "0-5")
async def leave_group(ctx: RequestContext, request: LeaveGroupRequest) -> LeaveGroupResponse:
    """Remove members from their group."""
    response = await ctx.services.groups.leave_group(request, version=ctx.version)
    if ctx.version < LIST_SINCE and not response.error_code and response.members:
        response.error_code = response.members[0].error_code
    return response


@handles(ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse, "0-1")
def consumer_group_heartbeat(
    ctx: RequestContext, request: ConsumerGroupHeartbeatRequest, *, may_see: MaySee = everything
) -> Reply[ConsumerGroupHeartbeatResponse]:
    """Keep a member in its consumer group.

    The member's pattern matches only topics for which `may_see` returns true.
    """
    groups = ctx.services.groups
    if not groups.config.consumer_enabled or ctx.services.controller.state.features.get(GROUP_VERSION, 0) < 1:
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
    return groups.consumer_group_heartbeat(
        request, version=ctx.version, client_id=ctx.client_id or "", client_host=ctx.client_host, may_see=may_see
    )


@handles(
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    "0-1",
    mirrored(ConsumerGroupDescribeResponse, "group_ids", error_message=None),
)
async def consumer_group_describe(
    ctx: RequestContext, request: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescribeResponse:
    """Describe consumer groups."""
    coordinator = ctx.services.groups
    if not coordinator.config.consumer_enabled or ctx.services.controller.state.features.get(GROUP_VERSION, 0) < 1:
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
    groups = await described(
        ctx, request, request.group_ids, coordinator.describe_consumer_groups, ConsumerGroupDescribeResponse
    )
    return ConsumerGroupDescribeResponse(groups=groups)
