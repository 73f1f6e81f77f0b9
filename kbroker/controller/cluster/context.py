"""What a controller knows: live brokers, topics, assignments, leaders, and what has been begun.

Owns the memory of one term of office; it is read from the tree at its beginning and kept in step with it by one task.
Never asks and never writes: it answers questions.
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
    """What /brokers/topics/T/partitions/P/state holds; `version` is the node's, and so the partition epoch."""

    value: LeaderAndIsr
    version: int


@dataclass(frozen=True, slots=True)
class LiveBroker:
    """A broker that is registered; `epoch` is the number of the transaction that made its znode (czxid)."""

    epoch: int
    registration: Registration

    def at(self, listener: str) -> Endpoint | None:
        """Return where the broker is reached by a listener."""
        return next((each for each in self.registration.endpoints if each.listener == listener), None)


@dataclass(slots=True)
class Topic:
    """A topic: its id, and its partitions' replicas."""

    topic_id: bytes
    partitions: dict[int, Replicas] = field(default_factory=dict)


@dataclass(slots=True)
class Deletion:
    """How far the deletion of a topic has come."""

    begun: bool = False
    """Whether its partitions are led no longer."""
    halted: bool = False
    """Whether it waits: for a broker that has replicas of it, or for the end of a reassignment."""
    asked: set[tuple[Partition, int]] = field(default_factory=set)
    """Replicas whose brokers have been asked to delete them, and have not answered."""
    done: set[tuple[Partition, int]] = field(default_factory=set)


class Context:
    """The memory of one controller."""

    def __init__(self) -> None:
        self.features: Mapping[str, int] = {}
        """What is finalized: whoever does not support it is not taken for live."""
        self.lacking: set[int] = set()
        """Those that are registered, and are not for that."""
        self.watched_brokers: set[int] = set()
        """Those whose znodes are watched, live or not."""
        self.brokers: dict[int, LiveBroker] = {}
        self.leaving: set[int] = set()
        """Brokers that have asked for their shutdown: registered still, but nobody's choice."""
        self.failed_dirs: dict[int, set[Partition]] = {}
        """What lies on directories that have failed, by broker."""
        self.topics: dict[str, Topic] = {}
        self.names: dict[bytes, str] = {}
        self.changed_topics: set[str] = set()
        """Topics whose znodes have changed, or may have, since they were read."""
        self.states: dict[Partition, State] = {}
        self.offline: set[Partition] = set()
        """Partitions whose leader is gone, and for which none could be elected so far."""
        self.moving: set[Partition] = set()
        """Partitions that are being reassigned."""
        self.deletions: dict[str, Deletion] = {}
        self._hosted: dict[int, dict[Partition, None]] = {}

    def replicas(self, partition: Partition) -> Replicas | None:
        """Return a partition's replicas, None where there is no such partition."""
        topic = self.topics.get(partition[0])
        return None if topic is None else topic.partitions.get(partition[1])

    def assigned(self, partition: Partition) -> tuple[int, ...]:
        """Return a partition's replicas in order of preference, all of a reassignment among them."""
        found = self.replicas(partition)
        return () if found is None else found.replicas

    def partitions(self) -> Iterator[Partition]:
        """Go over all partitions."""
        for name, topic in self.topics.items():
            for index in topic.partitions:
                yield name, index

    def on_broker(self, broker: int) -> Collection[Partition]:
        """Return the partitions of which a broker has a replica."""
        return self._hosted.get(broker, {})

    def hosts(self) -> set[int]:
        """Return the brokers that have replicas, live or not."""
        return set(self._hosted)

    def add_topic(self, name: str, topic_id: bytes) -> Topic:
        """Begin to know a topic."""
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
        """Forget a topic."""
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
        """Whether a broker is registered and stays."""
        return broker in self.brokers and broker not in self.leaving

    def live(self) -> set[int]:
        """Return the brokers that are registered and stay."""
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
        """Return who leads a partition, -1 for nobody."""
        state = self.states.get(partition)
        return NO_LEADER if state is None else state.value.leader
