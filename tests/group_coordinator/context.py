"""A shard of the group coordinator under the real runtime, and requests to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from kbroker.cluster_state import ClusterState
from kbroker.coordination.shard import CoordinatorRecord
from kbroker.group_coordinator.commit_building import NO_BOUND, build_commit
from kbroker.group_coordinator.config import GroupConfig
from kbroker.group_coordinator.describe import describe_consumer_group, describe_group, list_groups
from kbroker.group_coordinator.groups.classic_group import ClassicGroup
from kbroker.group_coordinator.groups.consumer_group import ConsumerGroup
from kbroker.group_coordinator.shard import GroupShard
from kbroker.group_coordinator.topics import Topics
from kbroker.long_work import whole
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages import consumer_groups
from kbroker.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from kbroker.protocol.messages.groups import (
    DescribedGroup,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupResponse,
    ListedGroup,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from tests.coordination.still import START_MS, Asked, Still

TOPIC_ID = bytes(range(16))


def subscription(*topics: str) -> bytes:
    """Return a consumer's subscription, version 0."""
    out = b"\0\0" + len(topics).to_bytes(4, "big")
    for topic in topics:
        out += len(topic).to_bytes(2, "big") + topic.encode()
    return out + b"\xff\xff\xff\xff"


class Context(Still[GroupShard]):
    """The groups of a shard, and requests to it."""

    def __init__(
        self,
        config: GroupConfig | None = None,
        log: Sequence[CoordinatorRecord] = (),
        topics: Topics | None = None,
        now: int = START_MS,
    ) -> None:
        self.config = config or GroupConfig()
        self.topics = topics or Topics(ClusterState("c"))
        self.worked_s = self.step_s = 0.0  # the stopwatch's reading, and the duration of each step of long work
        super().__init__(lambda _partition: GroupShard(self.config, self.topics, seconds=self.stopwatch), log, now)

    def stopwatch(self) -> float:
        self.worked_s += self.step_s
        return self.worked_s

    def restarted(self) -> Self:
        """Return a context whose shard has loaded the log of this one."""
        return type(self)(self.config, self.log, self.topics, self.now)

    # -- requests

    @property
    def classic_groups(self) -> dict[str, ClassicGroup]:
        return {group.group_id: group for group in self.shard.groups if isinstance(group, ClassicGroup)}

    @property
    def consumer_groups(self) -> dict[str, ConsumerGroup]:
        return {group.group_id: group for group in self.shard.groups if isinstance(group, ConsumerGroup)}

    def group(self, group_id: str = "g") -> ClassicGroup:
        return self.classic_groups[group_id]

    def join(
        self,
        member_id: str = "",
        *,
        group: str = "g",
        instance: str | None = None,
        version: int = 9,
        session: int = 10_000,
        rebalance: int = 60_000,
        protocols: dict[str, bytes] | None = None,
        protocol_type: str = "consumer",
        client_id: str = "client",
    ) -> Asked:
        named = {"range": subscription("t")} if protocols is None else protocols
        request = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=session,
            rebalance_timeout_ms=rebalance,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocols=[JoinGroupRequestProtocol(name=name, metadata=metadata) for name, metadata in named.items()],
        )
        return self.ask_parked(
            lambda shard, parked, now: shard.join(request, version, client_id, "/127.0.0.1", parked, now),
            lambda code, _message: JoinGroupResponse(error_code=code),
        )

    def enter(self, **options: Any) -> tuple[str, Asked]:
        """Join as a new dynamic member, with the round trip for a member id."""
        first = self.join(**options).answer
        assert first.error_code == ErrorCode.MEMBER_ID_REQUIRED
        return first.member_id, self.join(first.member_id, **options)

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        *,
        group: str = "g",
        instance: str | None = None,
        protocol_type: str | None = "consumer",
        protocol_name: str | None = "range",
    ) -> Asked:
        request = SyncGroupRequest(
            group_id=group,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocol_name=protocol_name,
            assignments=[SyncGroupRequestAssignment(member_id=m, assignment=a) for m, a in (assignments or {}).items()],
        )
        return self.ask_parked(
            lambda shard, parked, _now: shard.sync(request, parked),
            lambda code, _message: SyncGroupResponse(error_code=code),
        )

    def heartbeat(self, member_id: str, generation: int, *, group: str = "g", instance: str | None = None) -> ErrorCode:
        request = HeartbeatRequest(
            group_id=group, generation_id=generation, member_id=member_id, group_instance_id=instance
        )
        answer = self.ask(lambda shard, _now: shard.heartbeat(request))
        return answer if isinstance(answer, ErrorCode) else ErrorCode(answer.error_code)

    def leave(self, *members: tuple[str, str | None], group: str = "g") -> LeaveGroupResponse:
        identities = [MemberIdentity(member_id=m, group_instance_id=i) for m, i in members]
        response: LeaveGroupResponse = self.ask(
            lambda shard, now: shard.leave(group, identities, now),
            lambda code, _message: LeaveGroupResponse(error_code=code),
        )
        return response

    def commit(
        self,
        offset: int,
        *,
        member_id: str = "",
        generation: int = -1,
        group: str = "g",
        topic: str = "t",
        partition: int = 0,
        instance: str | None = None,
        metadata: str | None = "",
        retention: int = -1,
        version: int = 9,
        topic_id: bytes = TOPIC_ID,
    ) -> ErrorCode:
        request = OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            group_instance_id=instance,
            retention_time_ms=retention,
            topics=[
                OffsetCommitRequestTopic(
                    name=topic,
                    topic_id=topic_id,
                    partitions=[
                        OffsetCommitRequestPartition(
                            partition_index=partition, committed_offset=offset, committed_metadata=metadata
                        )
                    ],
                )
            ],
        )
        answer = self.ask(
            lambda shard, now: shard.commits.commit(
                request,
                version,
                whole(build_commit(request, now, self.config.offset_metadata_max_bytes, NO_BOUND)),
            )
        )
        return answer if isinstance(answer, ErrorCode) else ErrorCode(answer.topics[0].partitions[0].error_code)

    def fetch(
        self,
        *,
        group: str = "g",
        topic: str = "t",
        partition: int = 0,
        stable: bool = False,
        topic_id: bytes = bytes(16),
    ) -> tuple[int, ErrorCode]:
        wanted = OffsetFetchRequestTopics(name=topic, topic_id=topic_id, partition_indexes=[partition])
        answer = whole(self.shard.offsets.fetch(OffsetFetchRequestGroup(group_id=group, topics=[wanted]), stable))
        found = answer.topics[0].partitions[0]
        return found.committed_offset, ErrorCode(found.error_code)

    def describe(self, group_id: str, version: int) -> DescribedGroup:
        return whole(describe_group(self.shard.groups, group_id, version))

    def describe_consumer(self, group_id: str) -> consumer_groups.DescribedGroup:
        """Describe a consumer group; a failure becomes the coordinator's error response."""
        try:
            assignor = self.config.consumer_assignors[0]
            return whole(describe_consumer_group(self.shard.groups, group_id, assignor, self.topics))
        except ApiError as err:
            return consumer_groups.DescribedGroup(error_code=err.code, error_message=err.message)

    def list(self, states: Sequence[str], types: Sequence[str]) -> Sequence[ListedGroup]:
        return whole(
            list_groups(self.shard.groups, {s.strip().lower() for s in states}, {name.lower() for name in types}, {})
        )

    # -- whole phases

    def stable(self, count: int = 1, **options: Any) -> list[str]:
        """Create a stable group of `count` dynamic members; return their ids, the leader's first."""
        entered = [self.enter(**options) for _ in range(count)]
        self.advance(2 * self.config.initial_rebalance_delay_ms)
        ids = [member_id for member_id, _ in entered]
        answers: list[JoinGroupResponse] = [parked.answer for _, parked in entered]
        assert {a.generation_id for a in answers} == {1}
        assert self.sync_all(ids, 1)
        return ids

    def sync_all(self, ids: list[str], generation: int) -> list[SyncGroupResponse]:
        """Let all members sync; the leader's assignment gives each of them one partition."""
        leader = self.group().leader_id
        assert leader is not None
        followers = [self.sync(m, generation) for m in ids if m != leader]
        assigned = {m: f"p{i}".encode() for i, m in enumerate(ids)}
        last = self.sync(leader, generation, assigned)
        answers = [parked.answer for parked in [*followers, last]]
        assert all(a.error_code == ErrorCode.NONE for a in answers)
        return answers
