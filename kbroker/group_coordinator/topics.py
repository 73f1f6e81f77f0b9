"""The cluster's topics for consumer and streams groups.

Owns the topic data that all shards (shard.py) share: names, ids, partition counts, racks. Also owns the hash of a
group's subscribed topics, which changes when a topic is created, extended, deleted or moved to other racks. Never
rebalances a group.

A group's record contains the hash. Apache Kafka uses another hash function (XXH3), so a group that moves between Kafka
and kbroker gets a new assignment once.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from kbroker.cluster_state import ClusterState, TopicState
from kbroker.long_work import turn


class Topics:
    """The newest cluster state. `version` grows when any topic changes, `created_version` when a topic is created."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self.version = 1
        self.created_version = 1
        self._hashes: dict[str, int] = {}

    def update(self, state: ClusterState) -> None:
        """Store a newer state."""
        old, self.state = self.state, state
        if old.topics is state.topics and old.brokers is state.brokers:
            return
        known = old.topics
        changed = [topic for name, topic in state.topics.items() if known.get(name) is not topic]
        created = [t for t in changed if (was := known.get(t.name)) is None or was.topic_id != t.topic_id]
        removed: set[str] = set()
        if len(known) != len(state.topics) or created:
            removed = known.keys() - state.topics.keys()
        if old.brokers is not state.brokers:
            self._hashes.clear()  # racks may have changed
        elif not changed and not removed:
            return
        self.version += 1
        if created:
            self.created_version = self.version
        for topic in changed:
            self._hashes.pop(topic.name, None)
        for name in removed:
            self._hashes.pop(name, None)

    def id_of(self, name: str) -> bytes | None:
        """Return a topic's id; None if it does not exist."""
        topic = self.state.topics.get(name)
        return None if topic is None else topic.topic_id

    def name_of(self, topic_id: bytes) -> str | None:
        return self.state.topic_names.get(topic_id)

    def ids_of(self, names: Iterable[str]) -> frozenset[bytes]:
        """Return the ids of the topics that exist."""
        topics = self.state.topics
        return frozenset([topics[name].topic_id for name in names if name in topics])

    def count_of(self, topic_id: bytes) -> int:
        """Return the number of partitions of a topic; -1 if it does not exist."""
        name = self.state.topic_names.get(topic_id)
        return -1 if name is None else len(self.state.topics[name].partitions)

    def partitions_of(self, name: str) -> int | None:
        """Return the number of partitions of a topic; None if it does not exist."""
        topic = self.state.topics.get(name)
        return None if topic is None else len(topic.partitions)

    def hash_of(self, names: Iterable[str]) -> int:
        """Return a signed 64-bit hash of these topics; 0 if none of them exists."""
        known = sorted(name for name in names if name in self.state.topics)
        if not known:
            return 0
        digest = blake2b(digest_size=8)
        for name in known:
            digest.update(self._topic_hash(self.state.topics[name]).to_bytes(8, "big"))
        return int.from_bytes(digest.digest(), "big", signed=True)

    async def prepared(self, names: Iterable[str]) -> None:
        """Hash topics in pieces in advance, so that a later `hash_of` is quick."""
        for name in names:
            topic = self.state.topics.get(name)
            if topic is not None:
                self._topic_hash(topic)
            await turn

    def _topic_hash(self, topic: TopicState) -> int:
        found = self._hashes.get(topic.name)
        if found is None:
            brokers = self.state.brokers
            digest = blake2b(topic.topic_id, digest_size=8)
            digest.update(repr((topic.name, len(topic.partitions))).encode())
            racks_of: dict[tuple[int, ...], bytes] = {}  # a cache: many partitions have the same replicas
            for partition in topic.partitions:
                replicas = partition.replicas
                racks = racks_of.get(replicas)
                if racks is None:
                    named = sorted({broker.rack for r in replicas if (broker := brokers.get(r)) and broker.rack})
                    racks = racks_of[replicas] = repr(named).encode()
                digest.update(racks)
            found = self._hashes[topic.name] = int.from_bytes(digest.digest(), "big")
        return found
