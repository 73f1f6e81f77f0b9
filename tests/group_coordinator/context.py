"""A shard with a manual clock and a log in memory: what the runtime does, without a loop."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Self

from kbroker.cluster_state import ClusterState
from kbroker.coordination.outcome import CoordinatorRecord, Outcome, Parked, Schedule
from kbroker.group_coordinator.classic.group import ClassicGroup
from kbroker.group_coordinator.config import GroupConfig
from kbroker.group_coordinator.consumer.group import ConsumerGroup
from kbroker.group_coordinator.describe import describe_consumer_group, describe_group, list_groups
from kbroker.group_coordinator.shard import GroupShard
from kbroker.group_coordinator.topics import Topics
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages import consumer_group_describe
from kbroker.protocol.messages.describe_groups import DescribedGroup
from kbroker.protocol.messages.heartbeat import HeartbeatRequest
from kbroker.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from kbroker.protocol.messages.leave_group import LeaveGroupResponse, MemberIdentity
from kbroker.protocol.messages.list_groups import ListedGroup
from kbroker.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from kbroker.protocol.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchRequestTopics
from kbroker.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse

TOPIC_ID = bytes(range(16))
START_MS = 1_700_000_000_000


def subscription(*topics: str) -> bytes:
    """Return a consumer's subscription, version 0."""
    out = b"\0\0" + len(topics).to_bytes(4, "big")
    for topic in topics:
        out += len(topic).to_bytes(2, "big") + topic.encode()
    return out + b"\xff\xff\xff\xff"


