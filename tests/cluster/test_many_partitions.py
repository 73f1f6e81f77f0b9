"""Topics of many partitions in a cluster."""

from __future__ import annotations

import os
import threading

from confluent_kafka.admin import AdminClient, NewTopic

from kbroker import Cluster
from tests.cluster.test_cluster_in_process import FAST, PATIENCE_S


def test_the_event_loop_makes_no_directory_of_a_new_partition(monkeypatch):
    makers = set()
    mkdir = os.mkdir

    def made(path, *rest, **kw):
        if "/orders-" in str(path) and not os.path.exists(path):
            makers.add(threading.current_thread().name.rpartition("_")[0])
        return mkdir(path, *rest, **kw)

    with Cluster(brokers=3, config=FAST) as cluster:
        monkeypatch.setattr(os, "mkdir", made)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        admin.create_topics([NewTopic("orders", 50, 3)])["orders"].result(PATIENCE_S)
    assert makers == {"kbroker-make"}
