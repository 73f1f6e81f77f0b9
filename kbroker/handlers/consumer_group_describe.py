"""ConsumerGroupDescribe (key 69), versions 0-1.

Behaviour: state, epochs, members and assignments of consumer groups (KIP-848); any other group is GROUP_ID_NOT_FOUND.
A group that is named again is answered again, within a bound (repeated_groups.py).
Version notes: v1 says of each member which protocol it speaks.
"""

from __future__ import annotations

from kbroker.controller.features import GROUP_VERSION
from kbroker.divided import Divided, each
from kbroker.handlers.describe_groups import ALL_OPERATIONS
from kbroker.handlers.registry import RequestContext, handles
from kbroker.handlers.repeated_groups import REFUSAL, as_often, distinct, paired
from kbroker.protocol.compiler import encode
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)


def _failed(
    request: ConsumerGroupDescribeRequest, code: int, _message: str | None
) -> Divided[ConsumerGroupDescribeResponse]:
    failed = each(request.group_ids, lambda group_id: DescribedGroup(group_id=group_id, error_code=code))
    return ConsumerGroupDescribeResponse(groups=(yield from failed))


@handles(ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse, "0-1", _failed)
def consumer_group_describe(
    ctx: RequestContext, request: ConsumerGroupDescribeRequest
) -> Divided[ConsumerGroupDescribeResponse]:
    """Describe consumer groups."""
    coordinator = ctx.services.groups
    if not coordinator.config.consumer_enabled or ctx.services.controller.state.features.get(GROUP_VERSION, 0) < 1:
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
    version = ctx.version
    names = yield from distinct(request.group_ids)
    groups = yield from coordinator.describe_consumer_groups(names)
    if request.include_authorized_operations:
        for group in groups:
            if not group.error_code:
                group.authorized_operations = ALL_OPERATIONS
            yield
    if len(names) < len(request.group_ids):
        groups = yield from as_often(
            request.group_ids,
            (yield from paired(names, groups)),
            lambda group: len(encode(ConsumerGroupDescribeResponse(groups=[group]), version)),
            lambda name: DescribedGroup(group_id=name, error_code=ErrorCode.INVALID_REQUEST, error_message=REFUSAL),
        )
    return ConsumerGroupDescribeResponse(groups=groups)
