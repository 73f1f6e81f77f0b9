"""StreamsGroupHeartbeat: joining, staying, leaving.

Owns the handling of the request (Kafka's GroupMetadataManager.streamsGroupHeartbeat), in this order: the member, the
topology, the group's epoch, the target, the member's step, and the form of the answer. requests.py has checked the
request; target.py computes targets, members.py finds and removes members.
"""

from __future__ import annotations

import logging
from collections.abc import Container
from dataclasses import replace
from typing import NamedTuple

from kbroker.coordination.shard import Outcome
from kbroker.group_coordinator.groups.consumer_member import LEAVE_EPOCH, LEAVE_STATIC_EPOCH
from kbroker.group_coordinator.groups.streams_group import NOT_VALIDATED, Offsets, StreamsGroup
from kbroker.group_coordinator.groups.streams_member import StreamsMember
from kbroker.group_coordinator.records import streams_group as records
from kbroker.group_coordinator.streams.endpoints import partitions_by_endpoint
from kbroker.group_coordinator.streams.members import StreamsMembers
from kbroker.group_coordinator.streams.reconciliation import reconcile
from kbroker.group_coordinator.streams.requests import Claims
from kbroker.group_coordinator.streams.target import StreamsTargets
from kbroker.group_coordinator.streams_settings import RACK_TAGS, StreamsSettings
from kbroker.group_coordinator.topics import Topics
from kbroker.group_coordinator.topologies.configured_topology import ConfiguredTopology, StatusCode, configure
from kbroker.group_coordinator.topologies.topology import Topology, from_record, record_of
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.streams_groups import (
    Status,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    TopicInfo,
)

log = logging.getLogger(__name__)

_REFRESH_INTERVAL_MS = 2**31 - 1
_TAGS_SINCE = 1


class HeartbeatAnswer(NamedTuple):
    """The response, and the internal topics that are missing."""

    response: StreamsGroupHeartbeatResponse
    missing: tuple[TopicInfo, ...] = ()


class Sender(NamedTuple):
    """The client that sends a heartbeat, and the version of its request."""

    client_id: str
    client_host: str
    version: int


