"""Streams groups on a shard with a manual clock, and members that behave like Kafka Streams' threads."""

from __future__ import annotations

from typing import Any

from kbroker.coordination.shard import Outcome
from kbroker.group_coordinator.config import GroupConfig
from kbroker.group_coordinator.groups.streams_group import StreamsGroup
from kbroker.group_coordinator.shard import GroupShard
from kbroker.group_coordinator.streams.heartbeat import HeartbeatAnswer, Sender
from kbroker.group_coordinator.streams.requests import claims_of
from kbroker.group_coordinator.streams_settings import StreamsConfig
from kbroker.long_work import whole
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.streams_groups import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    Subtopology,
    TaskIds,
    TopicInfo,
    Topology,
)
from tests.group_coordinator.consumer_context import ConsumerContext

AT_ONCE = GroupConfig(streams=StreamsConfig(initial_rebalance_delay_ms=0, assignment_interval_ms=0))
"""A new target for every change immediately: only the heartbeats then determine what happens."""
Held = set[tuple[str, int]]


def topology(*subtopologies: Subtopology, epoch: int = 1) -> Topology:
    return Topology(epoch, list(subtopologies))


def reading(*topics: str, name: str = "0", store: str | None = None) -> Subtopology:
    """Return a subtopology that reads topics; if it has a store, also with a changelog."""
    changelogs = [TopicInfo(store, 0, 0, [])] if store else []
    return Subtopology(name, list(topics), [], changelogs, [], [], [])


class StreamsContext(ConsumerContext):
    """A shard, the topics that it sees, and heartbeats to it."""

    def streams_group(self, group_id: str = "g") -> StreamsGroup:
        found = self.shard.groups.streams(group_id)
        assert found is not None
        return found

    def streams(self, member_id: str, epoch: int, *, version: int = 1, **fields: Any) -> HeartbeatAnswer:
        """Send a heartbeat; a failure becomes the coordinator's error response."""
        request = StreamsGroupHeartbeatRequest(
            group_id=fields.pop("group", "g"), member_id=member_id, member_epoch=epoch, **fields
        )

        def failed(code: ErrorCode, message: str | None) -> HeartbeatAnswer:
            return HeartbeatAnswer(StreamsGroupHeartbeatResponse(error_code=code, error_message=message))

        try:
            claims = whole(claims_of(request))
        except ApiError as err:
            return failed(err.code, err.message)

        def decide(shard: GroupShard, now_ms: int) -> Outcome:
            return shard.streams.heartbeat(request, claims, Sender("client", "/127.0.0.1", version), now_ms)

        answer: HeartbeatAnswer = self.ask(decide, failed)
        return answer


class StreamsThread:
    """A member as the client sees it: it owns what was assigned, revokes what it must, and reports what it owns."""

    def __init__(self, context: StreamsContext, member_id: str, asked: Topology, process: str = "", **fields: Any):
        self.context = context
        self.member_id = member_id
        self.topology = asked
        self.process = process or member_id
        self.fields = fields
        self.epoch = 0
        self.held: dict[str, Held] = {}
        self.told: dict[str, Held] = {}
        self.missing: list[str] = []
        self.status: list[tuple[int, str]] = []
        self._forget()

    def _forget(self) -> None:
        self.epoch = 0
        self.held = {role: set() for role in ("active", "standby", "warmup")}
        self.told = {role: set() for role in self.held}

    def beat(self) -> StreamsGroupHeartbeatResponse:
        """Send a heartbeat that reports what the member owns; join if it is not a member."""
        joins = self.epoch == 0
        if joins:
            self._forget()
        owned = {f"{role}_tasks": as_task_ids(held) for role, held in self.held.items()}
        fields = {"topology": self.topology, "process_id": self.process, "rebalance_timeout_ms": 30_000}
        response, missing = self.context.streams(
            self.member_id, self.epoch, **owned, **(fields if joins else {}), **self.fields
        )
        self.missing = [topic.name for topic in missing]
        self.status = [(each.status_code, each.status_detail) for each in response.status or ()]
        if response.error_code in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID):
            self._forget()
        elif response.error_code == ErrorCode.NONE:
            self.epoch = response.member_epoch
            if response.active_tasks is not None:
                for role in self.told:
                    self.told[role] = as_held(getattr(response, f"{role}_tasks"))
        return response

    def settle(self) -> None:
        """Revoke and add tasks according to the last response."""
        self.held = {role: set(held) for role, held in self.told.items()}

    def leave(self, epoch: int = -1) -> StreamsGroupHeartbeatResponse:
        instance = {name: value for name, value in self.fields.items() if name == "instance_id"}
        response, _ = self.context.streams(self.member_id, epoch, **instance)
        self._forget()
        return response


def as_task_ids(held: Held) -> list[TaskIds]:
    names = sorted({name for name, _ in held})
    return [TaskIds(name, sorted(index for each, index in held if each == name)) for name in names]


def as_held(tasks: list[TaskIds]) -> Held:
    return {(each.subtopology_id, index) for each in tasks for index in each.partitions}


def converge(threads: list[StreamsThread], rounds: int = 12) -> None:
    """Let members send heartbeats and follow their assignments, until nothing changes or the rounds are over."""
    for _ in range(rounds):
        for thread in threads:
            thread.beat()
            thread.settle()
        if threads:
            threads[0].context.advance(1_100)
