"""The groups and transactional ids of a broker after a restore, and their effect on running clients.

This module changes groups and transactional ids during a restore. All members are removed from groups, because a
stopped member would block all other members until its session expires. A running member is notified at its next
heartbeat, and joins again. A transaction that was open in the snapshot is aborted. A producer is fenced if it had an
open transaction in the snapshot, or has one at the restore. Every other producer keeps its id and epoch and continues.
Never changes committed offsets, and never writes a record itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from kbroker.broker.node import BrokerNode
from kbroker.clock import Clock
from kbroker.cluster_state import OFFSETS_TOPIC
from kbroker.long_work import awaited
from kbroker.protocol.messages.consumer_groups import ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest
from kbroker.protocol.messages.groups import DescribeGroupsRequest, LeaveGroupRequest, ListGroupsRequest, MemberIdentity
from kbroker.protocol.messages.share_groups import ShareGroupDescribeRequest, ShareGroupHeartbeatRequest
from kbroker.protocol.messages.streams_groups import StreamsGroupDescribeRequest, StreamsGroupHeartbeatRequest
from kbroker.testing.asking import handled
from kbroker.testing.waiting import until
from kbroker.txn.coordinator import TransactionCoordinator
from kbroker.txn.transaction import AT_REST, LAST_CLIENT_EPOCH, NO_EPOCH, ONGOING, Transaction

_LEAVES = -1
_Ask = Callable[[Any], Awaitable[Any]]


async def empty_groups(node: BrokerNode) -> None:
    """Remove all members of all groups. Call this on the broker's loop."""
    if OFFSETS_TOPIC not in node.controller.state.topics:
        return

    def ask(request: Any) -> Awaitable[Any]:
        return handled(node.services, node.config.listeners.bind[0].name, request)

    listed = (await ask(ListGroupsRequest())).groups
    with_members = [each for each in listed if each.group_state not in ("Empty", "Dead")]
    by_type: dict[str, list[str]] = {}
    for each in with_members:
        by_type.setdefault(each.group_type.lower(), []).append(each.group_id)
    for group_type, empty in _EMPTY.items():
        if group_type in by_type:
            await empty(ask, by_type[group_type])


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


async def _empty_share(ask: _Ask, groups: list[str]) -> None:
    for group in (await ask(ShareGroupDescribeRequest(group_ids=groups))).groups:
        for each in group.members:
            await ask(ShareGroupHeartbeatRequest(group.group_id, each.member_id, _LEAVES))


async def _empty_streams(ask: _Ask, groups: list[str]) -> None:
    for group in (await ask(StreamsGroupDescribeRequest(group_ids=groups))).groups:
        for each in group.members:
            await ask(
                StreamsGroupHeartbeatRequest(group.group_id, each.member_id, _LEAVES, instance_id=each.instance_id)
            )


_EMPTY: Final[dict[str, Callable[[_Ask, list[str]], Awaitable[None]]]] = {
    "classic": _empty_classic,
    "consumer": _empty_consumer,
    "share": _empty_share,
    "streams": _empty_streams,
}


def known_now(coordinator: TransactionCoordinator) -> dict[str, Transaction]:
    """Return the state of each transactional id before the restore replaces it."""
    return {each.transactional_id: each for each in coordinator.all()}


async def settle(coordinator: TransactionCoordinator, before: Mapping[str, Transaction], clock: Clock) -> None:
    """Reconcile the restored transactional ids with the producers that exist at present."""
    opened = {each.transactional_id for each in coordinator.all() if each.state is ONGOING}
    for name in opened:
        await awaited(coordinator.abandon(name))
    await until(lambda: all(each.state in AT_REST for each in coordinator.all()), "transactions have not ended")
    for restored in coordinator.all():
        known = before.get(restored.transactional_id)
        if known is None or known.producer_id != restored.producer_id:
            continue  # its producer must send InitProducerId again
        wanted = _wanted(restored, known, clock.now_ms(), was_open=restored.transactional_id in opened)
        if wanted != restored:
            await awaited(coordinator.adopt(wanted))


def _wanted(restored: Transaction, known: Transaction, now_ms: int, *, was_open: bool) -> Transaction:
    if known.is_prepared:
        known = known.completed(now_ms)
    if known.state in AT_REST and not was_open:
        return known
    epoch = min(max(restored.producer_epoch, known.producer_epoch) + 1, LAST_CLIENT_EPOCH)
    return replace(restored, producer_epoch=epoch, last_epoch=NO_EPOCH)
