"""A test still uses objects of a stopped broker: they raise an error immediately, and waits end with the broker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from kbroker import Broker, Cluster
from kbroker.testing import assert_requested

GONE = "the broker does not run any more"


def asked_once(servers: str) -> None:
    AdminClient({"bootstrap.servers": servers, "log_level": 0}).list_topics(timeout=10)


def test_before_the_start_it_is_told_how_to_start() -> None:
    with pytest.raises(RuntimeError, match=r"is not running: use it inside `with broker:`, or call broker\.start\(\)"):
        _ = Broker().bootstrap_servers


@pytest.mark.parametrize("make", [Broker, lambda: Cluster(brokers=1)], ids=["broker", "cluster"])
def test_nothing_is_waited_for(make: Callable[[], Any]) -> None:
    with make() as owner:
        requests, fault = owner.requests, owner.faults.drop("Produce")
        asked_once(owner.bootstrap_servers)
        asked = requests.wait_for("Metadata")
        stopping = threading.Timer(0.05, owner.stop)
        stopping.start()
        with pytest.raises(RuntimeError, match=f"{GONE}: <Fault drop Produce hits=0> was met 0 times, not 1 times"):
            fault.wait(timeout=60)
        stopping.join()
    began = time.monotonic()
    for wait in (
        lambda: fault.wait(timeout=60),
        lambda: requests.wait_for("Produce", timeout=60),
        lambda: owner.requests.wait_for("Produce", timeout=60),
        lambda: owner.faults.drop("Produce"),
        lambda: owner.faults.storm(seed=7),
    ):
        with pytest.raises(RuntimeError, match=GONE):
            wait()
    assert list(requests.live(timeout=60)) == []
    assert time.monotonic() - began < 30
    fault.remove()
    owner.faults.clear()
    assert requests.of("Metadata") == asked, "what was recorded can be looked at"


def test_a_wait_that_is_under_way_ends() -> None:
    with Broker() as broker:
        requests = broker.requests
        stopping = threading.Timer(0.05, broker.stop)
        stopping.start()
        with pytest.raises(RuntimeError, match=rf"{GONE}: 0 of 1 Produce; there are <Requests: none>"):
            requests.wait_for("Produce", timeout=60)
        stopping.join()


def test_what_is_looked_at_first_when_all_is_over() -> None:
    with Broker(requests=False) as broker:
        asked_once(broker.bootstrap_servers)
    with pytest.raises(RuntimeError, match=GONE):
        broker.faults.drop("Produce")
    with pytest.raises(AssertionError, match="nothing is known of it"):
        assert_requested(broker.requests, "Metadata")


def test_names_are_told_no_more() -> None:
    with Broker() as broker:
        orders, topics, groups = broker.topics.create("orders"), broker.topics, broker.groups
        assert (repr(topics), repr(groups)) == ("<Topics: orders>", "<Groups: none>")
    looks: tuple[Callable[[], object], ...] = (
        lambda: list(topics),
        lambda: topics["orders"],
        lambda: orders.partitions,
        lambda: orders.configs,
        lambda: broker.groups["billing"].lag("orders"),
        lambda: broker.wait_for(lambda broker: broker.topics["orders"].values()),
    )
    for look in looks:
        with pytest.raises(RuntimeError, match=GONE):
            look()
    assert (repr(topics), repr(groups)) == (f"<Topics: {GONE}>", f"<Groups: {GONE}>")
