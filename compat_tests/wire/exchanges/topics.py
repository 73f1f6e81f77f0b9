"""CreateTopics, DeleteTopics, CreatePartitions, DeleteRecords."""

from __future__ import annotations

from typing import Any

from compat_tests.wire.exchanges import sequence, versions
from compat_tests.wire.exchanges.produce import batch, put
from compat_tests.wire.session import Wire
from kbroker.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicState,
)


def topic(name: str, partitions: int = 1, factor: int = 1, assignments: Any = None, **configs: Any) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=factor,
        assignments=[CreatableReplicaAssignment(p, list(r)) for p, r in (assignments or [])],
        configs=[CreatableTopicConfig(k.replace("_", "."), v) for k, v in configs.items()],
    )


@sequence
def create_topics(wire: Wire) -> None:
    for v in versions(CreateTopicsRequest):

        def ask(label: str, *topics: CreatableTopic, validate: bool = False) -> None:
            request = CreateTopicsRequest(topics=list(topics), timeout_ms=10000, validate_only=validate)
            wire.ask(label, request, v)  # noqa: B023

        n = f"{wire.name}-{v}"
        ask("plain", topic(n))
        ask("exists", topic(n))
        ask("three partitions", topic(f"{n}-p3", 3))
        ask("defaults", topic(f"{n}-def", -1, -1)) if v >= 4 else None
        ask("zero partitions", topic(f"{n}-z", 0))
        ask("negative partitions", topic(f"{n}-z", -2))
        ask("factor zero", topic(f"{n}-z", 1, 0))
        ask("factor negative", topic(f"{n}-z", 1, -2))
        ask("factor two", topic(f"{n}-z", 1, 2))
        ask("assignment", topic(f"{n}-as", -1, -1, [(0, [1]), (1, [1])]))
        ask("assignment and partitions", topic(f"{n}-z", 2, -1, [(0, [1])]))
        ask("assignment and factor", topic(f"{n}-z", -1, 1, [(0, [1])]))
        ask("assignment to nobody", topic(f"{n}-z", -1, -1, [(0, [])]))
        ask("assignment to a stranger", topic(f"{n}-z", -1, -1, [(0, [9])]))
        ask("assignment twice", topic(f"{n}-z", -1, -1, [(0, [1, 1])]))
        ask("assignment with a gap", topic(f"{n}-z", -1, -1, [(1, [1])]))
        ask("assignment of one partition twice", topic(f"{n}-z", -1, -1, [(0, [1]), (0, [1])]))
        ask("empty name", topic(""))
        ask("dot", topic("."))
        ask("slash", topic("a/b"))
        ask("too long", topic("x" * 250))
        ask("duplicate", topic(f"{n}-d"), topic(f"{n}-d"))
        ask("collision", topic(f"{n}-a.b"))
        ask("collides", topic(f"{n}-a_b"))
        ask("config", topic(f"{n}-c", retention_ms="1000", cleanup_policy="compact,delete"))
        ask("unknown config", topic(f"{n}-z", no_such="1"))
        ask("bad number", topic(f"{n}-z", retention_ms="soon"))
        ask("bad choice", topic(f"{n}-z", cleanup_policy="burn"))
        ask("out of range", topic(f"{n}-z", segment_bytes="1"))
        ask("null config", topic(f"{n}-z", retention_ms=None))
        ask("lags", topic(f"{n}-z", min_compaction_lag_ms="10", max_compaction_lag_ms="5"))
        ask("validate only", topic(f"{n}-v"), validate=True)
        ask("validate only again", topic(f"{n}-v"), validate=True)
        ask("good and bad", topic(f"{n}-good"), topic("a b"))
        ask("metadata topic", topic("__cluster_metadata"))
        ask("none")
    request = CreateTopicsRequest(topics=[topic(f"{wire.name}-many", 20000)], timeout_ms=10000)
    wire.ask("twenty thousand partitions", request, 7)