class StreamsHeartbeats:
    """Heartbeats to the streams groups of a shard (shard.py)."""

    def __init__(
        self, members: StreamsMembers, targets: StreamsTargets, topics: Topics, settings: StreamsSettings
    ) -> None:
        self._members = members
        self._targets = targets
        self._topics = topics
        self._settings = settings

    def heartbeat(self, request: StreamsGroupHeartbeatRequest, claims: Claims, sender: Sender, now_ms: int) -> Outcome:
        """Handle a heartbeat. Raises ApiError. The reply is a HeartbeatAnswer."""
        if request.member_epoch in (LEAVE_EPOCH, LEAVE_STATIC_EPOCH):
            return self._leave(request)
        out = Outcome()
        joins = request.member_epoch == 0
        group = self._members.open_group(request.group_id, joins, out)
        if joins:
            self._members.check_room(group, request.member_id, request.instance_id)
        replaced = group.static_member(request.instance_id)
        member = self._members.sender(group, request, claims.owned, out)
        updated = _updated(member, request, claims, sender)
        changed = self._take_metadata(group, member, updated, out)
        topology = _updated_topology(group, request, out)
        status = _stale(group, updated)
        configured, metadata_hash, reconfigured = self._configured(group, topology, now_ms)
        validated = topology.epoch if configured.is_ready else NOT_VALIDATED
        if configured.is_ready:
            _check_tasks(configured, claims)
        self._take_offsets(group, request.member_id, topology, claims, out)
        configs = self._settings.assignment_configs(group.group_id)
        epoch = group.epoch
        if (
            changed
            or reconfigured
            or validated != group.validated_topology_epoch
            or configs != group.assignment_configs
        ):
            epoch += 1
            out.records.append(records.group_epoch(group, epoch, metadata_hash, validated, configs))
            group.refresh_deadline, group.refresh_epoch = now_ms + _REFRESH_INTERVAL_MS, epoch
            log.debug("group %s: epoch %d", group.group_id, epoch)
        if group.is_empty:
            self._targets.delay(group.group_id, out, now_ms)
        target_epoch, target, waits = self._targets.target(group, epoch, updated, configured, configs, out, now_ms)
        if waits is not None:
            status.append(Status(StatusCode.ASSIGNMENT_DELAYED, waits))
        settled = reconcile(group, updated, target_epoch, target, claims.owned)
        if settled != updated:
            out.records.append(records.current_assignment(group.group_id, settled))
            self._members.time_revocation(group.group_id, settled, out)
        self._members.schedule(group.group_id, settled.member_id, out)
        if request.shutdown_application and group.shutdown_by is None:
            group.shutdown_by = request.member_id
        out.reply = self._answer(group, member, settled, request, configured, configs, status, sender, replaced)
        return out

    # -- steps

    @staticmethod
    def _take_metadata(group: StreamsGroup, member: StreamsMember, updated: StreamsMember, out: Outcome) -> bool:
        """Write a member's metadata if it has changed; return whether the group needs a new target."""
        if member == updated:
            return False
        out.records.append(records.member_metadata(group.group_id, updated))
        return updated.instance_id is None or _relevant(member) != _relevant(updated)

    def _take_offsets(
        self, group: StreamsGroup, member_id: str, topology: Topology, claims: Claims, out: Outcome
    ) -> None:
        """Record the offsets to which a member has restored its tasks. If a client does not join, store nothing."""
        known = topology.subtopologies
        group.put_offsets(member_id, _known(claims.offsets, known), _known(claims.end_offsets, known))

        def forget(_out: Outcome, _now: int) -> None:
            if member_id not in group.members:
                group.forget(member_id)

        if member_id not in group.members:
            out.when_written(lambda _out, _now: None, forget)

    def _configured(self, group: StreamsGroup, topology: Topology, now_ms: int) -> tuple[ConfiguredTopology, int, bool]:
        """Check the topology against the topics if either is new.

        Return the checked topology, the hash of its topics, and whether the hash has changed.
        """
        known, version = group.configured, self._topics.version
        is_new = group.topology is None
        if known is not None and not is_new and not group.topics_are_stale(now_ms, version):
            return known, group.metadata_hash, False
        metadata_hash = self._topics.hash_of(topology.required_topics)
        changed = metadata_hash != group.metadata_hash
        group.seen_version = version
        if known is not None and not is_new and not changed:
            return known, metadata_hash, False
        configured = configure(topology, self._topics.partitions_of)
        group.put_configured(configured)
        return configured, metadata_hash, changed

    # -- the answer

    def _answer(
        self,
        group: StreamsGroup,
        member: StreamsMember,
        updated: StreamsMember,
        request: StreamsGroupHeartbeatRequest,
        configured: ConfiguredTopology,
        configs: dict[str, str],
        status: list[Status],
        sender: Sender,
        replaced: StreamsMember | None,
    ) -> HeartbeatAnswer:
        group_id, settings = group.group_id, self._settings
        lag = settings.acceptable_recovery_lag(group_id)
        response = StreamsGroupHeartbeatResponse(
            member_id=updated.member_id,
            member_epoch=updated.member_epoch,
            heartbeat_interval_ms=settings.heartbeat_interval_ms(group_id),
            task_offset_interval_ms=settings.task_offset_interval_ms(group_id),
            acceptable_recovery_lag=lag,
        )
        joins, moved = request.member_epoch == 0, member.assigned != updated.assigned
        if joins or moved:
            response.active_tasks = records.task_ids(updated.assigned.active)
            response.standby_tasks = records.task_ids(updated.assigned.standby)
            response.warmup_tasks = records.task_ids(updated.assigned.warmup)
        came_back = replaced is not None and replaced.member_id != updated.member_id
        self._tell_endpoints(group, member, updated, request, response, moved=moved, joins=joins or came_back)
        if configured.fault is not None:
            status.append(Status(configured.fault.code, configured.fault.detail))
        if group.shutdown_by is not None:
            status.append(Status(StatusCode.SHUTDOWN_APPLICATION, _SHUTDOWN.format(group.shutdown_by)))
        missing_tags = [tag for tag in configs.get(RACK_TAGS, "").split(",") if tag and tag not in updated.client_tags]
        if missing_tags and sender.version >= _TAGS_SINCE:
            status.append(Status(StatusCode.MISSING_CLIENT_TAGS, _TAGS.format(", ".join(missing_tags))))
        response.status = status
        return HeartbeatAnswer(response, tuple(configured.missing))

    def _tell_endpoints(
        self,
        group: StreamsGroup,
        member: StreamsMember,
        updated: StreamsMember,
        request: StreamsGroupHeartbeatRequest,
        response: StreamsGroupHeartbeatResponse,
        *,
        moved: bool,
        joins: bool,
    ) -> None:
        """Add the endpoints of the partitions to the response, if the member does not know the newest endpoints."""
        relocated = member.endpoint != updated.endpoint
        if joins or moved or relocated:
            group.endpoints.pop(updated.member_id, None)
        if relocated or (moved and updated.endpoint is not None):
            group.endpoint_epoch += 1
        if group.endpoint_epoch != request.endpoint_information_epoch:
            response.partitions_by_user_endpoint = partitions_by_endpoint(group, updated, self._topics)
        if self._members.has(group.group_id):
            response.endpoint_information_epoch = group.endpoint_epoch

    # -- leaving

    def _leave(self, request: StreamsGroupHeartbeatRequest) -> Outcome:
        out = Outcome()
        group = self._members.known(request.group_id)
        if request.shutdown_application and group.shutdown_by is None:
            group.shutdown_by = request.member_id
        member = self._members.leaving(group, request)
        epoch = request.member_epoch
        if request.instance_id is not None and epoch == LEAVE_STATIC_EPOCH:
            log.debug("group %s: static member %s leaves temporarily", group.group_id, member.member_id)
            self._members.leave_for_a_while(group, member, out)
            member_id = member.member_id
        else:
            log.debug("group %s: member %s leaves", group.group_id, member.member_id)
            self._members.remove(group, member, out)
            member_id = request.member_id
        out.reply = HeartbeatAnswer(StreamsGroupHeartbeatResponse(member_id=member_id, member_epoch=epoch))
        return out


