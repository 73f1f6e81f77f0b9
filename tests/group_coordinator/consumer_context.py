"""Consumer groups on a shard with a manual clock: topics that change, and consumers that behave like consumers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kbroker.cluster_state import BrokerEndpoint, PartitionState, TopicState
from kbroker.coordination.shard import Outcome
from kbroker.group_coordinator.config import GroupConfig
from kbroker.group_coordinator.consumer.heartbeat import validate
from kbroker.group_coordinator.groups.consumer_group import ConsumerGroup
from kbroker.group_coordinator.shard import GroupShard
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from tests.group_coordinator.context import Context

Owned = set[tuple[bytes, int]]
EAGER = GroupConfig(consumer_assignment_interval_ms=0)
"""A new target for every change immediately: only the heartbeats then determine what happens."""


def topic_id(name: str, life: int = 0) -> bytes:
    return name.encode().ljust(15, b"\0") + bytes([life])


class ConsumerContext(Context):
    """A shard, the topics that it sees, and heartbeats to it."""

    def create(self, name: str, partitions: int, life: int = 0, rack: str | None = None) -> bytes:
        """Create a topic, or add partitions to it."""
        brokers = self.topics.state.brokers
        if rack is not None:
            brokers = {1: BrokerEndpoint(1, "host", 9092, rack)}
        state = replace(self.topics.state, brokers=brokers) if rack is not None else self.topics.state
        topic = TopicState(name, topic_id(name, life), (PartitionState((1,), (1,), 1, 0),) * partitions)
        self.topics.update(state.with_topic(topic))
        return topic.topic_id

    def delete(self, name: str) -> None:
        self.topics.update(self.topics.state.without_topics([name]))

    def configure(self, group: str, **configs: str) -> None:
        """Set group configs, written with "_" for "."."""
        named = {name.replace("_", "."): value for name, value in configs.items()}
        self.topics.update(replace(self.topics.state, group_configs={group: named}))

    def consumer_group(self, group_id: str = "g") -> ConsumerGroup:
        return self.consumer_groups[group_id]

    def beat(
        self,
        member_id: str,
        epoch: int,
        *,
        group: str = "g",
        owned: Owned | None = None,
        version: int = 1,
        client_id: str = "client",
        **fields: Any,
    ) -> ConsumerGroupHeartbeatResponse:
        """Send a heartbeat; a failure becomes the coordinator's error response."""
        partitions = None if owned is None else as_topic_partitions(owned)
        request = ConsumerGroupHeartbeatRequest(
            group_id=group, member_id=member_id, member_epoch=epoch, topic_partitions=partitions, **fields
        )

        def decide(shard: GroupShard, now_ms: int) -> Outcome:
            validate(request, version, self.config.consumer_assignors)
            return shard.heartbeats.heartbeat(request, client_id, "/127.0.0.1", now_ms)

        response: ConsumerGroupHeartbeatResponse = self.ask(
            decide, lambda code, message: ConsumerGroupHeartbeatResponse(error_code=code, error_message=message)
        )
        return response

    def enter_consumer(self, member_id: str, *topics: str, **fields: Any) -> ConsumerGroupHeartbeatResponse:
        """Join with a full request."""
        names = fields.pop("names", list(topics))
        return self.beat(
            member_id,
            0,
            owned=set(),
            rebalance_timeout_ms=fields.pop("rebalance", 30_000),
            subscribed_topic_names=names,
            **fields,
        )


def as_topic_partitions(owned: Owned) -> list[TopicPartitions]:
    ids = sorted({each for each, _ in owned})
    return [TopicPartitions(topic_id=t, partitions=sorted(p for each, p in owned if each == t)) for t in ids]


def assigned(response: ConsumerGroupHeartbeatResponse) -> Owned | None:
    """Return the assignment in a response; None if there is none."""
    if response.assignment is None:
        return None
    return {(each.topic_id, index) for each in response.assignment.topic_partitions for index in each.partitions}


class Consumer:
    """A member as a client sees it: it owns what was assigned, revokes what it must, and reports what it owns."""

    def __init__(self, context: ConsumerContext, member_id: str, *topics: str, **fields: Any) -> None:
        self.context = context
        self.member_id = member_id
        self.fields = fields
        self.topics: list[str] | None = list(topics)
        self.epoch = 0
        self.owned: Owned = set()
        self.told: Owned = set()
        self.last: ConsumerGroupHeartbeatResponse | None = None

    def join(self) -> ConsumerGroupHeartbeatResponse:
        self.epoch, self.owned, self.told = 0, set(), set()
        fields = {"subscribed_topic_names": self.topics, "rebalance_timeout_ms": 30_000, **self.fields}
        return self._take(self.context.beat(self.member_id, 0, owned=set(), **fields))

    def beat(self) -> ConsumerGroupHeartbeatResponse:
        """Send a heartbeat that reports what the member owns; join if it is not a member."""
        if self.epoch == 0:
            return self.join()
        return self._take(self.context.beat(self.member_id, self.epoch, owned=self.owned, **self._instance()))

    def settle(self) -> None:
        """Revoke and add partitions according to the last response."""
        self.owned = set(self.told)

    def give_up(self) -> None:
        """Revoke partitions according to the last response, and add none yet."""
        self.owned &= self.told

    def leave(self, epoch: int = -1) -> ConsumerGroupHeartbeatResponse:
        response = self.context.beat(self.member_id, epoch, **self._instance())
        self.epoch, self.owned, self.told = 0, set(), set()
        return response

    def _instance(self) -> dict[str, Any]:
        return {name: value for name, value in self.fields.items() if name == "instance_id"}

    def _take(self, response: ConsumerGroupHeartbeatResponse) -> ConsumerGroupHeartbeatResponse:
        self.last = response
        if response.error_code in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID):
            self.epoch, self.owned, self.told = 0, set(), set()
        elif response.error_code == ErrorCode.NONE:
            self.epoch = response.member_epoch
            said = assigned(response)
            if said is not None:
                self.told = said
        return response


def converge(consumers: list[Consumer], rounds: int = 12) -> None:
    """Let consumers send heartbeats and follow their assignments, until nothing changes or the rounds are over."""
    for _ in range(rounds):
        for consumer in consumers:
            consumer.beat()
            consumer.settle()
        if consumers:
            consumers[0].context.advance(1_100)
