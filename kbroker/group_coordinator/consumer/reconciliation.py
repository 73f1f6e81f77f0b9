"""Moves a member step by step from its current assignment to its target (Kafka's CurrentAssignmentBuilder).

Owns one step. A member first revokes partitions, and confirms the revocation. Meanwhile it keeps its epoch. Then it
gets the target's epoch and the free partitions. With later heartbeats it gets the partitions that other members have
released. No partition ever has two owners.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from kbroker.group_coordinator.assignment import Epochs, Partitions
from kbroker.group_coordinator.groups.consumer_member import STABLE, UNKNOWN, UNRELEASED, UNREVOKED, ConsumerMember
from kbroker.protocol.errors import ApiError, ErrorCode

Owned = Sequence[tuple[bytes, Iterable[int]]] | None
"""The partitions that a member claims to own; None if the member's request has a null list."""


def reconcile(
    member: ConsumerMember,
    *,
    epoch: int,
    target: Partitions,
    subscribed: Callable[[], frozenset[bytes]],
    owner_epoch: Callable[[bytes, int], int],
    owned: Owned,
    subscription_changed: bool = False,
) -> ConsumerMember:
    """Return the member one step closer to `target` of `epoch`, or unchanged. Raises ApiError.

    `subscribed` returns the topic ids of the member's current subscription. `owner_epoch` returns -1 for a free
    partition.
    """
    if not subscription_changed and member.is_reconciled_to(epoch):
        return member
    if member.state is STABLE:
        if member.member_epoch == epoch:
            return _shrink(member, subscribed(), owned)
        return _advance(member, epoch, target, subscribed(), owner_epoch, owned)
    if member.state is UNREVOKED and _owns(owned, member.pending_revocation):
        return _shrink(member, subscribed(), owned) if subscription_changed else member
    if member.state is UNKNOWN:
        if owned is None or owned:
            raise ApiError(
                ErrorCode.FENCED_MEMBER_EPOCH,
                "The consumer group member is in a unknown state. "
                "The member must abandon all its partitions and rejoin.",
            )
        return _advance(member, epoch, target, subscribed(), owner_epoch, owned, member_epoch=epoch)
    return _advance(member, epoch, target, subscribed(), owner_epoch, owned)


def _owns(owned: Owned, revoked: Mapping[bytes, Mapping[int, int]]) -> bool:
    """Return whether a member still owns a partition that it must revoke. A null list in the request counts as True."""
    if owned is None:
        return True
    return any(index in revoked.get(topic_id, {}) for topic_id, indexes in owned for index in indexes)


def _shrink(member: ConsumerMember, subscribed: frozenset[bytes], owned: Owned) -> ConsumerMember:
    """Remove partitions of topics to which the member no longer subscribes, without waiting for a new target."""
    removed = [topic_id for topic_id in member.assigned if topic_id not in subscribed]
    if not removed:
        return member
    assigned = {topic_id: held for topic_id, held in member.assigned.items() if topic_id in subscribed}
    pending = dict(member.pending_revocation)
    for topic_id in removed:
        pending[topic_id] = {**pending.get(topic_id, {}), **member.assigned[topic_id]}
    shrunk = replace(member.at_epoch(member.member_epoch), assigned=assigned)
    if _owns(owned, pending):
        return replace(shrunk, state=UNREVOKED, pending_revocation=pending)
    return shrunk


def _advance(
    member: ConsumerMember,
    epoch: int,
    target: Partitions,
    subscribed: frozenset[bytes],
    owner_epoch: Callable[[bytes, int], int],
    owned: Owned,
    member_epoch: int | None = None,
) -> ConsumerMember:
    """Advance the member: let it revoke partitions, or move it to the target's epoch with all free partitions."""
    kept: dict[bytes, dict[int, int]] = {}
    revoked: dict[bytes, Mapping[int, int]] = {}
    new: dict[bytes, list[int]] = {}
    unreleased = False
    for topic_id in [*target, *(each for each in member.assigned if each not in target)]:
        wanted = target.get(topic_id, frozenset()) if topic_id in subscribed else frozenset()
        current = member.assigned.get(topic_id, {})
        keeps = {index: since for index, since in current.items() if index in wanted}
        if keeps:
            kept[topic_id] = keeps
        if len(keeps) < len(current):
            revoked[topic_id] = {index: since for index, since in current.items() if index not in wanted}
        if len(keeps) < len(wanted):
            own = member.pending_revocation.get(topic_id, {})
            missing = [index for index in sorted(wanted) if index not in keeps]
            free = [index for index in missing if index in own or owner_epoch(topic_id, index) == -1]
            unreleased = unreleased or len(free) < len(missing)
            if free:
                new[topic_id] = free
    if revoked and _owns(owned, revoked):
        own_epoch = member.member_epoch if member_epoch is None else member_epoch
        return replace(member.at_epoch(own_epoch), state=UNREVOKED, assigned=kept, pending_revocation=revoked)
    for topic_id, indexes in new.items():
        kept.setdefault(topic_id, {}).update(dict.fromkeys(indexes, epoch))
    assigned: Epochs = kept
    return replace(
        member.at_epoch(epoch),
        state=UNRELEASED if unreleased else STABLE,
        assigned=assigned,
        pending_revocation={},
    )
