"""The groups of a broker whose content was restored: all members leave.

Owns their leaving. A member that still runs learns it with its next heartbeat, and joins again; a member that is gone
would block the others until its session expires. Never touches committed offsets.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from kbroker.broker.node import BrokerNode
from kbroker.cluster_state import OFFSETS_TOPIC
from kbroker.protocol.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
)
from kbroker.protocol.messages.groups import DescribeGroupsRequest, LeaveGroupRequest, ListGroupsRequest, MemberIdentity
from kbroker.testing.asking import handled

_LEAVES = -1
_Ask = Callable[[Any], Awaitable[Any]]


async def empty_groups(node: BrokerNode) -> None:
    """Remove all members of all groups; on the broker's loop."""
    if OFFSETS_TOPIC not in node.controller.state.topics:
        return

    def ask(request: Any) -> Awaitable[Any]:
        return handled(node.services, node.config.listeners.bind[0].name, request)

    listed = (await ask(ListGroupsRequest())).groups
    with_members = [each for each in listed if each.group_state not in ("Empty", "Dead")]
    consumer = [each.group_id for each in with_members if each.group_type.lower() == "consumer"]
    classic = [each.group_id for each in with_members if each.group_type.lower() == "classic"]
    if classic:
        await _empty_classic(ask, classic)
    if consumer:
        await _empty_consumer(ask, consumer)


async def _empty_classic(ask: _Ask, groups: list[str]) -> None:
    for group in (await ask(DescribeGroupsRequest(groups=groups))).groups:
        members = [MemberIdentity(each.member_id, each.group_instance_id) for each in group.members]
        if members:
            await ask(LeaveGroupRequest(group_id=group.group_id, member_id="", members=members))


async def _empty_consumer(ask: _Ask, groups: list[str]) -> None:
    described = (await ask(ConsumerGroupDescribeRequest(group_ids=groups))).groups
    for group in described:
        for each in group.members:
            leaves = ConsumerGroupHeartbeatRequest(group.group_id, each.member_id, _LEAVES, each.instance_id)
            await ask(leaves)