class Context:
    """Decides by a shard, and does with the outcome what the runtime would do."""

    def __init__(
        self,
        config: GroupConfig | None = None,
        log: list[CoordinatorRecord] | None = None,
        topics: Topics | None = None,
    ) -> None:
        self.config = config or GroupConfig()
        self.topics = topics or Topics(ClusterState("c"))
        self.now = START_MS
        self.log: list[CoordinatorRecord] = []
        self.timers: dict[Hashable, float] = {}
        self.fail_with = ErrorCode.NONE
        self.lag = False
        self.appended: list[Outcome] = []  # what the high watermark has not passed yet
        self.worked_s = self.step_s = 0.0  # what the stopwatch says, and how long each step of long work takes
        self.shard = GroupShard(self.config, self.topics, seconds=self.stopwatch)
        for record in log or []:
            self.shard.replay(len(self.log), -1, *record)
            self.log.append(record)
        self.apply(self.shard.on_loaded(self.now))

    def stopwatch(self) -> float:
        self.worked_s += self.step_s
        return self.worked_s

    def restarted(self) -> Self:
        """Return a context whose shard has loaded the log of this one."""
        other = type(self)(self.config, self.log, self.topics)
        other.now = self.now
        return other

    # -- the runtime's part

    def apply(self, outcome: Outcome) -> ErrorCode:
        for timer in outcome.timers:
            if isinstance(timer, Schedule):
                self.timers[timer.key] = self.now + timer.delay_ms
            else:
                self.timers.pop(timer.key, None)
        for parked, answer in outcome.replies:
            parked.complete(answer)
        code = outcome.refused or (self.fail_with if outcome.records else ErrorCode.NONE)
        if code is ErrorCode.NONE:
            for record in outcome.records:
                if outcome.replay:
                    self.shard.replay(len(self.log), -1, *record)
                self.log.append(record)
            if self.lag and outcome.records:
                self.appended.append(outcome)
                return code
        if outcome.after is not None:
            self.apply(outcome.after(code, self.now))
        return code

    def catch_up(self, code: ErrorCode = ErrorCode.NONE) -> None:
        """Let everything appended be committed, or be given up with `code`."""
        appended, self.appended = self.appended, []
        for outcome in appended:
            if outcome.after is not None:
                self.apply(outcome.after(code, self.now))

    def advance(self, ms: int) -> None:
        """Let time pass, and timers go off in their order."""
        until = self.now + ms
        while True:
            due = [(deadline, str(key), key) for key, deadline in self.timers.items() if deadline <= until]
            if not due:
                break
            deadline, _, key = min(due)
            self.now = max(self.now, int(deadline))
            del self.timers[key]
            self.apply(self.shard.on_timer(key, self.now))
        self.now = until

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
    ) -> Parked:
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
        parked = Parked()
        self.apply(self.shard.join(request, version, client_id, "/127.0.0.1", parked, self.now))
        return parked

    def enter(self, **options: Any) -> tuple[str, Parked]:
        """Join as a new dynamic member, with the round trip for an id."""
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
    ) -> Parked:
        request = SyncGroupRequest(
            group_id=group,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocol_name=protocol_name,
            assignments=[SyncGroupRequestAssignment(member_id=m, assignment=a) for m, a in (assignments or {}).items()],
        )
        parked = Parked()
        self.apply(self.shard.sync(request, parked))
        return parked

    def heartbeat(self, member_id: str, generation: int, *, group: str = "g", instance: str | None = None) -> ErrorCode:
        request = HeartbeatRequest(
            group_id=group, generation_id=generation, member_id=member_id, group_instance_id=instance
        )
        try:
            outcome = self.shard.heartbeat(request)
        except ApiError as err:
            return err.code
        self.apply(outcome)
        return ErrorCode(outcome.reply.error_code)

    def leave(self, *members: tuple[str, str | None], group: str = "g") -> LeaveGroupResponse:
        identities = [MemberIdentity(member_id=m, group_instance_id=i) for m, i in members]
        outcome = self.shard.leave(group, identities, self.now)
        self.apply(outcome)
        response: LeaveGroupResponse = outcome.reply
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
        try:
            outcome = self.shard.commits.commit(request, version, self.now)
        except ApiError as err:
            return err.code
        code = self.apply(outcome)
        response: OffsetCommitResponse = outcome.reply
        return code or ErrorCode(response.topics[0].partitions[0].error_code)

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
        answer = self.shard.offsets.fetch(OffsetFetchRequestGroup(group_id=group, topics=[wanted]), stable)
        found = answer.topics[0].partitions[0]
        return found.committed_offset, ErrorCode(found.error_code)

    def describe(self, group_id: str, version: int) -> DescribedGroup:
        return describe_group(self.shard.groups, group_id, version)

    def describe_consumer(self, group_id: str) -> consumer_group_describe.DescribedGroup:
        """Describe a consumer group; a failure is answered as the coordinator answers it."""
        try:
            return describe_consumer_group(self.shard.groups, group_id, self.config.consumer_assignors[0], self.topics)
        except ApiError as err:
            return consumer_group_describe.DescribedGroup(error_code=err.code, error_message=err.message)

    def list(self, states: Sequence[str], types: Sequence[str]) -> Sequence[ListedGroup]:
        return list_groups(self.shard.groups, states, types)

    # -- whole phases

    def stable(self, count: int = 1, **options: Any) -> list[str]:
        """Make a stable group of `count` dynamic members; return their ids, the leader's first."""
        entered = [self.enter(**options) for _ in range(count)]
        self.advance(2 * self.config.initial_rebalance_delay_ms)
        ids = [member_id for member_id, _ in entered]
        answers: list[JoinGroupResponse] = [parked.answer for _, parked in entered]
        assert {a.generation_id for a in answers} == {1}
        assert self.sync_all(ids, 1)
        return ids

    def sync_all(self, ids: list[str], generation: int) -> list[SyncGroupResponse]:
        """Let all members sync, the leader handing in an assignment of one partition each."""
        leader = self.group().leader_id
        assert leader is not None
        followers = [self.sync(m, generation) for m in ids if m != leader]
        assigned = {m: f"p{i}".encode() for i, m in enumerate(ids)}
        last = self.sync(leader, generation, assigned)
        answers = [parked.answer for parked in [*followers, last]]
        assert all(a.error_code == ErrorCode.NONE for a in answers)
        return answers
