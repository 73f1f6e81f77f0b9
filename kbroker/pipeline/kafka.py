"""What a job asks a Kafka cluster itself: topics, offsets, and a consumer group that shows how far it has come.

Owns the use of the Kafka client, which it is handed (`Clients`). Never reads records.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

from kbroker.pipeline.client_settings import java_settings
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.manifest import Partition

_INTERNAL: Final = ("__consumer_offsets", "__transaction_state", "__share_group_state")


class Clients(Protocol):
    """How to make Kafka clients; `kbroker.cli.client.Connection` is one."""

    @property
    def bootstrap(self) -> str: ...
    @property
    def settings(self) -> Mapping[str, Any]: ...
    def admin(self) -> AbstractContextManager[Any]: ...
    def consumer(self, **own: Any) -> Any: ...
    def producer(self, **own: Any) -> Any: ...


class Cluster:
    """A Kafka cluster."""

    def __init__(self, clients: Clients) -> None:
        self.clients = clients

    def spark_options(self) -> dict[str, str]:
        """Return the options of Spark's source and sink that reach this cluster."""
        options = {"kafka.bootstrap.servers": self.clients.bootstrap}
        for name, value in java_settings(self.clients.settings).items():
            options[f"kafka.{name}"] = value
        return options

    def topics(self) -> dict[str, int]:
        """Return the topics with their numbers of partitions, without the cluster's own."""
        with self.clients.admin() as admin:
            found = admin.describe_topics()
        return {str(t["name"]): len(t["partitions"]) for t in found if str(t["name"]) not in _INTERNAL}

    def chosen(self, names: Iterable[str], pattern: str | None) -> dict[str, int]:
        """Return the topics of those names, or all that a pattern matches whole; raises PipelineError for none."""
        existing = self.topics()
        if pattern is not None:
            matches = re.compile(pattern).fullmatch
            found = {name: count for name, count in existing.items() if matches(name)}
            if not found:
                raise PipelineError(f"no topic at {self.clients.bootstrap} matches {pattern}")
            return found
        names = list(dict.fromkeys(names))
        missing = [name for name in names if name not in existing]
        if missing:
            raise PipelineError(f"no topic {', '.join(missing)} at {self.clients.bootstrap}")
        return {name: existing[name] for name in names}

    def ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Return the ids of topics: one that was made anew has another (KIP-516)."""
        with self.clients.admin() as admin:
            found = admin.describe_topics(list(topics))
        return {str(topic["name"]): str(topic["topic_id"]) for topic in found}

    def bounds(self, topics: Mapping[str, int], isolation: str = "read_committed") -> dict[Partition, tuple[int, int]]:
        """Return (log start offset, last stable offset) of every partition; the high watermark for read_uncommitted."""
        from kafka.structs import TopicPartition

        places = [TopicPartition(name, number) for name, count in topics.items() for number in range(count)]
        consumer = self.clients.consumer(isolation_level=isolation, enable_auto_commit=False)
        try:
            first, last = consumer.beginning_offsets(places), consumer.end_offsets(places)
        finally:
            consumer.close()
        return {Partition(p.topic, p.partition): (first[p], last[p]) for p in places}

    def identity(self) -> str:
        """Return the cluster's id."""
        with self.clients.admin() as admin:
            return str(admin.describe_cluster()["cluster_id"])

    def ends(self, topic: str) -> dict[Partition, int]:
        """Return where the partitions of a topic end (the last stable offsets)."""
        return {partition: end for partition, (_, end) in self.bounds(self.chosen((topic,), None)).items()}

    def high_watermarks(self, topic: str) -> dict[Partition, int]:
        """Return where the partitions of a topic end, open transactions and all."""
        found = self.bounds(self.chosen((topic,), None), "read_uncommitted")
        return {partition: end for partition, (_, end) in found.items()}

    def ensure_topic(self, topic: str, partitions: int, configs: Mapping[str, str] | None = None) -> int:
        """Create a topic if it does not exist; returns how many partitions it has."""
        existing = self.topics()
        if topic not in existing:
            with self.clients.admin() as admin:
                asked = {"num_partitions": partitions, "replication_factor": -1, "configs": dict(configs or {})}
                admin.create_topics({topic: asked})
                admin.wait_for_topics([topic])
            return partitions
        return existing[topic]

    def config(self, topic: str, name: str) -> str:
        """Return one of a topic's configs."""
        from kafka.admin import ConfigResource, ConfigResourceType

        with self.clients.admin() as admin:
            asked = ConfigResource(ConfigResourceType.TOPIC, topic, {name: None})
            found = admin.describe_configs([asked], config_filter="all")
        return str(found["topic"][topic][name]["value"])

    def show_progress(self, group: str, ends: Mapping[Partition, int]) -> None:
        """Commit offsets for a group that has no members, so that tools that show lag show a job's."""
        from kafka.structs import OffsetAndMetadata, TopicPartition

        offsets = {
            TopicPartition(partition.topic, partition.number): OffsetAndMetadata(end, "", -1)
            for partition, end in ends.items()
        }
        with self.clients.admin() as admin:
            admin.alter_group_offsets(group, offsets)
