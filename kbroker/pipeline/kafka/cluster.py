"""A job's own requests to a Kafka cluster: topics, offsets, and a consumer group that shows its progress.

Owns the use of the Kafka clients, which the caller passes (`Clients`). Never reads records.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol, TypeVar

from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.kafka.client_settings import java_settings
from kbroker.pipeline.ranges import Partition

Result = TypeVar("Result")

_INTERNAL: Final = ("__consumer_offsets", "__transaction_state", "__share_group_state")
_PATIENCE_S: Final = 60.0  # the Java client's default request.timeout.ms
_PAUSE_S: Final = 0.5


class Clients(Protocol):
    """Creates Kafka clients. `kbroker.admin.connection.Connection` implements this."""

    @property
    def bootstrap(self) -> str: ...
    @property
    def settings(self) -> Mapping[str, Any]: ...
    def admin(self) -> AbstractContextManager[Any]: ...
    def consumer(self, **own: Any) -> Any: ...
    def producer(self, **own: Any) -> Any: ...


class Cluster:
    """A Kafka cluster that a job uses."""

    def __init__(self, clients: Clients) -> None:
        self.clients = clients

    @staticmethod
    def patiently(call: Callable[[], Result], patience_s: float = _PATIENCE_S) -> Result:
        """Retry a call while the brokers do not answer, for at most `patience_s` seconds. Return its result.

        Use this only for running jobs, because wrong arguments must be reported when a job starts. Raises the error of
        the last try.
        """
        deadline = time.monotonic() + patience_s
        while True:
            try:
                return call()
            except PipelineError:
                raise
            except Exception:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_PAUSE_S)

    def spark_options(self) -> dict[str, str]:
        """Return the options that Spark's source and sink need to reach this cluster."""
        options = {"kafka.bootstrap.servers": self.clients.bootstrap}
        for name, value in java_settings(self.clients.settings).items():
            options[f"kafka.{name}"] = value
        return options

    def topics(self) -> dict[str, int]:
        """Return the topics with their numbers of partitions, without internal topics."""
        with self.clients.admin() as admin:
            found = admin.describe_topics()
        return {str(t["name"]): len(t["partitions"]) for t in found if str(t["name"]) not in _INTERNAL}

    def chosen(self, names: Iterable[str]) -> dict[str, int]:
        """Return the named topics with their numbers of partitions. Raises PipelineError for a missing topic."""
        existing = self.topics()
        names = list(dict.fromkeys(names))
        missing = [name for name in names if name not in existing]
        if missing:
            raise PipelineError(f"no topic {', '.join(missing)} at {self.clients.bootstrap}")
        return {name: existing[name] for name in names}

    def ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Return the ids of the topics that exist. A recreated topic has a new id (KIP-516)."""
        with self.clients.admin() as admin:
            found = admin.describe_topics(list(topics))
        return {str(topic["name"]): str(topic["topic_id"]) for topic in found if not topic["error_code"]}

    def compacted(self, topics: Iterable[str]) -> set[str]:
        """Return the topics whose `cleanup.policy` includes compact."""
        return {name for name in topics if "compact" in self.config(name, "cleanup.policy")}

    def bounds(self, topics: Mapping[str, int], isolation: str = "read_committed") -> dict[Partition, tuple[int, int]]:
        """Return (log start offset, end) of each partition.

        The end is the last stable offset or, for read_uncommitted, the high watermark.
        """
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
        """Return the ends of a topic's partitions (the last stable offsets)."""
        return {partition: end for partition, (_, end) in self.bounds(self.chosen((topic,))).items()}

    def high_watermarks(self, topic: str) -> dict[Partition, int]:
        """Return the ends of a topic's partitions, including the records of open transactions."""
        found = self.bounds(self.chosen((topic,)), "read_uncommitted")
        return {partition: end for partition, (_, end) in found.items()}

    def ensure_topic(self, topic: str, partitions: int, configs: Mapping[str, str] | None = None) -> int:
        """Create a topic if it does not exist. Return its number of partitions."""
        existing = self.topics()
        if topic not in existing:
            with self.clients.admin() as admin:
                wanted = {"num_partitions": partitions, "replication_factor": -1, "configs": dict(configs or {})}
                admin.create_topics({topic: wanted})
                admin.wait_for_topics([topic])
            return partitions
        return existing[topic]

    def config(self, topic: str, name: str) -> str:
        """Return one config of a topic, or an empty text for a config that this Kafka does not know."""
        from kafka.admin import ConfigResource, ConfigResourceType

        with self.clients.admin() as admin:
            wanted = ConfigResource(ConfigResourceType.TOPIC, topic, {name: None})
            found = admin.describe_configs([wanted], config_filter="all")
        entry = found["topic"][topic].get(name)
        return "" if entry is None else str(entry["value"])

    def show_progress(self, group: str, ends: Mapping[Partition, int]) -> None:
        """Commit offsets for a group without members, so that tools for groups show the job's lag."""
        from kafka.structs import OffsetAndMetadata, TopicPartition

        offsets = {
            TopicPartition(partition.topic, partition.number): OffsetAndMetadata(end, "", -1)
            for partition, end in ends.items()
        }
        with self.clients.admin() as admin:
            admin.alter_group_offsets(group, offsets)
