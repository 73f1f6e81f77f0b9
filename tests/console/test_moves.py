"""Partitions that move, in a cluster of four brokers, and what is wrong when one is gone."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from kbroker import Cluster
from kbroker.console.server import ConsoleServer
from tests.console.conftest import served
from tests.console.visitor import Visitor


@pytest.fixture(scope="module")
def four() -> Iterator[tuple[Cluster, ConsoleServer]]:
    with Cluster(brokers=4) as cluster, served(cluster.bootstrap_servers) as server:
        visitor = Visitor(server.url)
        visitor.do("topic-create", name="moves", partitions="3", replicas="2")
        yield cluster, server


@pytest.fixture
def web(four: tuple[Cluster, ConsoleServer]) -> Visitor:
    return Visitor(four[1].url)


def test_a_partition_is_moved(web):
    preview = web.page("/cluster/move?topic=moves&partition=0&to=3,1").words
    assert "Replicas then 3, 1" in preview
    assert "no broker with id 9 lives" in web.page("/cluster/move?topic=moves&partition=0&to=9").words
    assert "moves-0 is being moved." in web.do("move", topic="moves", partition="0", to="3,1").words
    assert "NO_REASSIGNMENT_IN_PROGRESS" in web.refused("move-cancel", topic="moves", partition="2")


def settled(web):
    """Wait until nothing moves any more."""
    deadline = time.monotonic() + 30
    while "Moving" in web.page("/cluster").words:
        assert time.monotonic() < deadline, "it moves still"


def test_first_replicas_lead_again(web):
    settled(web)
    assert "another leader" in web.do("elect-all").words


def test_a_broker_is_drained(web):
    settled(web)
    plan = web.page("/cluster/drain?broker=2").words
    assert "Where they would go" in plan
    assert "type 2 to confirm" in web.refused("drain", broker="2", confirm="3")
    assert "are being moved" in web.do("drain", broker="2", confirm="2").words


def test_a_broker_that_is_gone_is_told_first(four):
    cluster, server = four
    web = Visitor(server.url)
    web.do("topic-create", name="everywhere", partitions="1", replicas="4", configs="min.insync.replicas=4")
    cluster.brokers[2].kill()
    words, deadline = "", time.monotonic() + 60
    while "Broker 2 is gone" not in words or "partition below min.insync.replicas" not in words:
        assert time.monotonic() < deadline, words
        words = web.page("/").words
    assert words.index("below min.insync.replicas") < words.index("Broker 2 is gone"), "the worst comes first"
    assert "everywhere" in web.page("/topics?health=under").words
    cluster.brokers[2].start()
