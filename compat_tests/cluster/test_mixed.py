"""kbroker as the third broker beside two of Apache Kafka 3.9.1: everything that moves, moves between both kinds."""

from __future__ import annotations

import subprocess
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from kafka import KafkaAdminClient, TopicPartition
from kafka.errors import KafkaError

from compat_tests.clients.java_tools.tool import CLASSES
from compat_tests.cluster.test_coordinators import committed, end, transactional, wait_for_committed, write
from compat_tests.cluster.tools import (
    QUIET,
    consumer,
    create,
    numbered,
    producer,
    read_all,
    send,
    streaming,
    take,
    try_for,
)
from compat_tests.harness.clusters import DEADLINE_S, SETTINGS, Cluster
from compat_tests.harness.jvm import BRIEF
from compat_tests.harness.parts import fetch
from compat_tests.wire.client import WireClient
from kbroker.cluster_state import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from kbroker.config.operations import Op
from kbroker.coordination.partitioning import partition_for
from kbroker.handlers.describe_configs import TOPIC
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.cluster import FeatureUpdateKey, UpdateFeaturesRequest
from kbroker.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalConfig,
    IncrementalResource,
)
from kbroker.protocol.messages.connections import ApiVersionsRequest
from kbroker.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest

pytestmark = [pytest.mark.java, pytest.mark.long]

SIDES: Final = ("mixed",)
JAVA, OTHER_JAVA, KBROKER = 1, 2, 3
_PREFERRED: Final = 0


def move(cluster: Cluster, topic: str, index: int, *replicas: int) -> None:
    """Assign a partition to some brokers, elect the first of them leader, and wait until both are done."""

    def ask() -> None:
        client = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
        try:
            client.alter_partition_reassignments({TopicPartition(topic, index): list(replicas)})
        finally:
            client.close()

    try_for(cluster, f"the reassignment of {topic}-{index}", ask, KafkaError)

    def moved() -> bool:
        found = [cluster.partition(topic, index, of=each) for each in cluster.node_ids]
        return all(
            each is not None and each.replica_nodes == list(replicas) and set(each.isr_nodes) == set(replicas)
            for each in found
        )

    cluster.wait_for(f"{topic}-{index} on {replicas}", moved)

    def elect() -> bool:
        if cluster.leader_of(topic, index) == replicas[0]:
            return True
        client = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
        try:
            client.elect_leaders(_PREFERRED, {topic: [index]}, raise_errors=False)
        finally:
            client.close()
        return False

    cluster.wait_for(f"{replicas[0]} leading {topic}-{index}", elect)
    cluster.wait_for(
        f"all brokers knowing that {replicas[0]} leads {topic}-{index}",
        lambda: all(cluster.partition(topic, index, of=each).leader_id == replicas[0] for each in cluster.node_ids),
    )


def log_bytes(cluster: Cluster, node_id: int, topic: str, index: int) -> bytes:
    """Return the bytes of a replica's segments, concatenated: another replica's may begin at other offsets."""
    directory = cluster.data_dir(node_id) / f"{topic}-{index}"
    return b"".join(file.read_bytes() for file in sorted(directory.glob("*.log")))


def is_same(cluster: Cluster, node_id: int, topic: str, index: int, whole: bytes) -> bool:
    return log_bytes(cluster, node_id, topic, index) == whole


def assert_equal_logs(cluster: Cluster, topic: str, partitions: int) -> int:
    """Assert that every replica of a topic that nobody writes to has the same bytes; return how many bytes."""
    size = 0
    for index in range(partitions):
        replicas = cluster.partition(topic, index).replica_nodes
        first = log_bytes(cluster, replicas[0], topic, index)
        assert first
        for node_id in replicas[1:]:
            same = partial(is_same, cluster, node_id, topic, index, first)
            cluster.wait_for(f"{topic}-{index} of {node_id} being as that of {replicas[0]}", same)
        size += len(replicas) * len(first)
    return size


def test_a_partition_travels_under_load(cluster: Cluster, name: str) -> None:
    client = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
    # Apache Kafka 3.9 accepts segment sizes that 4.4, and so kbroker, finds too small: the controller decides.
    segment = "100000" if cluster.controller() in (JAVA, OTHER_JAVA) else "1048576"
    new = NewTopic(name, 1, replica_assignment=[[JAVA, OTHER_JAVA]], config={"segment.bytes": segment})
    client.create_topics([new])[name].result(DEADLINE_S)
    cluster.wait_for_leader(name, 0)
    with streaming(producer(cluster, enable_idempotence=True, linger_ms=2), name, 1) as stream:
        for replicas in ([KBROKER], [OTHER_JAVA], [OTHER_JAVA, KBROKER], [KBROKER, JAVA], [JAVA, OTHER_JAVA, KBROKER]):
            stream.wait_for_more(cluster, 500)
            move(cluster, name, 0, *replicas)
        stream.wait_for_more(cluster, 500)
    (sent,) = stream.sent
    assert sent.failed == []
    assert read_all(cluster, name) == sent.acknowledged
    size = assert_equal_logs(cluster, name, 1)
    print(f"5 reassignments under {len(sent.acknowledged)} records, each once, in order; logs equal: {size} bytes")


