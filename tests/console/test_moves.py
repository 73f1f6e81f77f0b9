"""Partition moves in a cluster of four brokers, and what is shown when one broker is gone."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from kbroker import Cluster
from kbroker.console.server import ConsoleServer
from tests.console.browser import Browser
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


@pytest.mark.long
def test_a_partition_is_moved(web):
    preview = web.page("/cluster/move?topic=moves&partition=0&to=3,1").words
    assert "Replicas then 3, 1" in preview
    assert "no live broker has id 9" in web.page("/cluster/move?topic=moves&partition=0&to=9").words
    assert "moves-0 is being moved." in web.do("move", topic="moves", partition="0", to="3,1").words
    assert "NO_REASSIGNMENT_IN_PROGRESS" in web.refused("move-cancel", topic="moves", partition="2")


def settled(web):
    """Wait until no partition moves."""
    deadline = time.monotonic() + 30
    while "Moving" in web.page("/cluster").words:
        assert time.monotonic() < deadline, "it moves still"


def test_first_replicas_lead_again(web):
    settled(web)
    assert "another leader" in web.do("elect-all").words


def test_a_broker_is_drained(web):
    settled(web)
    plan = web.page("/cluster/drain?broker=2").words
    assert "The plan" in plan
    assert "type 2 to confirm" in web.refused("drain", broker="2", confirm="3")
    assert "are being moved" in web.do("drain", broker="2", confirm="2").words


@pytest.fixture
def page(four: tuple[Cluster, ConsoleServer], window: Browser) -> Browser:
    window.size(1280)
    return Browser(window.driver, four[1].url)


@pytest.mark.browser
def test_a_partition_is_moved_in_a_browser(web, page):
    settled(web)
    page.go("/topics/moves")
    page.click("a[href*='/cluster/move'][href*='partition=1']")
    page.fill("[name=to]", "4,3")
    page.click("form[action='/cluster/move'] [type=submit]")
    page.says("What would change")
    page.click("form[action='/do/move'] [type=submit]")
    page.says("moves-1 is being moved.")
    settled(web)
    assert "4, 3" in web.page("/cluster/move?topic=moves&partition=1").words


@pytest.mark.browser
def test_a_move_is_cancelled_in_a_browser(four, web, page):
    """A move that would never end: its replicas are copied at one byte per second."""
    cluster, _ = four
    web.do("topic-create", name="slow", partitions="1", replicas="1")
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 0, "batch.size": 1})
    for _ in range(500):  # more than the one fetch that is never throttled
        producer.produce("slow", b"x" * 10_000)
    assert producer.flush(20) == 0
    producer.close()
    for side in ("leader", "follower"):
        web.do("topic-config", topic="slow", key=f"{side}.replication.throttled.replicas", value="*")
        web.do("config", kind="broker", everyone="1", key=f"{side}.replication.throttled.rate", value="1")
    before = replicas(web, "slow")
    other = "1" if before != "1" else "2"
    page.go(f"/cluster/move?topic=slow&partition=0&to={other}")
    page.click("form[action='/do/move'] [type=submit]")
    page.says("slow-0 is being moved.")
    page.click("form[action='/do/move-cancel'] [type=submit]")
    page.says("slow-0 goes back to its replicas from before.")
    for side in ("leader", "follower"):
        web.do("config", kind="broker", everyone="1", key=f"{side}.replication.throttled.rate", unset="1")
    settled(web)
    assert replicas(web, "slow") == before


def replicas(web, topic):
    found = re.search(r"Replicas now ([0-9, ]+) \(", web.page(f"/cluster/move?topic={topic}&partition=0").words)
    assert found is not None
    return found[1]


@pytest.mark.browser
def test_leaders_are_elected_in_a_browser(four, web, page):
    """The first replica returns and leads again; then a replica leads that lacks records of the other one."""
    cluster, _ = four
    web.do("topic-create", name="led", partitions="1", replicas="2")
    first, second = (int(each) for each in replicas(web, "led").split(", "))
    cluster.brokers[first].kill()
    until(web, lambda words: f"Leader now {second} " in words)
    cluster.brokers[first].start()
    until(web, lambda words: f"in sync: {second}, {first}" in words or f"in sync: {first}, {second}" in words)
    page.go("/topics/led")
    page.click("[data-dialog=elect]")
    page.click("#elect [type=submit]")
    until(web, lambda words: f"Leader now {first} " in words)
    cluster.brokers[second].kill()
    until(web, lambda words: f"(in sync: {first})" in words)
    cluster.brokers[first].kill()
    until(web, lambda words: "Leader now none" in words)
    cluster.brokers[second].start()
    until(web, lambda words: re.search(rf"Live brokers [0-9, ]*\b{second}\b", words))
    refusal, deadline = "", time.monotonic() + 60
    while f"Leader now {second} " not in web.get("/cluster/move?topic=led&partition=0").words:
        assert time.monotonic() < deadline, f"the controller never hears of the broker that came back: {refusal}"
        refusal = asked_to_elect(page) or refusal
    cluster.brokers[first].start()
    until(web, lambda words: "Live brokers 1, 2, 3, 4" in words)


def asked_to_elect(page):
    """Request an unclean election; return why it fails: the controller may not know yet that a broker returned."""
    page.go("/topics/led")
    if not page.all("[data-dialog=unclean]"):
        return "the page knows a leader, or no topic: a broker told it that has not heard yet"
    page.click("[data-dialog=unclean]")
    page.fill("#unclean [name=confirm]", "led")
    page.click("#unclean [type=submit]")
    page.until(lambda: not page.all("#unclean[open]") or page.text("#unclean .refused"))
    return page.text("#unclean .refused")


def until(web, holds):
    """Wait until the page of a move shows something about the topic `led`."""
    words, deadline = "", time.monotonic() + 60
    while not holds(words):
        assert time.monotonic() < deadline, words
        words = web.get("/cluster/move?topic=led&partition=0").words


@pytest.mark.browser
def test_a_broker_is_drained_in_a_browser(web, page):
    settled(web)
    deadline = time.monotonic() + 60
    while "Begin with" not in web.get("/cluster/drain?broker=1").words:
        assert time.monotonic() < deadline, "a broker that was started again has not come back"
    page.go("/cluster")
    page.click("a[href*='/cluster/drain'][href*='broker=1']")
    page.says("The plan")
    page.fill("[name=confirm]", "1")
    page.click("form[action='/do/drain'] [type=submit]")
    page.says("being moved")
    settled(web)


@pytest.mark.long
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
    words = web.page("/cluster").words
    assert "more replicas than there are brokers left" in words, "four replicas, three brokers"
    assert "Move them to others" not in words
    cluster.brokers[2].start()
