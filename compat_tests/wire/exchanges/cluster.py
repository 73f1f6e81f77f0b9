"""ApiVersions, Metadata, DescribeCluster, DescribeTopicPartitions, DescribeLogDirs."""

from __future__ import annotations

from typing import Any

from compat_tests.wire.exchanges import sequence, versions
from compat_tests.wire.exchanges.produce import batch, put
from compat_tests.wire.session import Wire
from kbroker.protocol.messages.cluster import (
    Cursor,
    DescribeClusterRequest,
    DescribeQuorumRequest,
    DescribeTopicPartitionsRequest,
    FeatureUpdateKey,
    MetadataRequest,
    MetadataRequestTopic,
    TopicRequest,
    UpdateFeaturesRequest,
)
from kbroker.protocol.messages.cluster import PartitionRequest as PartitionData
from kbroker.protocol.messages.cluster import QuorumTopicRequest as TopicData
from kbroker.protocol.messages.connections import ApiVersionsRequest
from kbroker.protocol.messages.logs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
)

RANDOM_ID = bytes(range(16))


@sequence
def api_versions(wire: Wire) -> None:
    for name, software, version in [
        ("empty software", "", ""),
        ("bad name", "bad name", "1"),
        ("bad version", "good", "-1"),
        ("one letter", "a", "1"),
        ("trailing dash", "a-", "1"),
    ]:
        request = ApiVersionsRequest(client_software_name=software, client_software_version=version)
        for v in (3, 4, 5):
            answer = wire.quiet(request, v)
            wire.record(name, v, answer.error_code)
    cluster = wire.quiet(DescribeClusterRequest(), 1)
    for name, cluster_id, node_id in (
        ("this broker", cluster.cluster_id, cluster.brokers[0].broker_id),
        ("another broker", cluster.cluster_id, cluster.brokers[0].broker_id + 1),
        ("another cluster", cluster.cluster_id[::-1], cluster.brokers[0].broker_id),
        ("empty cluster", "", cluster.brokers[0].broker_id),
        ("a cluster without a broker", cluster.cluster_id, -1),
        ("a cluster with a negative broker", cluster.cluster_id, -2),
        ("a broker without a cluster", None, cluster.brokers[0].broker_id),
    ):
        for software in ("wire", "bad name"):
            answer = wire.quiet(ApiVersionsRequest(software, "1.0", cluster_id, node_id), 5)
            wire.record(f"{name}, {software}", 5, [answer.error_code, bool(answer.api_keys)])
    for v in versions(ApiVersionsRequest):
        request = ApiVersionsRequest(client_software_name="wire", client_software_version="1.0")
        answer = wire.quiet(request, v)
        ours = {k.api_key: (k.min_version, k.max_version) for k in answer.api_keys if k.api_key not in NOT_SERVED}
        wire.record("ranges", v, {str(k): list(v) for k, v in sorted(ours.items())})
        wire.record("error", v, answer.error_code)


@sequence
def quorum(wire: Wire) -> None:
    own = [TopicData("__cluster_metadata", [PartitionData(0)])]
    for v in versions(DescribeQuorumRequest):
        answer = wire.quiet(DescribeQuorumRequest(own), v)
        (partition,) = answer.topics[0].partitions
        assert partition.high_watermark > 0
        assert partition.current_voters[0].log_end_offset == partition.high_watermark
        partition.high_watermark = partition.current_voters[0].log_end_offset = 0
        assert partition.leader_epoch > 0  # Kafka's grows with each start
        partition.leader_epoch = 1
        assert (partition.current_voters[0].last_caught_up_timestamp > 0) == (v > 0)
        partition.current_voters[0].last_caught_up_timestamp = partition.current_voters[0].last_fetch_timestamp = 0
        wire.record("own", v, answer.topics)
        wire.record("nodes", v, [node.node_id for node in answer.nodes])
        for name, topics in {
            "other partition": [TopicData("__cluster_metadata", [PartitionData(1)])],
            "two partitions": [TopicData("__cluster_metadata", [PartitionData(0), PartitionData(1)])],
            "other topic": [TopicData("nowhere", [PartitionData(0), PartitionData(7)])],
            "two topics": [*own, TopicData("nowhere", [PartitionData(0)])],
            "no partition": [TopicData("__cluster_metadata", [])],
            "none": [],
        }.items():
            wire.ask(name, DescribeQuorumRequest(topics), v)


