"""The groups of a broker whose content was put back: whoever was a member then is none any more.

Owns that they leave. Who is still there is told so by its next heartbeat, and joins again; who is not would keep
others waiting until its session is over. Never touches what a group has committed.
"""

from __future__ import annotations

from kbroker.cluster_state import OFFSETS_TOPIC
from kbroker.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
)
from kbroker.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
)
from kbroker.protocol.messages.describe_groups import DescribeGroupsRequest
from kbroker.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from kbroker.protocol.messages.list_groups import ListGroupsRequest
from kbroker.testing.asking import Asking

_LEAVES = -1


async def empty_groups(asking: Asking) -> None:
    """Let all members of all groups leave."""
    if not asking.partitions_of(OFFSETS_TOPIC):
        return
    listed = (await asking.handled(ListGroupsRequest())).groups
    with_members = [each for each in listed if each.group_state not in ("Empty", "Dead")]
    consumer = [each.group_id for each in with_members if each.group_type.lower() == "consumer"]
    classic = [each.group_id for each in with_members if each.group_type.lower() == "classic"]
    if classic:
        await _empty_classic(asking, classic)
    if consumer:
        await _empty_consumer(asking, consumer)


async def _empty_classic(asking: Asking, groups: list[str]) -> None:
    for group in (await asking.handled(DescribeGroupsRequest(groups=groups))).groups:
        members = [MemberIdentity(each.member_id, each.group_instance_id) for each in group.members]
        if members:
            await asking.handled(LeaveGroupRequest(group_id=group.group_id, member_id="", members=members))


async def _empty_consumer(asking: Asking, groups: list[str]) -> None:
    described = (await asking.handled(ConsumerGroupDescribeRequest(group_ids=groups))).groups
    for group in described:
        for each in group.members:
            leaves = ConsumerGroupHeartbeatRequest(group.group_id, each.member_id, _LEAVES, each.instance_id)
            await asking.handled(leaves)
