"""The group coordinator as handlers see it: one method per API.

Owns the checks that need no group (empty ids, session timeouts) and the shape of each API's answer when the coordinator
as a whole cannot answer. Never decides about a group: shard.py does.

A method returns its response, or an awaitable of it where a member must wait or the high watermark lags behind.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

from kbroker.clock import Clock
from kbroker.cluster_state import OFFSETS_TOPIC, ClusterState
from kbroker.coordination.interfaces import Writer
from kbroker.coordination.outcome import EndOfTransaction, Outcome
from kbroker.coordination.service import CoordinatorService
from kbroker.group_coordinator.config import GroupConfig, Settings
from kbroker.group_coordinator.consumer.heartbeat import validate
from kbroker.group_coordinator.describe import describe_consumer_group, describe_group, list_groups
from kbroker.group_coordinator.shard import GroupShard
from kbroker.group_coordinator.topics import Topics
from kbroker.protocol.errors import DEFAULT_MESSAGES, ApiError, ErrorCode
from kbroker.protocol.messages import consumer_group_describe
from kbroker.protocol.messages.consumer_group_describe import ConsumerGroupDescribeResponse
from kbroker.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from kbroker.protocol.messages.delete_groups import DeletableGroupResult, DeleteGroupsResponse
from kbroker.protocol.messages.describe_groups import DescribedGroup, DescribeGroupsResponse
from kbroker.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from kbroker.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from kbroker.protocol.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)
from kbroker.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from kbroker.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from kbroker.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from kbroker.protocol.messages.offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from kbroker.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from kbroker.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

_RETRY_ELSEWHERE = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.REQUEST_TIMED_OUT,
)


class GroupCoordinator(CoordinatorService[GroupShard]):
    """All groups that this broker coordinates."""

    def __init__(self, config: GroupConfig, writer: Writer, clock: Clock, state: ClusterState | None = None) -> None:
        self.config = config
        self._topics = topics = Topics(state or ClusterState(""))
        self._settings = settings = Settings(config, topics)
        super().__init__(
            OFFSETS_TOPIC,
            config.offsets_topic_num_partitions,
            lambda _partition: GroupShard(config, topics, settings),
            writer,
            clock,
            config.offsets_commit_timeout_ms,
        )

    # -- the cluster

    def on_topics_deleted(self, deleted: Mapping[str, bytes]) -> None:
        """Forget all offsets in deleted topics, given by name with the ids they had."""
        for partition, shard in list(self._runtime.shards()):
            if shard is not None:
                self._runtime.run(partition, lambda shard, _now: shard.on_topics_deleted(deleted), _ignore)

    def on_cluster_state(self, _old: ClusterState, new: ClusterState) -> None:
        """Let groups see topics that appeared, grew or went, and configs of groups."""
        self._topics.update(new)

    def set_assignment_interval(self, interval_ms: int) -> None:
        """Take over group.consumer.assignment.interval.ms."""
        self._settings.assignment_interval_default_ms = interval_ms

    # -- membership

    def consumer_group_heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, *, version: int, client_id: str, client_host: str
    ) -> ConsumerGroupHeartbeatResponse | Awaitable[ConsumerGroupHeartbeatResponse]:
        """ConsumerGroupHeartbeat (KIP-848)."""

        def failed(code: ErrorCode, message: str | None) -> ConsumerGroupHeartbeatResponse:
            text = message or DEFAULT_MESSAGES.get(code)
            return ConsumerGroupHeartbeatResponse(error_code=code, error_message=text)

        try:
            validate(request, version, self.config.consumer_assignors)
        except ApiError as err:
            return failed(err.code, err.message)

        return self._runtime.run(
            self.partition_for(request.group_id),
            lambda shard, now: shard.heartbeats.heartbeat(request, client_id, client_host, now),
            failed,
        )

    def describe_consumer_groups(self, group_ids: Sequence[str]) -> ConsumerGroupDescribeResponse:
        """ConsumerGroupDescribe."""
        groups = []
        for group_id in group_ids:
            if not group_id:
                described = consumer_group_describe.DescribedGroup(error_code=ErrorCode.INVALID_GROUP_ID)
            else:
                try:
                    shard = self._runtime.shard(self.partition_for(group_id))
                    default = self.config.consumer_assignors[0]
                    described = describe_consumer_group(shard.groups, group_id, default, self._topics)
                except ApiError as err:
                    described = consumer_group_describe.DescribedGroup(
                        group_id=group_id, error_code=err.code, error_message=err.message
                    )
            groups.append(described)
        return ConsumerGroupDescribeResponse(groups=groups)

    def join_group(
        self, request: JoinGroupRequest, *, version: int, client_id: str, client_host: str
    ) -> JoinGroupResponse | Awaitable[JoinGroupResponse]:
        """JoinGroup: parked until the group's next generation begins."""
        if not request.group_id:
            return JoinGroupResponse(member_id=request.member_id, error_code=ErrorCode.INVALID_GROUP_ID)
        if not self.config.min_session_timeout_ms <= request.session_timeout_ms <= self.config.max_session_timeout_ms:
            return JoinGroupResponse(member_id=request.member_id, error_code=ErrorCode.INVALID_SESSION_TIMEOUT)

        return self._runtime.run_parked(
            self.partition_for(request.group_id),
            lambda shard, parked, now: shard.join(request, version, client_id, client_host, parked, now),
            lambda code, _message: JoinGroupResponse(error_code=code),
        )

    def sync_group(self, request: SyncGroupRequest) -> SyncGroupResponse | Awaitable[SyncGroupResponse]:
        """SyncGroup: parked until the leader's assignment is in the log."""
        if not request.group_id:
            return SyncGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID)

        return self._runtime.run_parked(
            self.partition_for(request.group_id),
            lambda shard, parked, _now: shard.sync(request, parked),
            lambda code, _message: SyncGroupResponse(error_code=code),
        )

    def heartbeat(self, request: HeartbeatRequest) -> HeartbeatResponse | Awaitable[HeartbeatResponse]:
        """Heartbeat. While the group is loading it is simply taken for good: the session starts anew after that."""
        if not request.group_id:
            return HeartbeatResponse(error_code=ErrorCode.INVALID_GROUP_ID)

        def failed(code: ErrorCode, _message: str | None) -> HeartbeatResponse:
            loading = code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            return HeartbeatResponse(error_code=ErrorCode.NONE if loading else code)

        partition = self.partition_for(request.group_id)
        return self._runtime.run(partition, lambda shard, _now: shard.heartbeat(request), failed)

    def leave_group(
        self, request: LeaveGroupRequest, *, version: int
    ) -> LeaveGroupResponse | Awaitable[LeaveGroupResponse]:
        """LeaveGroup, of one member (before version 3) or several."""
        members = request.members if version >= 3 else [MemberIdentity(member_id=request.member_id)]
        if not request.group_id:
            return LeaveGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID)

        def failed(code: ErrorCode, _message: str | None) -> LeaveGroupResponse:
            if code is not ErrorCode.UNKNOWN_MEMBER_ID:
                return LeaveGroupResponse(error_code=code)
            return LeaveGroupResponse(
                members=[
                    MemberResponse(member_id=m.member_id, group_instance_id=m.group_instance_id, error_code=code)
                    for m in members
                ]
            )

        partition = self.partition_for(request.group_id)
        return self._runtime.run(partition, lambda shard, now: shard.leave(request.group_id, members, now), failed)

    # -- offsets

    def commit_offsets(
        self, request: OffsetCommitRequest, *, version: int
    ) -> OffsetCommitResponse | Awaitable[OffsetCommitResponse]:
        """OffsetCommit of topics whose names and ids are both filled in, and of partitions that exist."""
        return self._runtime.run(
            self.partition_for(request.group_id),
            lambda shard, now: shard.commits.commit(request, version, now),
            lambda code, _message: commit_error(request, code),
        )

    def commit_offsets_in_transaction(
        self, request: TxnOffsetCommitRequest, guard: object
    ) -> TxnOffsetCommitResponse | Awaitable[TxnOffsetCommitResponse]:
        """TxnOffsetCommit of partitions that exist, of a transaction that was verified: `guard` is the proof."""
        if not request.group_id:
            return txn_commit_error(request, ErrorCode.INVALID_GROUP_ID)

        def failed(code: ErrorCode, _message: str | None) -> TxnOffsetCommitResponse:
            return txn_commit_error(request, code)

        partition = self.partition_for(request.group_id)
        return self._runtime.run(
            partition, lambda shard, now: shard.commits.commit_in_transaction(request, guard, now), failed
        )

    def end_transaction(self, partition: int, end: EndOfTransaction) -> ErrorCode | Awaitable[ErrorCode]:
        """Write the end of a transaction into a partition; its offsets are then committed, or gone."""
        outcome = Outcome(reply=ErrorCode.NONE, marker=end)
        return self._runtime.run(partition, lambda _shard, _now: outcome, lambda code, _message: code)

    def fetch_offsets(
        self, request: OffsetFetchRequestGroup, *, version: int, require_stable: bool
    ) -> OffsetFetchResponseGroup | Awaitable[OffsetFetchResponseGroup]:
        """One group of an OffsetFetch; `topics` None means all."""

        def failed(code: ErrorCode, _message: str | None) -> OffsetFetchResponseGroup:
            # Clients before 3.9 retry only what they expect here.
            return fetch_error(request, ErrorCode.NOT_COORDINATOR if code in _RETRY_ELSEWHERE else code, version)

        partition = self.partition_for(request.group_id)
        return self._runtime.read(partition, lambda shard, _now: shard.offsets.fetch(request, require_stable), failed)

    def delete_offsets(self, request: OffsetDeleteRequest) -> OffsetDeleteResponse | Awaitable[OffsetDeleteResponse]:
        """OffsetDelete of partitions that exist."""
        if not request.group_id:
            return OffsetDeleteResponse(error_code=ErrorCode.INVALID_GROUP_ID)

        return self._runtime.run(
            self.partition_for(request.group_id),
            lambda shard, _now: shard.offsets.delete(request),
            lambda code, _message: OffsetDeleteResponse(error_code=code),
        )

    # -- groups as a whole

    def describe_groups(self, group_ids: Sequence[str], *, version: int) -> DescribeGroupsResponse:
        """DescribeGroups."""
        groups = []
        for group_id in group_ids:
            try:
                shard = self._runtime.shard(self.partition_for(group_id))
                groups.append(describe_group(shard.groups, group_id, version))
            except ApiError as err:
                groups.append(DescribedGroup(group_id=group_id, error_code=err.code))
        return DescribeGroupsResponse(groups=groups)

    def list_groups(self, request: ListGroupsRequest) -> ListGroupsResponse:
        """ListGroups: all or nothing, as long as a partition is loading."""
        if self._closed:
            return ListGroupsResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
        groups = []
        for _, shard in self._runtime.shards():
            if shard is None:
                return ListGroupsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            groups += list_groups(shard.groups, request.states_filter, request.types_filter)
        return ListGroupsResponse(groups=groups)

    def delete_groups(self, group_ids: Sequence[str]) -> DeleteGroupsResponse | Awaitable[DeleteGroupsResponse]:
        """DeleteGroups; partition by partition, each as one batch."""
        by_partition: dict[int, list[str]] = {}
        for group_id in dict.fromkeys(group_ids):
            by_partition.setdefault(self.partition_for(group_id), []).append(group_id)
        parts = [self._delete_groups(partition, names) for partition, names in by_partition.items()]
        if all(isinstance(part, list) for part in parts):
            return DeleteGroupsResponse(results=[result for part in parts for result in _as_list(part)])
        return _gather_deleted(parts)

    def _delete_groups(self, partition: int, group_ids: list[str]) -> Any:
        def failed(code: ErrorCode, _message: str | None) -> list[DeletableGroupResult]:
            return [DeletableGroupResult(group_id=group_id, error_code=code) for group_id in group_ids]

        return self._runtime.run(partition, lambda shard, _now: shard.delete_groups(group_ids), failed)