NOT_SERVED = {64, 80, 81, 94}
"""APIs that kafka-broker-api-versions shows only of Apache Kafka; FINDINGS.md says why."""


@sequence
def api_versions_unknown(wire: Wire) -> None:
    import struct

    for version in (6, 99, 32767):
        client = wire.client()
        body = struct.pack(">hhih", 18, version, 7, 4) + b"wire" + b"\0" + b"\1\1\0"
        client.send_bytes(struct.pack(">i", len(body)) + body)
        raw = client.receive()
        wire.record("unknown version", version, raw if isinstance(raw, str) else raw.hex())


@sequence
def metadata(wire: Wire) -> None:
    one, two = wire.topic("one", 1), wire.topic("two", 3)
    for v in versions(MetadataRequest):

        def by_name(*names: str) -> list[MetadataRequestTopic]:
            return [MetadataRequestTopic(name=n) for n in names]

        def ask(label: str, **fields: Any) -> None:
            wire.ask(label, MetadataRequest(allow_auto_topic_creation=False, **fields), v)  # noqa: B023

        ask("one topic", topics=by_name(one))
        ask("two topics", topics=by_name(one, two))
        ask("the same twice", topics=by_name(one, one))
        ask("unknown topic", topics=by_name(f"{wire.name}-none-{v}"))
        ask("bad name", topics=by_name("a b"))
        ask("dots", topics=by_name(".."))
        ask("long name", topics=by_name("x" * 250))
        ask("empty name", topics=by_name(""))
        ask("known and unknown", topics=by_name(one, f"{wire.name}-neither-{v}"))
        if v > 0:
            ask("none", topics=[])
        if v >= 8:
            ask("operations", topics=by_name(one), include_topic_authorized_operations=True)
        if 8 <= v <= 10:
            ask("cluster operations", topics=[], include_cluster_authorized_operations=True)
        if v >= 10:
            topic_id = wire.topic_id(one)
            ask("by id", topics=[MetadataRequestTopic(name=None, topic_id=topic_id)])
            ask("by unknown id", topics=[MetadataRequestTopic(name=None, topic_id=RANDOM_ID)])
            ask("name and id", topics=[MetadataRequestTopic(name=two, topic_id=topic_id)])
            ask("neither name nor id", topics=[MetadataRequestTopic(name=None)])


@sequence
def metadata_creates(wire: Wire) -> None:
    for v in (0, 1, 4, 9, 12, 13):
        name = f"{wire.name}-{v}"
        request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=True)
        wire.ask("first", request, v)
        wire.until(lambda: wire.quiet(request, v).topics[0].error_code == 0, "auto-creation")  # noqa: B023
        wire.ask("then", request, v)
        bad = MetadataRequest(topics=[MetadataRequestTopic(name="a/b")], allow_auto_topic_creation=True)
        wire.ask("bad name", bad, v)
    wire.topic("dup.name")
    clash = MetadataRequest(topics=[MetadataRequestTopic(name=f"{wire.name}-dup_name")], allow_auto_topic_creation=True)
    wire.ask("colliding name", clash, 12)
    wire.ask("colliding name again", clash, 12)


@sequence
def describe_cluster(wire: Wire) -> None:
    for v in versions(DescribeClusterRequest):
        wire.ask("plain", DescribeClusterRequest(), v)
        wire.ask("operations", DescribeClusterRequest(include_cluster_authorized_operations=True), v)
        if v >= 1:
            wire.ask("controllers", DescribeClusterRequest(endpoint_type=2), v)
            wire.ask("unknown type", DescribeClusterRequest(endpoint_type=77), v)
        if v >= 2:
            wire.ask("fenced too", DescribeClusterRequest(include_fenced_brokers=True), v)


