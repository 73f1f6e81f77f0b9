"""A broker of a cluster whose disk is full ends, so that others lead; a real disk is in compat_tests/cluster."""

from __future__ import annotations

import errno

import pytest
from confluent_kafka import Producer

from kbroker import Cluster
from kbroker.log.segment.segment import Segment
from tests.cluster.reading import consumed
from tests.cluster.test_cluster_in_process import FAST, PATIENCE_S, create, leader_of
from tests.txn.raw import until


@pytest.mark.long
@pytest.mark.parametrize("role", ["leader", "follower"])
def test_a_broker_with_a_full_disk_gives_up_and_comes_back(monkeypatch, role):
    with Cluster(brokers=3, config=FAST) as cluster:
        create(cluster, "orders", **{"min.insync.replicas": "2"})
        leader = leader_of(cluster, "orders")
        full = cluster.brokers[leader if role == "leader" else leader % 3 + 1]
        append, failed = Segment.append, []

        def refusing(segment, *rest):
            if segment.path().startswith(full.data_dir):
                raise OSError(errno.ENOSPC, "No space left on device")
            return append(segment, *rest)

        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "enable.idempotence": True})
        for number in range(1000):
            producer.produce("orders", str(number), on_delivery=lambda error, _message: error and failed.append(error))
            if number == 500:
                producer.flush(PATIENCE_S)
                monkeypatch.setattr(Segment, "append", refusing)
        until("its end", full.node.failed.done)
        full.stop()  # as `kbroker start` does
        assert producer.flush(PATIENCE_S) == 0
        assert not failed
        assert leader_of(cluster, "orders") != full.node_id
        monkeypatch.undo()
        full.start()
        until("all in sync", lambda: len(full.node.member.state.partition("orders", 0).isr) == 3)
        assert consumed({"bootstrap.servers": cluster.bootstrap_servers}, "orders", 1000) == list(range(1000))
