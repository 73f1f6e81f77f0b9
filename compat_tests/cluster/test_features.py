"""Features of a cluster: Kafka's tool shows and changes those of kbroker alone; beside Java brokers there are none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer

from compat_tests.clients.java_tools.tool import run
from compat_tests.cluster.test_coordinators import committed, coordinator_of
from compat_tests.cluster.test_mixed import move
from compat_tests.cluster.tools import QUIET, create, numbered, producer, send
from compat_tests.harness.brokers import BrokerFailed
from compat_tests.harness.clusters import SETTINGS, JavaCluster, KBrokerCluster
from compat_tests.harness.zookeeper import ZooKeeper
from compat_tests.wire.client import WireClient
from kbroker.cluster_state import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from kbroker.coordination.partitioning import partition_for
from kbroker.launcher.child import LauncherError
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.connections import ApiVersionsRequest
from kbroker.protocol.messages.transactions import DescribeTransactionsRequest, TransactionState

pytestmark = [pytest.mark.java, pytest.mark.long]

ALL: Final = {"group.version": 1, "share.version": 2, "streams.version": 1, "transaction.version": 2}
JAVA: Final = 4
GROUP, ID = "new-protocol", "perf"
COORDINATED: Final = (
    (OFFSETS_TOPIC, GROUP, "offsets.topic.num.partitions"),
    (TRANSACTIONS_TOPIC, ID, "transaction.state.log.num.partitions"),
)


def finalized(address: str) -> dict[str, int]:
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    with WireClient(address) as client:
        return {each.name: each.max_version_level for each in client.ask(request, 4).finalized_features}


def stored(zookeeper: ZooKeeper) -> Any:
    with zookeeper.tree() as tree:
        return json.loads(tree.get("/feature")[0])


def test_features_of_kbroker_alone_go_before_a_java_broker_comes(kafka39_libs: Path, tmp_path: Path) -> None:
    with (
        ZooKeeper(kafka39_libs, tmp_path / "zookeeper") as zookeeper,
        KBrokerCluster(tmp_path / "kbroker", zookeeper) as cluster,
    ):
        cluster.wait_until_in_sync()
        assert all(finalized(cluster.address(each)) == ALL for each in cluster.node_ids)
        described = run("features", "describe", bootstrap=cluster.bootstrap)
        assert described[0] == "exit 0", described
        for name, level in ALL.items():
            row = [line for line in described if line.startswith(f"Feature: {name} ")]
            assert [f"FinalizedVersionLevel: {level}" in line for line in row] == [True], described
        group_of_the_new_protocol(cluster)
        assert epochs_of_javas_producer(cluster) > 2, "each end of a transaction begins one"
        java = JavaCluster(kafka39_libs, tmp_path / "java", zookeeper, (JAVA,))
        with pytest.raises(BrokerFailed, match="ended with 1"):
            java.start_all()
        lowered = run(
            "features",
            "downgrade",
            "--feature",
            "transaction.version=0",
            "--feature",
            "group.version=0",
            "--feature",
            "streams.version=0",
            "--feature",
            "share.version=0",
            bootstrap=cluster.bootstrap,
        )
        assert lowered[0] == "exit 0", lowered
        assert stored(zookeeper) == {"features": {}, "version": 2, "status": 1}
        with JavaCluster(kafka39_libs, tmp_path / "java", zookeeper, (JAVA,)) as java:
            cluster.wait_for("broker 4", lambda: {4} <= brokers(cluster, 1))
            assert finalized(cluster.address(1)) == {}
            raised = run("features", "upgrade", "--feature", "transaction.version=2", bootstrap=cluster.bootstrap)
            assert raised[0] == "exit 1", raised
            assert any("Broker 4 does not support this feature" in line for line in raised), raised
            assert java.pid(JAVA) is not None
            assert epochs_of_javas_producer(cluster) == 1, "only the new producer's own"
            # Java's coordinators read what was written while the features were finalized.
            for topic, key, setting in COORDINATED:
                move(cluster, topic, partition_for(key, int(SETTINGS[setting])), JAVA, 1, 2)
            assert committed(cluster, GROUP, GROUP) == 20
            assert epochs_of_javas_producer(cluster, java.address(JAVA)) == 1


def epochs_of_javas_producer(cluster: KBrokerCluster, also: str = "") -> int:
    """Let Java's producer complete some transactions; return by how much its epoch has increased since it began."""
    if cluster.partition("transactional", 0) is None:
        create(cluster, "transactional", 3)
    before = epoch(cluster, also)
    lasting = ["--num-records", "500", "--throughput", "1000", "--transaction-duration-ms", "50"]
    props = ["--record-size", "10", "--producer-props", f"bootstrap.servers={cluster.bootstrap}"]
    done = run("producer-perf", "--topic", "transactional", "--transactional-id", ID, *lasting, *props)
    assert done[0] == "exit 0", done
    cluster.wait_for("the last markers", lambda: state(cluster, also).transaction_state.startswith("Complete"))
    return epoch(cluster, also) - before


