"""The group coordinator for the handlers: one method per API.

Owns the checks that need no group (empty ids, session timeouts), and the form of each API's answer while the
coordinator is not available. Never decides about a group: shard.py decides.

A method returns its response, or an awaitable of the response if a member must wait or if a write is not committed yet.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

from kbroker.clock import Clock
from kbroker.cluster_state import OFFSETS_TOPIC, ClusterState
from kbroker.coordination.service import CoordinatorService
from kbroker.coordination.shard import EndOfTransaction, Outcome, Writer, answerable
from kbroker.group_coordinator.classic.join_group import why_no_join
from kbroker.group_coordinator.commit_building import Commit, build_commit, build_commit_in_transaction
from kbroker.group_coordinator.config import GroupConfig, Settings
from kbroker.group_coordinator.consumer.heartbeat import distinct_topics, validate
from kbroker.group_coordinator.consumer.regexes import MaySee, everything
from kbroker.group_coordinator.describe import (
    describe_consumer_group,
    describe_group,
    describe_streams_group,
    list_groups,
)
from kbroker.group_coordinator.groups.store import Group
from kbroker.group_coordinator.leaving import Leaving
from kbroker.group_coordinator.shard import GroupShard
from kbroker.group_coordinator.share_groups import ShareGroups, Sharing
from kbroker.group_coordinator.streams.failed_topics import FailedTopics
from kbroker.group_coordinator.streams.heartbeat import HeartbeatAnswer, Sender
from kbroker.group_coordinator.streams.requests import claims_of
from kbroker.group_coordinator.streams_settings import StreamsSettings
from kbroker.group_coordinator.stuck_offsets import Stuck
from kbroker.group_coordinator.topics import Topics
from kbroker.group_coordinator.topologies.topology import topics_in
from kbroker.long_work import awaited, each, every, turn
from kbroker.protocol.errors import DEFAULT_MESSAGES, ApiError, ErrorCode
from kbroker.protocol.messages import consumer_groups
from kbroker.protocol.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from kbroker.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from kbroker.protocol.messages.groups import (
    DeletableGroupResult,
    DeleteGroupsResponse,
    DescribedGroup,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from kbroker.protocol.messages.streams_groups import (
    DescribedStreamsGroup,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
)

FEW_MEMBERS = FEW_TOPICS = 100
FEW_ASSIGNMENTS = 1_000
"""The maximum number of members that leave in one step. A longer list is first reduced (leaving.py)."""
DELETED_AT_ONCE = 20
_RETRY_ELSEWHERE = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.REQUEST_TIMED_OUT,
)


class GroupCoordinator(CoordinatorService[GroupShard]):
    """All groups that this broker coordinates."""

    def __init__(
        self,
        config: GroupConfig,
        writer: Writer,
        clock: Clock,
        state: ClusterState | None = None,
        sharing: Sharing | None = None,
    ) -> None:
        self.config = config
        self._clock = clock
        self._topics = topics = Topics(state or ClusterState(""))
        self._settings = settings = Settings(config, topics)
        self.streams = streams = StreamsSettings(config.streams, topics)
        self.failed_topics = FailedTopics()
        super().__init__(
            OFFSETS_TOPIC,
            config.offsets_topic_num_partitions,
            lambda _partition: GroupShard(config, topics, settings, streams),
            writer,
            clock,
            config.offsets_commit_timeout_ms,
        )
        self.stuck: Callable[[], Mapping[str, Sequence[Stuck]]] = dict
        """Returns the records at which groups make no progress, by group."""
        self.rereads: Callable[[], Iterable[tuple[str, int, int, str, str, int]]] = tuple
        """Returns the clients that fetch the same record again and again.

        A client is described by the fields of messages.groups.Reread.
        """
        self.share_groups: ShareGroups | None = None
        """The APIs of share groups; None without `sharing`."""
        if sharing is not None:
            self.share_groups = ShareGroups(
                self._runtime, self.partition_for, topics, sharing, config.share_assignor, self._most_bytes
            )

    def close(self) -> None:
        """Answer every parked request and stop."""
        if self.share_groups is not None:
            self.share_groups.close()
        super().close()

    def loaded_shard(self, group_id: str) -> GroupShard | None:
        """Return the shard of a group if it is loaded here."""
        try:
            return self._runtime.shard(self.partition_for(group_id))
        except ApiError:
            return None

    # -- the cluster

    def on_topics_deleted(self, deleted: Mapping[str, bytes]) -> None:
        """Forget all offsets in deleted topics. `deleted` maps their names to their former ids."""
        for partition, shard in list(self._runtime.shards()):
            if shard is not None:
                self._runtime.run(partition, lambda shard, _now: shard.on_topics_deleted(deleted), _ignore)
                self._runtime.run(
                    partition,
                    lambda shard, now: shard.at(now).share_state.on_topics_deleted(deleted.values()),
                    _ignore,
                )

    def on_cluster_state(self, _old: ClusterState, new: ClusterState) -> None:
        """Apply created, extended and deleted topics, and changed group configs, to the groups."""
        self._topics.update(new)

    def set_assignment_interval(self, interval_ms: int) -> None:
        """Set group.consumer.assignment.interval.ms."""
        self._settings.assignment_interval_default_ms = interval_ms

    def set_share_assignment_interval(self, interval_ms: int) -> None:
        """Set group.share.assignment.interval.ms."""
        self._settings.share_assignment_interval_default_ms = interval_ms

    # -- membership

    def consumer_group_heartbeat(
        self,
        request: ConsumerGroupHeartbeatRequest,
        *,
        version: int,
        client_id: str,
        client_host: str,
        may_see: MaySee = everything,
    ) -> ConsumerGroupHeartbeatResponse | Awaitable[ConsumerGroupHeartbeatResponse]:
        """Handle a ConsumerGroupHeartbeat (KIP-848). Patterns match only topics that the member `may_see`.

        Duplicates in a long list of topics are removed, and all topics must fit into one record.
        """
        partition = self.partition_for(request.group_id)

        def failed(code: ErrorCode, message: str | None) -> ConsumerGroupHeartbeatResponse:
            text = message or DEFAULT_MESSAGES.get(code)
            return ConsumerGroupHeartbeatResponse(error_code=code, error_message=text)

        try:
            validate(request, version, self.config.consumer_assignors)
        except ApiError as err:
            return failed(err.code, err.message)

        def decided() -> ConsumerGroupHeartbeatResponse | Awaitable[ConsumerGroupHeartbeatResponse]:
            return self._runtime.run(
                partition,
                lambda shard, now: shard.heartbeats.heartbeat(request, client_id, client_host, now, may_see),
                failed,
            )

        async def of_many(names: Iterable[str]) -> ConsumerGroupHeartbeatResponse:
            distinct = await distinct_topics(names, self._most_bytes(partition))
            if distinct is None:
                return failed(answerable(ErrorCode.MESSAGE_TOO_LARGE), None)
            request.subscribed_topic_names = distinct
            await self._topics.prepared(distinct)
            return await awaited(decided())

        names = request.subscribed_topic_names
        return of_many(names) if names is not None and len(names) > FEW_TOPICS else decided()

    async def streams_group_heartbeat(self, request: StreamsGroupHeartbeatRequest, sender: Sender) -> HeartbeatAnswer:
        """Handle a StreamsGroupHeartbeat (KIP-1071): return the response, and the internal topics that are missing."""

        def failed(code: ErrorCode, message: str | None) -> HeartbeatAnswer:
            text = message or DEFAULT_MESSAGES.get(code)
            return HeartbeatAnswer(StreamsGroupHeartbeatResponse(error_code=code, error_message=text))

        try:
            claims = await claims_of(request)
        except ApiError as err:
            return failed(err.code, err.message)
        if request.topology is not None:
            await self._topics.prepared(await topics_in(request.topology))
        return await awaited(
            self._runtime.run(
                self.partition_for(request.group_id),
                lambda shard, now: shard.streams.heartbeat(request, claims, sender, now),
                failed,
            )
        )

    async def describe_streams_groups(self, group_ids: Iterable[str]) -> list[DescribedStreamsGroup]:
        """Handle a StreamsGroupDescribe: return an answer for each group, in order."""
        return await every(group_ids, self._describe_streams_group)

    async def _describe_streams_group(self, group_id: str) -> DescribedStreamsGroup:
        if not group_id:
            return DescribedStreamsGroup(error_code=ErrorCode.INVALID_GROUP_ID)
        try:
            shard = self._runtime.shard(self.partition_for(group_id))
            return await describe_streams_group(shard.groups, group_id, self.config.streams.assignor)
        except ApiError as err:
            return DescribedStreamsGroup(group_id=group_id, error_code=err.code, error_message=err.message)

    async def describe_consumer_groups(self, group_ids: Iterable[str]) -> list[consumer_groups.DescribedGroup]:
        """Handle a ConsumerGroupDescribe: return an answer for each group, in order."""
        return await every(group_ids, self._describe_consumer_group)

    async def _describe_consumer_group(self, group_id: str) -> consumer_groups.DescribedGroup:
        if not group_id:
            return consumer_groups.DescribedGroup(error_code=ErrorCode.INVALID_GROUP_ID)
        try:
            shard = self._runtime.shard(self.partition_for(group_id))
            default = self.config.consumer_assignors[0]
            return await describe_consumer_group(shard.groups, group_id, default, self._topics)
        except ApiError as err:
            return consumer_groups.DescribedGroup(group_id=group_id, error_code=err.code, error_message=err.message)

    def join_group(
        self, request: JoinGroupRequest, *, version: int, client_id: str, client_host: str
    ) -> JoinGroupResponse | Awaitable[JoinGroupResponse]:
        """Handle a JoinGroup, which is parked until the group's next generation begins."""
        code = why_no_join(request, self.config)
        if code is not ErrorCode.NONE:
            return JoinGroupResponse(member_id=request.member_id, error_code=code)

        return self._runtime.run_parked(
            self.partition_for(request.group_id),
            lambda shard, parked, now: shard.join(request, version, client_id, client_host, parked, now),
            lambda code, _message: JoinGroupResponse(error_code=code),
        )

    async def sync_group(self, request: SyncGroupRequest) -> SyncGroupResponse:
        """Handle a SyncGroup, which is parked until the leader's assignment is in the log.

        In a long list of assignments, the last entry of each member counts, and entries of unknown ids are ignored.
        """
        if not request.group_id:
            return SyncGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID)
        partition = self.partition_for(request.group_id)
        if len(request.assignments) > FEW_ASSIGNMENTS:
            try:
                members = self._runtime.shard(partition).groups.get(request.group_id)
            except ApiError as err:
                return SyncGroupResponse(error_code=err.code)
            request.assignments = await _assigned(request.assignments, members)
        return await awaited(
            self._runtime.run_parked(
                partition,
                lambda shard, parked, _now: shard.sync(request, parked),
                lambda code, _message: SyncGroupResponse(error_code=code),
            )
        )

    def heartbeat(self, request: HeartbeatRequest) -> HeartbeatResponse | Awaitable[HeartbeatResponse]:
        """Handle a Heartbeat. It always succeeds while the group is loading: the session restarts afterwards."""
        if not request.group_id:
            return HeartbeatResponse(error_code=ErrorCode.INVALID_GROUP_ID)

        def failed(code: ErrorCode, _message: str | None) -> HeartbeatResponse:
            loading = code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            return HeartbeatResponse(error_code=ErrorCode.NONE if loading else code)

        partition = self.partition_for(request.group_id)
        return self._runtime.run(partition, lambda shard, _now: shard.heartbeat(request), failed)

    async def leave_group(self, request: LeaveGroupRequest, *, version: int) -> LeaveGroupResponse:
        """Handle a LeaveGroup of one member (before version 3) or of several members.

        All members leave in one decision. Of a long list, only ids that can be members are kept, each once.
        """
        group_id = request.group_id
        members = request.members if version >= 3 else [MemberIdentity(member_id=request.member_id)]
        if not group_id:
            return LeaveGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID)
        partition = self.partition_for(group_id)
        leaving = Leaving(members)
        if len(members) > FEW_MEMBERS:
            try:
                await leaving.sift(self._runtime.shard(partition).groups.get(group_id))
            except ApiError as err:
                return LeaveGroupResponse(error_code=err.code)
            if not leaving.members:
                return await leaving.answer(LeaveGroupResponse())
        answer = self._runtime.run(
            partition, lambda shard, now: shard.leave(group_id, leaving.members, now), leaving.failed
        )
        return await leaving.answer(await awaited(answer))

    # -- offsets

    async def build_commit(self, request: OffsetCommitRequest) -> Commit:
        """Build the records of `commit_offsets`. Raises ApiError."""
        limit, most_bytes = (
            self.config.offset_metadata_max_bytes,
            self._most_bytes(self.partition_for(request.group_id)),
        )
        return await build_commit(request, self._clock.now_ms(), limit, most_bytes)

    def commit_offsets(
        self, request: OffsetCommitRequest, commit: Commit, *, version: int
    ) -> OffsetCommitResponse | ErrorCode | Awaitable[OffsetCommitResponse | ErrorCode]:
        """Handle an OffsetCommit of topics with both name and id, and of existing partitions.

        If the result is an error code, it applies to all partitions.
        """
        return self._runtime.run(
            self.partition_for(request.group_id),
            lambda shard, _now: shard.commits.commit(request, version, commit),
            lambda code, _message: code,
        )

    async def build_commit_in_transaction(self, request: TxnOffsetCommitRequest) -> Commit:
        """Build the records of `commit_offsets_in_transaction`. Raises ApiError."""
        limit, most_bytes = (
            self.config.offset_metadata_max_bytes,
            self._most_bytes(self.partition_for(request.group_id)),
        )
        return await build_commit_in_transaction(request, self._clock.now_ms(), limit, most_bytes)

    def commit_offsets_in_transaction(
        self, request: TxnOffsetCommitRequest, guard: object, commit: Commit, *, version: int
    ) -> TxnOffsetCommitResponse | ErrorCode | Awaitable[TxnOffsetCommitResponse | ErrorCode]:
        """Handle a TxnOffsetCommit of topics with both name and id, and of existing partitions.

        `guard` proves that the transaction was verified.

        If the result is an error code, it applies to all partitions.
        """
        if not request.group_id:
            return ErrorCode.INVALID_GROUP_ID
        return self._runtime.run(
            self.partition_for(request.group_id),
            lambda shard, _now: shard.commits.commit_in_transaction(request, version, guard, commit),
            lambda code, _message: code,
        )

    def _most_bytes(self, partition: int) -> int:
        """Return the maximum batch size of a partition in bytes, or 0 if the size is unknown.

        The group's decision then fails.
        """
        try:
            return self._writer.max_batch_bytes(partition)
        except ApiError:
            return 0

    def end_transaction(self, partition: int, end: EndOfTransaction) -> ErrorCode | Awaitable[ErrorCode]:
        """Write a transaction's end into a partition. The end commits or drops the transaction's offsets."""
        outcome = Outcome(reply=ErrorCode.NONE, marker=end)
        return self._runtime.run(partition, lambda _shard, _now: outcome, lambda code, _message: code)

    async def fetch_offsets(
        self, request: OffsetFetchRequestGroup, *, require_stable: bool
    ) -> OffsetFetchResponseGroup | Awaitable[OffsetFetchResponseGroup]:
        """Handle one group of an OffsetFetch; `topics` None requests all topics."""

        def failed(code: ErrorCode, _message: str | None) -> OffsetFetchResponseGroup:
            # Clients before 3.9 retry only on some errors: map retriable errors to NOT_COORDINATOR.
            code = ErrorCode.NOT_COORDINATOR if code in _RETRY_ELSEWHERE else code
            return OffsetFetchResponseGroup(group_id=request.group_id, error_code=code)

        return await self._runtime.read_divided(
            self.partition_for(request.group_id),
            lambda shard, _now: shard.offsets.fetch(request, require_stable),
            failed,
        )

    async def delete_offsets(self, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
        """Handle an OffsetDelete of existing partitions.

        If a partition is repeated, the group decides about it once, and each entry gets an answer.
        """
        if not request.group_id:
            return OffsetDeleteResponse(error_code=ErrorCode.INVALID_GROUP_ID)
        wanted: dict[str, dict[int, OffsetDeleteRequestPartition]] = {}
        for topic in request.topics:
            for partition in topic.partitions:
                wanted.setdefault(topic.name, {})[partition.partition_index] = partition
                await turn
            await turn
        once = OffsetDeleteRequest(
            group_id=request.group_id,
            topics=[OffsetDeleteRequestTopic(name, list(partitions.values())) for name, partitions in wanted.items()],
        )
        answer = self._runtime.run(
            self.partition_for(request.group_id),
            lambda shard, _now: shard.offsets.delete(once),
            lambda code, _message: OffsetDeleteResponse(error_code=code),
        )
        return await _deleted(request, await awaited(answer))

    # -- groups as a whole

    async def describe_groups(self, group_ids: Iterable[str], *, version: int) -> list[DescribedGroup]:
        """Handle a DescribeGroups: return an answer for each group, in order."""
        return await every(group_ids, lambda group_id: self._describe_group(group_id, version))

    async def _describe_group(self, group_id: str, version: int) -> DescribedGroup:
        try:
            shard = self._runtime.shard(self.partition_for(group_id))
            return await describe_group(shard.groups, group_id, version)
        except ApiError as err:
            return DescribedGroup(group_id=group_id, error_code=err.code)

    async def list_groups(self, request: ListGroupsRequest) -> ListGroupsResponse:
        """Handle a ListGroups. The complete request fails while any partition is loading. Filters ignore case."""
        if self._closed:
            return ListGroupsResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
        states: set[str] = set()
        for state in request.states_filter:
            states.add(state.strip().lower())
            await turn
        types: set[str] = set()
        for name in request.types_filter:
            types.add(name.lower())
            await turn
        groups: list[ListedGroup] = []
        stuck = self.stuck()
        for _, shard in list(self._runtime.shards()):
            if shard is None:
                return ListGroupsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            groups += await list_groups(list(shard.groups), states, types, stuck)
        return ListGroupsResponse(groups=groups)

    async def delete_groups(self, group_ids: Iterable[str]) -> DeleteGroupsResponse:
        """Handle a DeleteGroups, one partition after the other; each batch deletes some groups of a partition."""
        by_partition: dict[int, dict[str, None]] = {}
        for group_id in group_ids:
            by_partition.setdefault(self.partition_for(group_id), {})[group_id] = None
            await turn
        parts: list[Any] = []
        for partition, names in by_partition.items():
            left = iter(names)
            while piece := list(islice(left, DELETED_AT_ONCE)):
                parts.append(self._delete_groups(partition, piece))
                await turn
        results: list[DeletableGroupResult] = []
        for part in parts:
            results += await awaited(part)
            await turn
        return DeleteGroupsResponse(results=results)

    def _delete_groups(self, partition: int, group_ids: list[str]) -> Any:
        if self.share_groups is not None and self._has_share_group(partition, group_ids):
            return self.share_groups.delete(partition, group_ids, partial(self._delete, partition))
        return self._delete(partition, group_ids)

    def _has_share_group(self, partition: int, group_ids: list[str]) -> bool:
        try:
            groups = self._runtime.shard(partition).groups
        except ApiError:
            return False
        return any(groups.share(group_id) is not None for group_id in group_ids)

    def _delete(self, partition: int, group_ids: list[str]) -> Any:
        return self._runtime.run(
            partition,
            lambda shard, _now: shard.delete_groups(group_ids),
            lambda code, _message: [DeletableGroupResult(group_id=each, error_code=code) for each in group_ids],
        )


async def _assigned(
    assignments: Iterable[SyncGroupRequestAssignment], group: Group | None
) -> list[SyncGroupRequestAssignment]:
    """Return the assignment of each member of a group; a member's last entry counts."""
    last: dict[str, SyncGroupRequestAssignment] = {}
    for assignment in assignments:
        if group is not None and assignment.member_id in group.members:
            last[assignment.member_id] = assignment
        await turn
    return list(last.values())


async def fetch_error(request: OffsetFetchRequestGroup, code: int) -> OffsetFetchResponseGroup:
    """Return an OffsetFetch answer with an error for every partition of a group."""

    def failed(index: int) -> OffsetFetchResponsePartitions:
        return OffsetFetchResponsePartitions(partition_index=index, committed_offset=-1, metadata="", error_code=code)

    async def topic(asked: OffsetFetchRequestTopics) -> OffsetFetchResponseTopics:
        partitions = await each(asked.partition_indexes, failed)
        return OffsetFetchResponseTopics(name=asked.name, partitions=partitions)

    topics = await every(request.topics or [], topic)
    return OffsetFetchResponseGroup(group_id=request.group_id, topics=topics)


async def _deleted(request: OffsetDeleteRequest, decided: OffsetDeleteResponse) -> OffsetDeleteResponse:
    """Return the answer for every named partition, with the error code of its topic."""
    if decided.error_code:
        return decided
    codes = {topic.name: topic.partitions[0].error_code for topic in decided.topics}

    async def answered(asked: OffsetDeleteRequestTopic) -> OffsetDeleteResponseTopic:
        code = codes.get(asked.name, 0)
        partitions = await each(
            asked.partitions, lambda partition: OffsetDeleteResponsePartition(partition.partition_index, code)
        )
        return OffsetDeleteResponseTopic(asked.name, partitions)

    return OffsetDeleteResponse(topics=await every(request.topics, answered))


def _ignore(_code: ErrorCode, _message: str | None) -> None:
    """Ignore a failure: it has been logged."""