@sequence
def delete_topics(wire: Wire) -> None:
    for v in versions(DeleteTopicsRequest):

        def ask(label: str, names: list[str] | None = None, states: list[DeleteTopicState] | None = None) -> None:
            request = DeleteTopicsRequest(topic_names=names or [], topics=states or [], timeout_ms=10000)
            wire.ask(label, request, v)  # noqa: B023

        a, b = wire.topic(f"{v}-a"), wire.topic(f"{v}-b")
        if v < 6:
            ask("one", [a])
            ask("again", [a])
            ask("twice", [b, b])
            ask("known and unknown", [b, "no-such-topic"])
            ask("none", [])
            ask("empty name", [""])
            continue
        a_id, b_id = wire.topic_id(a), wire.topic_id(b)
        by_name, by_id = DeleteTopicState(name=a), DeleteTopicState(name=None, topic_id=b_id)
        ask("name and id", states=[DeleteTopicState(name=a, topic_id=a_id)])
        ask("neither", states=[DeleteTopicState(name=None)])
        ask("name twice", states=[by_name, by_name])
        ask("id twice", states=[by_id, by_id])
        ask("name and id of one topic", states=[by_name, DeleteTopicState(name=None, topic_id=a_id)])
        ask("unknown id", states=[DeleteTopicState(name=None, topic_id=bytes(range(16)))])
        ask("both", states=[by_name, by_id])
        ask("again", states=[by_name, by_id])


@sequence
def create_partitions(wire: Wire) -> None:
    for v in versions(CreatePartitionsRequest):
        a = wire.topic(f"{v}", 2)

        def ask(label: str, *topics: CreatePartitionsTopic, validate: bool = False) -> None:
            wire.ask(label, CreatePartitionsRequest(topics=list(topics), timeout_ms=10000, validate_only=validate), v)  # noqa: B023

        def grow(count: int, *replicas: list[int], name: str = a) -> CreatePartitionsTopic:
            assignments = [CreatePartitionsAssignment(r) for r in replicas] or None
            return CreatePartitionsTopic(name=name, count=count, assignments=assignments)

        ask("the same", grow(2))
        ask("fewer", grow(1))
        ask("zero", grow(0))
        ask("negative", grow(-1))
        ask("validate only", grow(4), validate=True)
        ask("unknown", grow(4, name="no-such-topic"))
        ask("assigned to a stranger", grow(3, [9]))
        ask("too many assignments", grow(3, [1], [1]))
        ask("assigned to nobody", grow(3, []))
        ask("assigned to too many", grow(3, [1, 1]))
        ask("one more", grow(3, [1]))
        ask("two more", grow(5))
        ask("duplicate", grow(7), grow(8))
        b = wire.topic(f"b-{v}")
        ask("as many as may be, and a stranger", grow(5_004), grow(5_002, [9], name=b), validate=True)
        ask("one too many", grow(5_004), grow(5_003, name=b), grow(9, name="no-such-topic"), validate=True)
        ask("far too many, twice", grow(2**31 - 1), grow(2**31 - 1, name=b), validate=True)
        ask("far too many, and a duplicate", grow(2**31 - 1), grow(2, name=b), grow(3, name=b), validate=True)


@sequence
def delete_records(wire: Wire) -> None:
    wire.coordinator("any")  # from here on __consumer_offsets exists
    for v in versions(DeleteRecordsRequest):
        name = wire.topic(f"{v}")
        for _ in range(3):
            put(wire, name, batch(5))

        def ask(label: str, offset: int, partition: int = 0, topic_name: str = name) -> None:
            request = DeleteRecordsRequest(
                topics=[DeleteRecordsTopic(topic_name, [DeleteRecordsPartition(partition, offset)])], timeout_ms=5000
            )
            wire.ask(label, request, v)  # noqa: B023

        ask("to 3", 3)
        ask("to 3 again", 3)
        ask("back to 1", 1)
        ask("past the end", 100)
        ask("negative", -2)
        ask("to the high watermark", -1)
        ask("unknown partition", 0, 7)
        ask("unknown topic", 0, 0, "no-such-topic")
        ask("internal", 0, 0, "__consumer_offsets")
    compacted = wire.topic("compacted", cleanup_policy="compact")
    request = DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(compacted, [DeleteRecordsPartition(0, 0)])], timeout_ms=5000
    )
    wire.ask("compacted", request, 2)
