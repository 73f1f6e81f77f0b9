"""The `repr` of the objects that a test uses: it is short, and shows the content."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
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


def test_numbers_that_are_none_are_told_by_name() -> None:
    with Broker() as broker:
        fault, orders = broker.faults.drop("Produce"), broker.topics.create("orders")
        looks: tuple[tuple[Callable[[Any], object], str], ...] = (
            (
                lambda wrong: broker.topics.create("other", partitions=wrong),
                "partitions must be a whole number, not '3'",
            ),
            (
                lambda wrong: broker.topics.create("other", replication_factor=wrong),
                "replication_factor must be a whole number, not '3'",
            ),
            (lambda wrong: orders.records(start=wrong), "start must be a whole number, not '3'"),
            (lambda wrong: orders.records(count=wrong), "count must be a whole number, not '3'"),
            (lambda _: orders.records(count=-1), "count is at least 0, not -1"),
            (lambda wrong: orders.produce("v", partition=wrong), "partition must be a whole number, not '3'"),
            (lambda _: orders.produce("v", timestamp=-5), "timestamp is at least -1, not -5"),
            (lambda wrong: broker.clock.advance(hours=wrong), "hours must be a number, not '3'"),
            (lambda _: broker.clock.advance(hours=math.nan), "hours must be a finite number, not nan"),
            (broker.clock.set, "the time must be a number, not '3'"),
            (fault.wait, "hits must be a whole number, not '3'"),
            (broker.restore, "restore takes the result of snapshot(), not '3'"),
        )
        for look, said in looks:
            with pytest.raises((TypeError, ValueError)) as told:
                look("3")
            assert str(told.value) == said
        with pytest.raises(TypeError, match="the name of a topic must be a str, not 5"):
            broker.topics.create(5)  # type: ignore[arg-type]


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