def wait_for_offset(cluster: Cluster, group: str, topic: str, offset: int) -> None:
    cluster.wait_for(f"offset {offset} of {group}", lambda: committed(cluster, group, topic) == offset)


def test_coordinators_move_between_the_kinds(cluster: Cluster, name: str) -> None:
    source, target = create(cluster, f"{name}-in"), create(cluster, f"{name}-out", 3)
    group = f"{name}-g"
    offsets = partition_for(group, int(SETTINGS["offsets.topic.num.partitions"]))
    transactions = partition_for(name, int(SETTINGS["transaction.state.log.num.partitions"]))
    sender, writer = producer(cluster, enable_idempotence=True), transactional(cluster, name)
    expected: list[bytes] = []
    with consumer(cluster, group, isolation_level="read_committed") as reader:
        reader.subscribe([source])
        for turn, leader in enumerate((KBROKER, JAVA, KBROKER, OTHER_JAVA)):
            count = 10 * (turn + 1)
            values = numbered(f"turn-{turn}", 10)
            send(sender, source, values)
            assert take(reader, 10) == values
            dropped = numbered(f"dropped-{turn}", 5)
            write(writer, target, dropped)
            # Both coordinators move while the transaction is open.
            others = [each for each in cluster.node_ids if each != leader]
            move(cluster, OFFSETS_TOPIC, offsets, leader, *others)
            move(cluster, TRANSACTIONS_TOPIC, transactions, leader, *others)
            end(writer, commit=False)
            write(writer, target, values)
            positions = reader.position(reader.assignment())
            writer.send_offsets_to_transaction(positions, reader.consumer_group_metadata(), DEADLINE_S)
            end(writer, commit=True)
            expected += values
            wait_for_offset(cluster, group, source, count)
            wait_for_committed(cluster, target, expected)

        def commit() -> None:
            reader.poll(0.1)  # on a busy machine it may have lost its membership, and joins again
            reader.commit(offsets=positions, asynchronous=False)

        try_for(cluster, "a commit", commit, KafkaException)
    assert committed(cluster, group, source) == count
    size = assert_equal_logs(cluster, source, 1)
    print(f"{2 * (turn + 1)} coordinators moved, {len(expected)} records, {turn + 1} transactions; equal: {size} bytes")


def assert_no_features(cluster: Cluster) -> None:
    """Apache Kafka 3.9 knows all finalized features, and every broker reports these features to clients."""
    asked = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    for node_id in cluster.node_ids:
        with WireClient(cluster.address(node_id)) as client:
            assert client.ask(asked, 3).finalized_features == []
    with WireClient(cluster.address(KBROKER)) as client:
        member = ConsumerGroupHeartbeatRequest("g", "m", 0, rebalance_timeout_ms=1, subscribed_topic_names=["t"])
        assert client.ask(member, 0).error_code == ErrorCode.UNSUPPORTED_VERSION


def assert_refused(cluster: Cluster, controller: int) -> None:
    """Nor can a feature be finalized: Java's controller knows none, and kbroker's has brokers that know none."""
    update = FeatureUpdateKey("transaction.version", 2, upgrade_type=1)
    with WireClient(cluster.address(controller)) as client:
        answer = client.ask(UpdateFeaturesRequest(feature_updates=[update]), 1)
    assert answer.error_code or [each.error_code for each in answer.results] == [ErrorCode.INVALID_REQUEST]
    if controller == KBROKER:
        assert "Broker 1 does not support this feature." in answer.error_message


def set_config(cluster: Cluster, node_id: int, topic: str, key: str, value: str) -> None:
    resource = IncrementalResource(TOPIC, topic, [IncrementalConfig(key, Op.SET, value)])
    with WireClient(cluster.address(node_id)) as client:
        (answer,) = client.ask(IncrementalAlterConfigsRequest([resource]), 1).responses
    assert answer.error_code == 0, answer.error_message


def configs(cluster: Cluster, node_id: int, topic: str, keys: list[str]) -> list[str | None]:
    resource = DescribeConfigsResource(TOPIC, topic, keys)
    with WireClient(cluster.address(node_id)) as client:
        (answer,) = client.ask(DescribeConfigsRequest([resource]), 4).results
    found = {each.name: each.value for each in answer.configs}
    return [found[key] for key in keys]


