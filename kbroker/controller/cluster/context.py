"""The controller's state: live brokers, topics, assignments, leaders, and running operations.

Owns the state in memory of one term. The controller reads it from the tree when the term begins, and one task keeps it
current. Never sends requests and never writes: it only answers queries.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from kbroker.cluster_state import NO_LEADER
from kbroker.controller.cluster.assigned_replicas import Replicas
from kbroker.controller.znodes import Endpoint, LeaderAndIsr, Registration

Partition = tuple[str, int]
"""A topic's name, and the partition's number."""


@dataclass(frozen=True, slots=True)
class State:
    """The content of /brokers/topics/T/partitions/P/state. The znode's `version` is the partition epoch."""

    value: LeaderAndIsr
    version: int
    written: int = field(default=-1, compare=False)
    """The number of the transaction that wrote the state, if this controller has read it; otherwise -1."""


@dataclass(frozen=True, slots=True)
class LiveBroker:
    """A registered broker; `epoch` is the number of the transaction that created its znode (czxid)."""

    epoch: int
    registration: Registration

    def at(self, listener: str) -> Endpoint | None:
        """Return the endpoint of a broker's listener."""
        return next((each for each in self.registration.endpoints if each.listener == listener), None)


@dataclass(slots=True)
class Topic:
    """A topic: its id, and its partitions' replicas."""

    topic_id: bytes
    partitions: dict[int, Replicas] = field(default_factory=dict)


@dataclass(slots=True)
class Deletion:
    """The progress of a topic's deletion."""

    begun: bool = False
    """Whether the leaders of the topic's partitions have been removed."""
    halted: bool = False
    """Whether the deletion waits for a broker with a replica, or for the end of a reassignment."""
    asked: set[tuple[Partition, int]] = field(default_factory=set)
    """The replicas whose brokers have not answered the request to delete them yet."""
    done: set[tuple[Partition, int]] = field(default_factory=set)


class Context:
    """The memory of one controller."""

    def __init__(self) -> None:
        self.features: Mapping[str, int] = {}
        """The finalized features: a broker that does not support them does not count as live."""
        self.lacking: set[int] = set()
        """The registered brokers that do not count as live because they do not support the finalized features."""
        self.watched_brokers: set[int] = set()
        """Brokers whose znodes are watched, live or not."""
        self.brokers: dict[int, LiveBroker] = {}
        self.leaving: set[int] = set()
        """The brokers that have requested their shutdown. They are still registered, but never elected."""
        self.failed_dirs: dict[int, set[Partition]] = {}
        """Replicas on failed directories, by broker."""
        self.topics: dict[str, Topic] = {}
        self.names: dict[bytes, str] = {}
        self.changed_topics: set[str] = set()
        """The topics whose znodes have changed, or may have changed, after the last read."""
        self.states: dict[Partition, State] = {}
        self.offline: set[Partition] = set()
        """The partitions whose leader is offline, and for which no electable replica was found yet."""
        self.moving: set[Partition] = set()
        """Partitions that are being reassigned."""
        self.deletions: dict[str, Deletion] = {}
        self._hosted: dict[int, dict[Partition, None]] = {}

    def replicas(self, partition: Partition) -> Replicas | None:
        """Return a partition's replicas; None if the partition does not exist."""
        topic = self.topics.get(partition[0])
        return None if topic is None else topic.partitions.get(partition[1])

    def assigned(self, partition: Partition) -> tuple[int, ...]:
        """Return a partition's replicas in order of preference, including those that a reassignment adds or removes."""
        found = self.replicas(partition)
        return () if found is None else found.replicas

    def partitions(self) -> Iterator[Partition]:
        """Yield all partitions."""
        for name, topic in self.topics.items():
            for index in topic.partitions:
                yield name, index

    def on_broker(self, broker: int) -> Collection[Partition]:
        """Return the partitions with a replica on a broker."""
        return self._hosted.get(broker, {})

    def hosts(self) -> set[int]:
        """Return the brokers that have replicas, live or not."""
        return set(self._hosted)

    def add_topic(self, name: str, topic_id: bytes) -> Topic:
        """Add a topic."""
        topic = self.topics[name] = Topic(topic_id)
        self.names[topic_id] = name
        return topic

    def assign(self, partition: Partition, replicas: Replicas) -> None:
        """Set a partition's replicas."""
        self._forget_hosts(partition)
        self.topics[partition[0]].partitions[partition[1]] = replicas
        for broker in replicas.replicas:
            self._hosted.setdefault(broker, {})[partition] = None
        if replicas.in_motion:
            self.moving.add(partition)

    def remove_topic(self, name: str) -> None:
        """Remove a topic."""
        topic = self.topics[name]
        for index in topic.partitions:
            partition = name, index
            self._forget_hosts(partition)
            self.states.pop(partition, None)
            self.offline.discard(partition)
            self.moving.discard(partition)
            for failed in self.failed_dirs.values():
                failed.discard(partition)
        del self.topics[name]
        self.names.pop(topic.topic_id, None)
        self.deletions.pop(name, None)

    def _forget_hosts(self, partition: Partition) -> None:
        for broker in self.assigned(partition):
            hosted = self._hosted.get(broker)
            if hosted is not None:
                hosted.pop(partition, None)
                if not hosted:
                    del self._hosted[broker]

    def is_live(self, broker: int) -> bool:
        """Whether a broker is registered and not shutting down."""
        return broker in self.brokers and broker not in self.leaving

    def live(self) -> set[int]:
        """Return the brokers that are registered and not shutting down."""
        return self.brokers.keys() - self.leaving

    def is_online(self, broker: int, partition: Partition, *, also_leaving: bool = False) -> bool:
        """Whether a broker's replica can be used."""
        if broker not in self.brokers or (broker in self.leaving and not also_leaving):
            return False
        failed = self.failed_dirs.get(broker)
        return failed is None or partition not in failed

    def online(self, partition: Partition, *, also_leaving: bool = False) -> tuple[int, ...]:
        """Return the replicas that can be used, in order of preference."""
        return tuple(
            each for each in self.assigned(partition) if self.is_online(each, partition, also_leaving=also_leaving)
        )

    def is_led(self, partition: Partition) -> bool:
        """Whether a partition's leader can be used."""
        state = self.states.get(partition)
        return state is not None and state.value.leader != NO_LEADER and self.is_online(state.value.leader, partition)

    def is_deleted(self, topic: str) -> bool:
        """Whether a topic is to be deleted."""
        return topic in self.deletions

    def leader(self, partition: Partition) -> int:
        """Return a partition's leader; -1 if it has none."""
        state = self.states.get(partition)
        return NO_LEADER if state is None else state.value.leader
