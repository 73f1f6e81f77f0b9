"""ShareGroupHeartbeat: joining, staying, leaving.

Owns the handling of the request (Kafka's GroupMetadataManager.shareGroupHeartbeat): the checks that do not depend on
the group, the member's changes, the group's epoch and target, and the member's step to the target. Also owns the choice
of the share partitions whose state must be created first. Every step adds records; the group changes when the records
are replayed. Unlike consumers, members do not wait for each other: a member gets its complete target immediately.

The key of the timer is ("share session", group, member). The timer runs until a heartbeat.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace

from kbroker.coordination.shard import Cancel, CoordinatorRecord, Outcome, Schedule
from kbroker.group_coordinator.assignment import Partitions
from kbroker.group_coordinator.assignors.simple import SharingMember, SharingSpec, simple
from kbroker.group_coordinator.config import Settings
from kbroker.group_coordinator.groups.consumer_member import LEAVE_EPOCH, STABLE
from kbroker.group_coordinator.groups.share_group import NOTHING, ShareGroup, ShareMember
from kbroker.group_coordinator.groups.store import Groups
from kbroker.group_coordinator.java_order import copied_in_java_order, in_java_order
from kbroker.group_coordinator.records import share_group as records
from kbroker.group_coordinator.share.state_partitions import Initialization, StateOfGroups
from kbroker.group_coordinator.topics import Topics
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.consumer_groups import TopicPartitions
from kbroker.protocol.messages.share_groups import (
    Assignment,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)

log = logging.getLogger(__name__)

SESSION = "share session"
_REFRESH_INTERVAL_MS = 2**31 - 1
_RETRY_MS = 500
"""The delay after which a member's removal is retried, if the write of the removal failed."""


@dataclass(slots=True)
class Heartbeat:
    """The reply to a heartbeat, and the share partitions whose state the share coordinator has to create first."""

    response: ShareGroupHeartbeatResponse
    initialization: Initialization | None = None


def validate(request: ShareGroupHeartbeatRequest) -> None:
    """Check a request regardless of the group, in Kafka's order; raises INVALID_REQUEST."""
    for value, name in ((request.member_id, "MemberId"), (request.group_id, "GroupId"), (request.rack_id, "RackId")):
        if value is not None and not value.strip():
            raise _invalid(f"{name} can't be empty.")
    if request.member_epoch == 0:
        if not request.subscribed_topic_names:
            raise _invalid("SubscribedTopicNames must be set in first request.")
    elif request.member_epoch < LEAVE_EPOCH:
        raise _invalid("MemberEpoch is invalid.")


def _invalid(text: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, text)