_SHUTDOWN = "Streams group member {} encountered a fatal error and requested a shutdown for the entire application."
_TAGS = (
    "Missing required client tags for rack-aware standby assignment: [{}]. Configure them via 'client.tag.<tagKey>' in "
    "your Streams config."
)


def _updated(
    member: StreamsMember, request: StreamsGroupHeartbeatRequest, claims: Claims, sender: Sender
) -> StreamsMember:
    """Return the member after a request, in which null and -1 mean "unchanged"."""
    endpoint = request.user_endpoint
    address = None if endpoint is None else (endpoint.host, endpoint.port)
    timeout = request.rebalance_timeout_ms
    return replace(
        member,
        instance_id=member.instance_id if request.instance_id is None else request.instance_id,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout == -1 else timeout,
        topology_epoch=member.topology_epoch if request.topology is None else request.topology.epoch,
        client_id=sender.client_id,
        client_host=sender.client_host,
        process_id=member.process_id if request.process_id is None else request.process_id,
        client_tags=member.client_tags if claims.tags is None else claims.tags,
        endpoint=address if address is not None or request.member_epoch == 0 else member.endpoint,
    )


def _relevant(member: StreamsMember) -> tuple[object, ...]:
    """Return the parts of a static member on which a target depends."""
    return member.topology_epoch, member.rack_id, member.client_tags, member.process_id


def _known(offsets: Offsets | None, subtopologies: Container[str]) -> Offsets | None:
    return None if offsets is None else {name: each for name, each in offsets.items() if name in subtopologies}


def _updated_topology(group: StreamsGroup, request: StreamsGroupHeartbeatRequest, out: Outcome) -> Topology:
    """Return the group's topology, which its first member sets.

    Raises INVALID_REQUEST if a member has another topology.
    """
    known = group.topology
    if request.topology is None:
        if known is None:
            raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, "The topology is null and the group topology is also null.")
        return known
    value = record_of(request.topology)
    asked = from_record(value)
    if known is None:
        out.records.append(records.topology(group.group_id, value))
        return asked
    if known.epoch <= asked.epoch and known != asked:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Topology updates are not supported yet.")
    return known


def _stale(group: StreamsGroup, member: StreamsMember) -> list[Status]:
    known = group.topology
    if known is None or member.topology_epoch >= known.epoch:
        return []
    text = f"The member's topology epoch {member.topology_epoch} is behind the group's topology epoch {known.epoch}."
    return [Status(StatusCode.STALE_TOPOLOGY, text)]


def _check_tasks(configured: ConfiguredTopology, claims: Claims) -> None:
    """Refuse tasks that the topology does not have; raises INVALID_REQUEST."""
    if claims.owned is None:
        return
    for tasks in (claims.owned.active, claims.owned.standby, claims.owned.warmup):
        for name, indexes in tasks.items():
            subtopology = configured.subtopologies.get(name)
            if subtopology is None:
                raise ApiError(ErrorCode.INVALID_REQUEST, f"Subtopology {name} does not exist in the topology.")
            for index in indexes:
                if not 0 <= index < subtopology.tasks:
                    raise ApiError(
                        ErrorCode.INVALID_REQUEST,
                        f"Task {index} for subtopology {name} is invalid. Number of tasks for this subtopology: "
                        f"{subtopology.tasks}",
                    )