def epoch(cluster: KBrokerCluster, also: str) -> int:
    found = state(cluster, also)
    return -1 if found.error_code else int(found.producer_epoch)


def state(cluster: KBrokerCluster, also: str) -> Any:
    """Return what the coordinator answers about the transactional id; `also` is the address of one more broker."""
    found: list[Any] = []
    addresses = [*map(cluster.address, cluster.node_ids), *([also] if also else [])]

    def told() -> bool:
        for address in addresses:
            with WireClient(address) as client:
                (answer,) = client.ask(DescribeTransactionsRequest(transactional_ids=[ID]), 0).transaction_states
            if answer.error_code in (0, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND):
                found.append(answer)
                return True
        return cluster.partition(TRANSACTIONS_TOPIC, 0) is None

    cluster.wait_for("the coordinator", told)
    return found[0] if found else TransactionState(error_code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)


def brokers(cluster: KBrokerCluster, node_id: int) -> set[int]:
    answer = cluster.metadata(node_id)
    return set() if answer is None else {each.node_id for each in answer.brokers}


def group_of_the_new_protocol(cluster: KBrokerCluster) -> None:
    """A consumer continues when the process is killed that coordinates its group."""
    topic = create(cluster, GROUP)
    values = numbered("record", 40)
    sender = producer(cluster, enable_idempotence=True)
    send(sender, topic, values[:20])
    settings = {"group.id": topic, "group.protocol": "consumer", "auto.offset.reset": "earliest", **QUIET}
    client = Consumer({"bootstrap.servers": cluster.bootstrap, "enable.auto.commit": False, **settings})
    seen: list[bytes] = []

    def come(count: int) -> bool:
        message = client.poll(0.2)
        if message is not None and message.error() is None:
            seen.append(message.value() or b"")
        return len(seen) >= count

    try:
        client.subscribe([topic])
        cluster.wait_for("20 records", lambda: come(20))
        client.commit(asynchronous=False)
        cluster.kill(coordinator_of(cluster, OFFSETS_TOPIC, topic))
        send(sender, topic, values[20:])
        cluster.wait_for("40 records", lambda: come(40))
        assert seen == values
    finally:
        client.close()
    cluster.mend()


def test_a_broker_that_does_not_support_what_is_finalized_says_so_and_ends(kafka39_libs: Path, tmp_path: Path) -> None:
    with ZooKeeper(kafka39_libs, tmp_path / "zookeeper") as zookeeper:
        levels = {"later.version": {"max_version_level": 1}}
        zookeeper.put({"/feature": {"features": levels, "version": 2, "status": 1}})
        cluster = KBrokerCluster(tmp_path / "kbroker", zookeeper, (1,))
        said = "broker 1 has ended: .*/feature finalizes features that this broker does not support: later.version 1"
        with pytest.raises(LauncherError, match=said):
            cluster.start_all()
        assert "Traceback" not in cluster.log_tail(1)
