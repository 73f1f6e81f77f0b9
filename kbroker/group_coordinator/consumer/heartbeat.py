"""ConsumerGroupHeartbeat: joining, staying, leaving.

Owns the handling of the request (Kafka 4.4's GroupMetadataManager.consumerGroupHeartbeat): the checks that do not
depend on the group (GroupCoordinatorService.throwIfConsumerGroupHeartbeatRequestIsInvalid, in its order), the changes
of the member, and the form of the answer. identity.py finds the sender; target.py applies the effects to the group.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace

from kbroker.coordination.shard import Outcome
from kbroker.group_coordinator.assignment import Epochs
from kbroker.group_coordinator.config import Settings
from kbroker.group_coordinator.consumer.identity import (
    check_epoch,
    check_instance,
    check_room,
    dynamic_member,
    static_member,
)
from kbroker.group_coordinator.consumer.member_removal import MemberRemoval
from kbroker.group_coordinator.consumer.migration import Migration
from kbroker.group_coordinator.consumer.reconciliation import Owned
from kbroker.group_coordinator.consumer.regexes import MaySee, everything
from kbroker.group_coordinator.consumer.sessions import Sessions
from kbroker.group_coordinator.consumer.target import Targets
from kbroker.group_coordinator.groups.consumer_member import LEAVE_EPOCH, LEAVE_STATIC_EPOCH, ConsumerMember
from kbroker.group_coordinator.groups.store import Departure, Groups
from kbroker.group_coordinator.records import consumer_group as records
from kbroker.long_work import turn
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.consumer_groups import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from kbroker.protocol.wire import new_uuid, uuid_text

log = logging.getLogger(__name__)

_CLIENT_MADE_MEMBER_ID_SINCE = 1
MOST_TOPICS = 20_000
"""The maximum number of topics to which one member may subscribe by name.