class ShareHeartbeats:
    """Heartbeats to the share groups of a shard (shard.py)."""

    def __init__(self, groups: Groups, state: StateOfGroups, topics: Topics, settings: Settings) -> None:
        self._groups = groups
        self._state = state
        self._topics = topics
        self._settings = settings

    def heartbeat(self, request: ShareGroupHeartbeatRequest, client_id: str, client_host: str, now_ms: int) -> Outcome:
        """Handle a request that `validate` has accepted; reply with a Heartbeat. Raises ApiError."""
        if request.member_epoch == LEAVE_EPOCH:
            return self._leave(request)
        joins = request.member_epoch == 0
        group = self._open(request.group_id, create=joins)
        group_id, member_id, out = group.group_id, request.member_id, Outcome()
        self._check_room(group, member_id)
        member = group.members.get(member_id)
        if member is None:
            member = ShareMember(member_id) if joins else group.member(member_id)
        _check_epoch(member, request.member_epoch)
        updated = _updated(member, request, client_id, client_host)
        if updated != member:
            out.records.append(records.member_metadata(group_id, updated))
        bump = updated.topics != member.topics
        if group.assignment_epoch >= group.epoch:
            bump = bump or self._state.is_assignment_pending(group)
        epoch, names, homogeneous, bump = self._group_epoch(group, member, updated, out, now_ms, bump=bump)
        target_epoch, target = self._target(group, epoch, updated, homogeneous, out, now_ms)
        updated = self._reconcile(group_id, updated, target_epoch, target, out, bump=bump)
        out.timers.append(Schedule((SESSION, group_id, member_id), self._settings.share_session_timeout_ms(group_id)))
        if joins:
            log.debug("group %s: member %s joins", group_id, member_id)
        response = ShareGroupHeartbeatResponse(
            member_id=member_id,
            member_epoch=updated.member_epoch,
            heartbeat_interval_ms=self._settings.share_heartbeat_interval_ms(group_id),
        )
        if joins or request.subscribed_topic_names is not None or updated.assigned != member.assigned:
            response.assignment = _assignment(updated.assigned)
        out.reply = Heartbeat(response, self._state.to_initialize(group, epoch, names, out, now_ms))
        return out

    def _open(self, group_id: str, *, create: bool) -> ShareGroup:
        """Return a share group.

        If it does not exist, return a new group (with `create`) or raise GROUP_ID_NOT_FOUND.
        """
        if self._groups.get(group_id) is None:
            if not create:
                raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Share group {group_id} not found.")
            return ShareGroup(group_id)
        return self._groups.known_share(group_id)

    def _check_room(self, group: ShareGroup, member_id: str) -> None:
        limit = self._settings.config.share_max_size
        if len(group.members) >= limit and member_id not in group.members:
            raise ApiError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The share group has reached its maximum capacity of {limit} members.",
            )

    def _group_epoch(
        self, group: ShareGroup, member: ShareMember, updated: ShareMember, out: Outcome, now_ms: int, *, bump: bool
    ) -> tuple[int, Iterable[str], bool, bool]:
        """Increase the group's epoch if an increase is due.

        Return the epoch, the subscribed topics, whether all members subscribe to the same topics, and whether the epoch
        has increased.
        """
        version, size = self._topics.version, len(group.members)
        if not bump and not group.topics_are_stale(now_ms, version):
            return group.epoch, group.counts.by_name, _is_homogeneous(group.counts.by_name, size), False
        counts = group.counts.copy()
        counts.count_topics(member.topics if member.member_id in group.members else (), -1)
        counts.count_topics(updated.topics, 1)
        if updated.member_id not in group.members:
            size += 1
        epoch, metadata_hash = group.epoch, self._topics.hash_of(counts.by_name)
        bump = bump or metadata_hash != group.metadata_hash
        if bump:
            epoch += 1
            out.records.append(records.group_epoch(group.group_id, epoch, metadata_hash))
        group.refresh_deadline, group.refresh_epoch = now_ms + _REFRESH_INTERVAL_MS, epoch
        group.seen_version = version
        return epoch, counts.by_name, _is_homogeneous(counts.by_name, size), bump

    def _target(
        self, group: ShareGroup, epoch: int, updated: ShareMember, homogeneous: bool, out: Outcome, now_ms: int
    ) -> tuple[int, Partitions]:
        """Return the epoch of the target and the member's part of the target.

        If a new target is due, compute it first.
        """
        member_id = updated.member_id
        known = group.assignment_epoch, group.target.get(member_id, NOTHING)
        if group.assignment_epoch >= epoch:
            return known
        interval = self._settings.share_assignment_interval_ms(group.group_id)
        if group.assignment_timestamp and interval and now_ms < group.assignment_timestamp + interval:
            return known
        new, target = next_target(group, epoch, updated, homogeneous, self._topics, now_ms)
        out.records += new
        return epoch, target

    def _reconcile(
        self, group_id: str, member: ShareMember, epoch: int, target: Partitions, out: Outcome, *, bump: bool
    ) -> ShareMember:
        """Give the member its target, without topics to which it does not subscribe (ShareGroupAssignmentBuilder)."""
        if not bump and member.is_reconciled_to(epoch):
            return member
        subscribed = self._topics.ids_of(member.topics)
        assigned = {topic_id: indexes for topic_id, indexes in target.items() if topic_id in subscribed}
        if epoch != member.member_epoch:
            updated = replace(
                member, member_epoch=epoch, previous_epoch=member.member_epoch, state=STABLE, assigned=assigned
            )
        elif bump:
            updated = replace(member, assigned=assigned)
        else:
            updated = member
        if updated != member:
            out.records.append(records.current_assignment(group_id, updated))
        return updated

    # -- leaving

    def _leave(self, request: ShareGroupHeartbeatRequest) -> Outcome:
        group = self._groups.known_share(request.group_id)
        member = group.member(request.member_id)
        log.debug("group %s: member %s leaves", group.group_id, member.member_id)
        out = self._remove(group, member)
        response = ShareGroupHeartbeatResponse(member_id=request.member_id, member_epoch=request.member_epoch)
        out.reply = Heartbeat(response)
        return out

    def _remove(self, group: ShareGroup, member: ShareMember) -> Outcome:
        """Remove a member; the group's epoch grows."""
        group_id, member_id = group.group_id, member.member_id
        out = Outcome(records=records.member_tombstones(group_id, member_id))
        counts = group.counts.copy()
        counts.count_topics(member.topics, -1)
        epoch = group.epoch + 1
        out.records.append(records.group_epoch(group_id, epoch, self._topics.hash_of(counts.by_name)))
        if len(group.members) == 1:
            out.records.append(records.target_epoch(group_id, epoch, 0))
        out.when_written(lambda done, _now: done.timers.append(Cancel((SESSION, group_id, member_id))))
        return out

    # -- time

    def on_loaded(self, group: ShareGroup, out: Outcome, now_ms: int) -> None:
        """Start a full session for every member."""
        group.initializing_since = now_ms
        delay = self._settings.share_session_timeout_ms(group.group_id)
        out.timers += [Schedule((SESSION, group.group_id, member_id), delay) for member_id in group.members]

    def on_session_timer(self, group_id: str, member_id: str) -> Outcome:
        """Remove a member that has sent no heartbeat for too long."""
        group = self._groups.share(group_id)
        member = None if group is None else group.members.get(member_id)
        if group is None or member is None:
            return Outcome()
        log.debug("group %s: member %s is removed: its session is over", group_id, member_id)
        out = self._remove(group, member)

        def try_again(done: Outcome, _now: int) -> None:
            held = self._groups.share(group_id)
            if held is not None and member_id in held.members:
                done.timers.append(Schedule((SESSION, group_id, member_id), _RETRY_MS))

        out.when_written(lambda _done, _now: None, try_again)
        return out