def has_config(cluster: Cluster, node_id: int, topic: str, key: str, value: str) -> bool:
    return configs(cluster, node_id, topic, [key]) == [value]


def test_configs_changed_through_either_kind_reach_both(cluster: Cluster, name: str) -> None:
    topic = create(cluster, name)
    keys = ["retention.ms", "segment.ms"]
    for turn in range(3):
        for node_id, key in zip((KBROKER, JAVA), keys, strict=True):
            wanted = str(200_000 + turn)
            set_config(cluster, node_id, topic, key, wanted)
            for each in cluster.node_ids:
                cluster.wait_for(f"{key} at {each}", partial(has_config, cluster, each, topic, key, wanted))
    assert all(configs(cluster, each, topic, keys) == ["200002", "200002"] for each in cluster.node_ids)


def is_gone(directory: Path, topic: str) -> bool:
    return not list(directory.glob(f"{topic}-*"))


@pytest.mark.parametrize("kind", ["kbroker", "java"])
def test_a_controller_of_each_kind(cluster: Cluster, name: str, kind: str) -> None:
    name = f"{name}-{kind}"
    for _ in range(10):
        controller = cluster.wait_for_controller()
        if (controller == KBROKER) == (kind == "kbroker"):
            break
        cluster.stop(controller)
        cluster.wait_for_controller(other_than=controller)
        cluster.start(controller)
        cluster.wait_until_in_sync()
    else:
        pytest.fail(f"no controller of kind {kind} after ten elections")
    assert_refused(cluster, controller)
    assert_no_features(cluster)
    topic = create(cluster, name, 3)
    client = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
    client.create_partitions([NewPartitions(topic, 6)])[topic].result(DEADLINE_S)
    for index in range(6):
        cluster.wait_for_leader(topic, index)
        assert send(producer(cluster), topic, numbered("record", 10), index).failed == []
    move(cluster, topic, 0, KBROKER, JAVA)
    move(cluster, topic, 0, OTHER_JAVA, KBROKER)
    for node_id in cluster.node_ids:
        if node_id != controller:
            cluster.kill(node_id)
            for index in range(6):
                cluster.wait_for_leader(topic, index, other_than=node_id)
            cluster.start(node_id)
            cluster.wait_until_in_sync()
    assert cluster.wait_for_controller() == controller
    assert_no_features(cluster)
    size = assert_equal_logs(cluster, topic, 6)
    print(f"controller {controller}: 6 partitions, 2 reassignments, 2 brokers killed; logs equal: {size} bytes")
    client.delete_topics([topic])[topic].result(DEADLINE_S)
    cluster.wait_for("the end of the topic", lambda: cluster.partition(topic, 0) is None)
    for node_id in cluster.node_ids:
        directory = cluster.data_dir(node_id)
        cluster.wait_for("the end of its files", partial(is_gone, directory, topic))


def test_kafkas_verification_finds_all_replicas_equal(cluster: Cluster, name: str) -> None:
    topic = create(cluster, name, 3)
    for index, codec in enumerate(("none", "lz4", "zstd")):
        client = producer(cluster, enable_idempotence=True, compression_type=codec)
        assert send(client, topic, numbered("record", 500), index).failed == []
    writer = transactional(cluster, name)
    for commit in (True, False):
        writer.begin_transaction()
        for index in range(3):
            send(writer, topic, numbered("transactional", 50), index)
        end(writer, commit=commit)
    wait_for_committed(cluster, topic, numbered("record", 500) + numbered("transactional", 50))
    size = assert_equal_logs(cluster, topic, 3)
    told = verified(cluster, topic)
    assert f"max lag is 0 for partition {topic}-" in told, told
    assert "out of" not in told.lower(), told
    print(f"logs equal: {size} bytes; {told}")


def verified(cluster: Cluster, topic: str) -> str:
    """Return what Kafka's ReplicaVerificationTool, which never ends, prints in its first rounds."""
    tool = CLASSES["topics"].replace("TopicCommand", "ReplicaVerificationTool")
    options = ["--broker-list", cluster.bootstrap, "--topics-include", topic, "--report-interval-ms", "1000"]
    command = ["java", "-Xmx256M", *BRIEF, "-cp", f"{fetch('kafka')}/*", tool, *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
        assert running.stdout is not None
        lines: list[str] = []
        try:
            for line in running.stdout:
                lines.append(line)
                if sum("max lag" in each for each in lines) == 3:
                    break
        finally:
            running.kill()
    return "".join(lines)
