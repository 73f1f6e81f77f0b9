"""Finds the sender of a request to a consumer group by member id or instance id, and checks whether it is fenced.

Owns the checks of ids and of member epochs, and the return of a static member under a new id. Never changes a group.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace

from kbroker.coordination.shard import Outcome
from kbroker.group_coordinator.assignment import Epochs
from kbroker.group_coordinator.consumer.reconciliation import Owned
from kbroker.group_coordinator.groups.consumer_group import ConsumerGroup
from kbroker.group_coordinator.groups.consumer_member import LEAVE_STATIC_EPOCH, ConsumerMember
from kbroker.group_coordinator.records import consumer_group as records
from kbroker.protocol.errors import ApiError, ErrorCode

log = logging.getLogger(__name__)


def check_room(group: ConsumerGroup, member_id: str, instance_id: str | None, limit: int) -> None:
    """Refuse a member that exceeds the group's maximum size; raises GROUP_MAX_SIZE_REACHED."""
    is_known = instance_id in group.static_members or member_id in group.members
    if not is_known and len(group.members) >= limit:
        raise ApiError(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"The consumer group has reached its maximum capacity of {limit} members.",
        )


def dynamic_member(group: ConsumerGroup, member_id: str, *, create: bool) -> ConsumerMember:
    """Return a member. For an unknown id, return a new member if `create` is set, else raise UNKNOWN_MEMBER_ID."""
    if create and member_id not in group.members:
        return ConsumerMember(member_id)
    return group.member(member_id)


def static_member(
    group: ConsumerGroup,
    member_id: str,
    instance_id: str,
    out: Outcome,
    *,
    create: bool,
    classic: bool = False,
) -> ConsumerMember:
    """Return a static member. A joining member replaces the holder of its instance id, if that is allowed.

    Raises UNKNOWN_MEMBER_ID, UNRELEASED_INSTANCE_ID, FENCED_INSTANCE_ID.
    """
    held = group.static_member(instance_id)
    if not create:
        return check_instance(held, member_id, instance_id)
    if held is None:
        return dynamic_member(group, member_id, create=True)
    if not classic and held.classic is None and held.member_epoch != LEAVE_STATIC_EPOCH:
        raise ApiError(
            ErrorCode.UNRELEASED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} cannot join the group because the instance "
            f"id is owned by {held.member_id} member.",
        )
    member = replace(held, member_id=member_id, member_epoch=0, previous_epoch=0)
    group_id = group.group_id
    out.records += records.member_tombstones(group_id, held.member_id)
    out.records.append(records.member_metadata(group_id, member))
    out.records.append(records.target_member(group_id, member_id, group.target_of(held.member_id)))
    out.records.append(records.current_assignment(group_id, member))
    log.debug("group %s: instance %s returns as %s, was %s", group_id, instance_id, member_id, held.member_id)
    return member


def check_instance(held: ConsumerMember | None, member_id: str, instance_id: str) -> ConsumerMember:
    """Return the holder of an instance id, which must be this member; raises UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID."""
    if held is None:
        raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    if held.member_id != member_id:
        raise ApiError(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} was fenced by member {held.member_id}.",
        )
    return held


def check_epoch(member: ConsumerMember, epoch: int, owned: Owned) -> None:
    """Accept the member's epoch, or its previous epoch if the answer with the new epoch may be lost.

    A member that sends the previous epoch may own only partitions of its current assignment. Raises
    FENCED_MEMBER_EPOCH.
    """
    if epoch in (0, member.member_epoch):
        return
    if epoch > member.member_epoch:
        how = "greater"
    elif epoch == member.previous_epoch and owned is not None and _is_within(owned, member.assigned):
        return
    else:
        how = "smaller"
    raise ApiError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {how} member epoch ({epoch}) than the one known by the group coordinator "
        f"({member.member_epoch}). The member must abandon all its partitions and rejoin.",
    )


def _is_within(owned: Sequence[tuple[bytes, Iterable[int]]], assigned: Epochs) -> bool:
    return all(
        topic_id in assigned and all(index in assigned[topic_id] for index in indexes) for topic_id, indexes in owned
    )