@sequence
def describe_topic_partitions(wire: Wire) -> None:
    one, three = wire.topic("a", 1), wire.topic("b", 3)

    def ask(label: str, names: list[str], limit: int = 2000, cursor: Cursor | None = None) -> None:
        request = DescribeTopicPartitionsRequest(
            topics=[TopicRequest(name=n) for n in names], response_partition_limit=limit, cursor=cursor
        )
        wire.ask(label, request, 0)

    ask("two topics", [one, three])
    ask("unsorted, twice", [three, one, three])
    ask("limit 1", [one, three], 1)
    ask("limit 2", [one, three], 2)
    ask("limit 0", [one, three], 0)
    ask("limit negative", [one, three], -5)
    ask("from a cursor", [one, three], 2, Cursor(three, 1))
    ask("cursor at the end", [one, three], 2, Cursor(three, 2))
    ask("cursor past the end", [one, three], 2, Cursor(three, 7))
    ask("cursor of another topic", [one], 2, Cursor("zzz", 0))
    ask("cursor negative", [one, three], 2, Cursor(three, -1))
    ask("unknown", [one, f"{wire.name}-none"])
    ask("bad name", ["a b"])
    ask("exactly full", [one, three], 4)
    ask("full with more", [one, three, f"{wire.name}-none"], 4)


@sequence
def alter_replica_log_dirs(wire: Wire) -> None:
    topic = wire.topic("t", 2)
    (here,) = (each.log_dir for each in wire.quiet(DescribeLogDirsRequest(topics=[]), 5).results)
    for v in versions(AlterReplicaLogDirsRequest):

        def ask(label: str, *dirs: tuple[str, str, list[int]]) -> None:
            wanted = [AlterReplicaLogDir(path, [AlterReplicaLogDirTopic(name, each)]) for path, name, each in dirs]
            wire.ask(label, AlterReplicaLogDirsRequest(dirs=wanted), v)  # noqa: B023

        ask("where it is", (here, topic, [0]))
        ask("unknown directory", ("/nowhere", topic, [0, 1]))
        ask("relative directory", ("nowhere", topic, [0]))
        ask("empty directory", ("", topic, [0]))
        ask("unknown partition", (here, topic, [7]))
        ask("unknown topic", (here, f"{wire.name}-none", [0]))
        ask("unknown topic and directory", ("/nowhere", f"{wire.name}-none", [0]))
        ask("twice", ("/nowhere", topic, [0]), (here, topic, [0]))
        ask("long name", (here, "x" * 249, [0]))
        ask("nothing")


@sequence
def describe_log_dirs(wire: Wire) -> None:
    topic = wire.topic("t", 2)
    put(wire, topic, batch(1))
    put(wire, topic, batch(2), 1)
    for v in versions(DescribeLogDirsRequest):

        def ask(label: str, *topics: DescribableLogDirTopic) -> None:
            wire.ask(label, DescribeLogDirsRequest(topics=list(topics)), v)  # noqa: B023

        ask("one topic", DescribableLogDirTopic(topic, [0, 1]))
        ask("one partition", DescribableLogDirTopic(topic, [1]))
        ask("unknown", DescribableLogDirTopic(f"{wire.name}-none", [0]))
        ask("unknown partition", DescribableLogDirTopic(topic, [7, -1]))
        ask("none")


@sequence
def features_of_the_cluster(wire: Wire) -> None:
    """Feature levels other than those of transactions; no level is changed."""
    names = ("group", "kraft", "metadata", "share", "streams", "transaction")
    shared = {f"{name}.version" for name in names}
    for v in (3, 4):
        answer = wire.quiet(ApiVersionsRequest(client_software_name="a", client_software_version="1"), v)
        for kept in (answer.supported_features, answer.finalized_features):
            kept[:] = sorted((each for each in kept if each.name in shared), key=lambda each: str(each.name))
        wire.record("features", v, [answer.supported_features, answer.finalized_features])
    for v in (1, 2):

        def ask(name: str, level: int, kind: int) -> None:
            keys = [FeatureUpdateKey(name, level, upgrade_type=kind)]
            request = UpdateFeaturesRequest(feature_updates=keys, validate_only=True)
            wire.ask(f"{name} to {level}, type {kind}", request, v)  # noqa: B023

        for kind in (0, 1, 2, 3):
            for level in (-1, 0, 6, 7, 25, 29, 30, 31):
                ask("metadata.version", level, kind)
            for level in (0, 1, 2):
                ask("kraft.version", level, kind)
