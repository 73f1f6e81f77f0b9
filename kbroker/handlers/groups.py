"""The APIs that list, describe and delete groups.

ListGroups (key 16), versions 0-5.

Behaviour: the groups that this broker coordinates; v4 filters by state (KIP-518), v5 by type (KIP-848).

DescribeGroups (key 15), versions 0-6.

Behaviour: state, protocol and members of classic groups; metadata and protocol only while a group is Stable.
A group that is named again is described again, within a limit.
Version notes: v3 authorized operations; a group that does not exist is Dead, and an error only since v6.

DeleteGroups (key 42), versions 0-2.

Behaviour: deletes groups without members, with their offsets; NON_EMPTY_GROUP and GROUP_ID_NOT_FOUND for the others.

Owns the results for groups that a request names more than once. As in Apache Kafka, each occurrence gets a result, but
the work is done once for each group, and the size is limited. A few bytes that name a group again add its whole
description to the response, so without a limit a request could ask for any amount. Results beyond the limit are
INVALID_REQUEST.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import TypeVar

from kbroker.handlers.mirrored_errors import mirrored
from kbroker.handlers.registry import RequestContext, handles
from kbroker.long_work import each, turn
from kbroker.protocol.compiler import encode
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)

ALL_OPERATIONS = sum(1 << operation for operation in (3, 6, 8, 10, 11))
"""READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS by AclOperation's codes: the operations of a group."""
Key = TypeVar("Key", bound=Hashable)
Answer = TypeVar("Answer")
MAX_REPEATED_BYTES = 4 << 20
"""Most bytes of the repeated results in one response."""
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
    version = ctx.version
    names = await distinct(request.groups)
    groups = await ctx.services.groups.describe_groups(names, version=version)
    if request.include_authorized_operations:
        for group in groups:
            if not group.error_code:
                group.authorized_operations = ALL_OPERATIONS
            await turn
    if len(names) < len(request.groups):
        groups = await as_often(
            request.groups,
            await paired(names, groups),
            lambda group: len(encode(DescribeGroupsResponse(groups=[group]), version)),
            lambda name: DescribedGroup(group_id=name, error_code=ErrorCode.INVALID_REQUEST, error_message=REFUSAL),
        )
    return DescribeGroupsResponse(groups=groups)


async def _deletions_failed(request: DeleteGroupsRequest, code: int, _message: str | None) -> DeleteGroupsResponse:
    names = await distinct(request.groups_names)
    failed = each(names, lambda group_id: DeletableGroupResult(group_id=group_id, error_code=code))
    return DeleteGroupsResponse(results=await failed)


@handles(DeleteGroupsRequest, DeleteGroupsResponse, "0-2", _deletions_failed)
async def delete_groups(ctx: RequestContext, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
    """Delete groups."""
    return await ctx.services.groups.delete_groups(request.groups_names)


async def as_often(
    asked: Iterable[Key],
    answers: Mapping[Key, Answer],
    size_of: Callable[[Answer], int],
    refuse: Callable[[Key], Answer],
) -> list[Answer]:
    """Return an answer for each of `asked`, in that order. `size_of` returns an answer's size in bytes."""
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
    """Return the keys, each once, in order."""
    found: dict[Key, None] = {}
    for key in asked:
        found[key] = None
        await turn
    return found


async def paired(keys: Iterable[Key], answers: Iterable[Answer]) -> dict[Key, Answer]:
    """Return answers by their keys."""
    found: dict[Key, Answer] = {}
    for key, answer in zip(keys, answers, strict=True):
        found[key] = answer
        await turn
    return found
