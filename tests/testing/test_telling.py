"""What is printed of the objects that a test holds: short, and what they are."""

from __future__ import annotations

import re

from confluent_kafka.admin import AdminClient

import kbroker
from kbroker import Broker, Cluster, testing
from kbroker.testing.requests import Requests


def test_what_is_printed_of_a_broker() -> None:
    assert repr(Requests()) == "<Requests, not recorded yet>"
    with Broker() as broker:
        broker.clock.advance(hours=25)
        ahead = re.fullmatch(
            r"<SteeredClock (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) UTC, 1 day, 1:00:00 ahead>", repr(broker.clock)
        )
        assert ahead is not None
        for number in range(12):
            broker.topics.create(f"topic-{number:02}")
        assert repr(broker.topics) == f"<Topics: {', '.join(f'topic-{n:02}' for n in range(10))} and 2 more>"
        assert repr(broker.requests) == "<Requests: none>"
        client = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        client.list_topics(timeout=10)
        broker.requests.wait_for("Metadata")
        assert re.fullmatch(r"<Requests: \d+ \w+(, \d+ \w+)*>", repr(broker.requests))
        assert re.search(r"[ ,]\d+ Metadata[,>]", repr(broker.requests))


def test_what_is_printed_of_a_cluster() -> None:
    with Cluster(brokers=2) as cluster:
        first = cluster.brokers[1].bootstrap_servers
        cluster.brokers[2].kill()
        assert repr(cluster) == f"<Cluster of <broker 1 {first}>, <broker 2 that does not run>>"
        assert repr(cluster.topics) == "<Topics: none>"
    assert repr(cluster.topics) == "<Topics: no broker of the cluster is running>"


def test_what_is_loaded_later_is_named() -> None:
    assert set(kbroker.__all__) <= set(dir(kbroker))
    assert set(testing.__all__) <= set(dir(testing))