def commit_error(request: OffsetCommitRequest, code: ErrorCode) -> OffsetCommitResponse:
    """Return an OffsetCommit answer with one error for all partitions: the API has no other place for it."""
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(partition_index=p.partition_index, error_code=code)
                    for p in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def txn_commit_error(request: TxnOffsetCommitRequest, code: ErrorCode) -> TxnOffsetCommitResponse:
    """Return a TxnOffsetCommit answer with one error for all partitions."""
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(partition_index=p.partition_index, error_code=code)
                    for p in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def fetch_error(request: OffsetFetchRequestGroup, code: ErrorCode, version: int) -> OffsetFetchResponseGroup:
    """Return an OffsetFetch answer with an error for the group; version 1 has only partitions to put it in."""
    if version >= 2:
        return OffsetFetchResponseGroup(group_id=request.group_id, error_code=code)
    return OffsetFetchResponseGroup(
        group_id=request.group_id,
        topics=[
            OffsetFetchResponseTopics(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartitions(
                        partition_index=index, committed_offset=-1, metadata="", error_code=code
                    )
                    for index in topic.partition_indexes
                ],
            )
            for topic in request.topics or []
        ],
    )


async def _gather_deleted(parts: Sequence[Any]) -> DeleteGroupsResponse:
    results: list[DeletableGroupResult] = []
    for part in parts:
        results += part if isinstance(part, list) else await part
    return DeleteGroupsResponse(results=results)


def _as_list(part: Any) -> list[DeletableGroupResult]:
    assert isinstance(part, list)
    return part


def _ignore(_code: ErrorCode, _message: str | None) -> None:
    """Pass over a failure: it has been logged."""