def next_target(
    group: ShareGroup, epoch: int, updated: ShareMember, homogeneous: bool, topics: Topics, now_ms: int
) -> tuple[list[CoordinatorRecord], Partitions]:
    """Return the records of the target for `epoch`, and the part of the target for `updated`.

    `updated` takes the place of the member with the same id. Only initialised share partitions are assigned.
    """
    members = {**group.members, updated.member_id: updated}
    ids: dict[frozenset[str], list[bytes]] = {}
    for member in members.values():
        if member.topics not in ids:
            named = [topics.id_of(name) for name in copied_in_java_order(sorted(member.topics))]
            ids[member.topics] = [topic_id for topic_id in named if topic_id is not None]
    specs = {
        member_id: SharingMember(ids[members[member_id].topics], group.target.get(member_id, NOTHING))
        for member_id in in_java_order(members)
    }
    initialized = group.initialized
    partitions: dict[bytes, list[int]] = {}
    for topic_id in {each for known in ids.values() for each in known}:
        used = initialized.get(topic_id)
        count = topics.count_of(topic_id)
        partitions[topic_id] = [] if used is None else sorted(each for each in used.partitions if each < count)
    assignment = simple(SharingSpec(specs, homogeneous, partitions))
    out = [
        records.target_member(group.group_id, member_id, assignment.get(member_id, NOTHING))
        for member_id in specs
        if assignment.get(member_id, NOTHING) != group.target.get(member_id)
    ]
    out.append(records.target_epoch(group.group_id, epoch, now_ms))
    return out, assignment.get(updated.member_id, NOTHING)


def _is_homogeneous(counts: dict[str, int], members: int) -> bool:
    return all(count == members for count in counts.values())


def _updated(member: ShareMember, request: ShareGroupHeartbeatRequest, client_id: str, client_host: str) -> ShareMember:
    """Return the member after a request, in which null means "unchanged"."""
    names = request.subscribed_topic_names
    return replace(
        member,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        topics=member.topics if names is None else frozenset(names),
        client_id=client_id,
        client_host=client_host,
    )


def _assignment(assigned: Partitions) -> Assignment:
    return Assignment(
        topic_partitions=[TopicPartitions(topic_id=each, partitions=sorted(held)) for each, held in assigned.items()]
    )


def _check_epoch(member: ShareMember, epoch: int) -> None:
    """Accept the member's epoch, or its previous epoch, because the answer with the new epoch may be lost.

    Raises FENCED_MEMBER_EPOCH.
    """
    known, previous = member.member_epoch, member.previous_epoch
    if epoch in (0, known) or epoch == previous < known:
        return
    how = "greater" if epoch > known else "smaller"
    text = f"The share group member has a {how} member epoch ({epoch}) than the one known by the group coordinator "
    text += f"({known})"
    if epoch < known:
        text += f", and it does not match the previous member epoch ({previous})"
    raise ApiError(ErrorCode.FENCED_MEMBER_EPOCH, f"{text}. The member must abandon all its partitions and rejoin.")