Evaluating a subscription is one step, which takes 2 us for each name, and 10 us for each existing topic.
"""


async def distinct_topics(names: Iterable[str], most_bytes: int) -> list[str] | None:
    """Return the topics of a heartbeat without duplicates; None if there are too many, or if they exceed `most_bytes`.

    A `most_bytes` of 0 means that the limit is not known yet.
    """
    left = most_bytes
    found: dict[str, None] = {}
    for name in names:
        if name not in found:
            found[name] = None
            left -= len(name) + 1
        if left < 0 < most_bytes or len(found) > MOST_TOPICS:
            return None
        await turn
    return list(found)


class Heartbeats:
    """Heartbeats of the consumer protocol to the groups of a shard (shard.py)."""

    def __init__(
        self,
        groups: Groups,
        migration: Migration,
        targets: Targets,
        removal: MemberRemoval,
        sessions: Sessions,
        settings: Settings,
    ) -> None:
        self._groups = groups
        self._migration = migration
        self._targets = targets
        self._removal = removal
        self._sessions = sessions
        self._settings = settings

    def heartbeat(
        self,
        request: ConsumerGroupHeartbeatRequest,
        client_id: str,
        client_host: str,
        now_ms: int,
        may_see: MaySee = everything,
    ) -> Outcome:
        """Handle a ConsumerGroupHeartbeat that `validate` has accepted. Raises ApiError."""
        if request.member_epoch in (LEAVE_EPOCH, LEAVE_STATIC_EPOCH):
            return self._leave(request, now_ms)
        out = Outcome()
        joins = request.member_epoch == 0
        group = self._migration.open_group(request.group_id, joins, out)
        member_id = request.member_id
        check_room(group, member_id, request.instance_id, self._settings.config.consumer_max_size)
        member_id = member_id or uuid_text(new_uuid())
        owned: Owned = None
        if request.topic_partitions is not None:
            owned = [(each.topic_id, each.partitions) for each in request.topic_partitions]
        if request.instance_id is None:
            member = dynamic_member(group, member_id, create=joins)
            check_epoch(member, request.member_epoch, owned)
        else:
            member = static_member(group, member_id, request.instance_id, out, create=joins)
            if not joins:
                check_epoch(member, request.member_epoch, owned)
        wanted = _updated(member, request, client_id, client_host)
        updated = self._targets.advance(group, member, wanted, owned, out, now_ms, may_see=may_see)
        if joins:
            log.debug("group %s: member %s joins", group.group_id, updated.member_id)
        self._sessions.schedule(group.group_id, updated.member_id, out)
        response = ConsumerGroupHeartbeatResponse(
            member_id=updated.member_id,
            member_epoch=updated.member_epoch,
            heartbeat_interval_ms=self._settings.heartbeat_interval_ms(group.group_id),
        )
        is_full = (
            request.rebalance_timeout_ms != -1
            and (request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None)
            and request.topic_partitions is not None
        )
        if joins or is_full or member.assigned != updated.assigned:
            response.assignment = _assignment(updated.assigned)
        out.reply = response
        return out

    # -- leaving

    def _leave(self, request: ConsumerGroupHeartbeatRequest, now_ms: int) -> Outcome:
        group = self._groups.known_consumer(request.group_id)
        out = Outcome()
        if request.instance_id is None:
            member = group.member(request.member_id)
        else:
            held = group.static_member(request.instance_id)
            member = check_instance(held, request.member_id, request.instance_id)
            if request.member_epoch == LEAVE_STATIC_EPOCH:
                log.debug("group %s: static member %s leaves temporarily", group.group_id, member.member_id)
                self._groups.departed.append(Departure(group.group_id, member.assigned))
                left = replace(
                    member,
                    member_epoch=LEAVE_STATIC_EPOCH,
                    pending_revocation={},
                    assigned={topic_id: dict.fromkeys(held, 0) for topic_id, held in member.assigned.items()},
                )
                out.records.append(records.current_assignment(group.group_id, left))
                out.reply = ConsumerGroupHeartbeatResponse(member_id=member.member_id, member_epoch=LEAVE_STATIC_EPOCH)
                return out
        log.debug("group %s: member %s leaves", group.group_id, member.member_id)
        self._removal.remove(group, [member], out, now_ms)
        out.reply = ConsumerGroupHeartbeatResponse(member_id=request.member_id, member_epoch=request.member_epoch)
        return out


def _updated(
    member: ConsumerMember, request: ConsumerGroupHeartbeatRequest, client_id: str, client_host: str
) -> ConsumerMember:
    """Return the member after a request, in which null and -1 mean "unchanged"."""
    names, timeout = request.subscribed_topic_names, request.rebalance_timeout_ms
    return replace(
        member,
        instance_id=member.instance_id if request.instance_id is None else request.instance_id,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout == -1 else timeout,
        assignor=member.assignor if request.server_assignor is None else request.server_assignor,
        topics=member.topics if names is None else frozenset(names),
        regex=member.regex if request.subscribed_topic_regex is None else request.subscribed_topic_regex,
        client_id=client_id,
        client_host=client_host,
        classic=None,
    )


def _assignment(assigned: Epochs) -> Assignment:
    return Assignment(
        topic_partitions=[TopicPartitions(topic_id=t, partitions=list(indexes)) for t, indexes in assigned.items()]
    )


def validate(request: ConsumerGroupHeartbeatRequest, version: int, assignors: tuple[str, ...]) -> None:
    """Check a request; raises INVALID_REQUEST, UNSUPPORTED_ASSIGNOR."""
    epoch = request.member_epoch
    needs_member_id = version >= _CLIENT_MADE_MEMBER_ID_SINCE or epoch > 0 or epoch == LEAVE_EPOCH
    for value, name in (
        (request.member_id if needs_member_id else None, "MemberId"),
        (request.group_id, "GroupId"),
        (request.instance_id, "InstanceId"),
        (request.rack_id, "RackId"),
    ):
        if value is not None and not value.strip():
            raise _invalid(f"{name} can't be empty.")
    if epoch == 0:
        if request.rebalance_timeout_ms == -1:
            raise _invalid("RebalanceTimeoutMs must be provided in first request.")
        if request.topic_partitions is None or request.topic_partitions:
            raise _invalid("TopicPartitions must be empty when (re-)joining.")
        if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
            raise _invalid("Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.")
    elif epoch == LEAVE_STATIC_EPOCH:
        if request.instance_id is None:
            raise _invalid("InstanceId can't be null.")
    elif epoch < LEAVE_STATIC_EPOCH:
        raise _invalid("MemberEpoch is invalid.")
    if request.server_assignor is not None and request.server_assignor not in assignors:
        raise ApiError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.server_assignor} is not supported. Supported assignors: {', '.join(assignors)}.",
        )


def _invalid(text: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, text)
