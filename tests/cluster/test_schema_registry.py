"""A cluster's schema registry: every broker answers, the leader of `_schemas` decides, and leaders are killed."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kbroker import Cluster
from kbroker.controller.member.registries import REGISTRIES
from tests.registry_api.beside import Clients, record
from tests.registry_api.conftest import Http
from tests.tries import FORM

PATIENCE_S = 20.0


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(registry=True) as made:
        yield made


def urls(cluster: Cluster) -> list[str]:
    return [each.registry_url for each in cluster.brokers.values()]


def leader(cluster: Cluster) -> int:
    """Return the broker that leads `_schemas`, once all running brokers know it."""
    end = time.monotonic() + PATIENCE_S
    while True:
        known = [
            each.node.member.state.partition("_schemas", 0) for each in cluster.brokers.values() if each.is_running
        ]
        leaders = {None if each is None else each.leader for each in known}
        (first, *others) = leaders
        if not others and first is not None and first > 0 and cluster.brokers[first].is_running:
            return first
        assert time.monotonic() < end, leaders
        time.sleep(0.02)


def until(holds: Callable[[], Any]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def killed(cluster: Cluster, times: int, seed: int) -> None:
    """End the leader repeatedly, mostly by a kill, while clients register through all brokers."""
    chance = random.Random(seed)
    with Clients(urls(cluster), 4) as clients:
        clients.wait_for(20)
        for _ in range(times):
            broker = cluster.brokers[leader(cluster)]
            broker.stop() if chance.random() < 0.2 else broker.kill()
            clients.wait_for(10)
            broker.start()
            clients.wait_for(5)
            until(lambda: len(_in_sync(cluster)) == 3)  # or the next one would be the last that has everything
    leader(cluster)
    clients.judge(urls(cluster))
    # Only the ended broker has failed its clients: all others have waited for the next leader.
    others = [each for each in clients.refused if json.loads(each)["error_code"] not in (50001, 50003, 50004)]
    assert not others


def test_every_broker_answers_with_one_state(cluster: Cluster) -> None:
    all_urls = urls(cluster)
    for number, url in enumerate(all_urls, 1):
        assert Http(url).register(f"a/{number}", record(f"A{number}"))["id"] == number
        for other in all_urls:  # what one broker acknowledges exists on all
            assert Http(other).ok("GET", f"/schemas/ids/{number}")
            assert len(Http(other).ok("GET", "/subjects")) == number
    for url in all_urls:
        assert Http(url).refused("GET", "/subjects/b/versions")[0] == 40401
        other = json.dumps({"type": "record", "name": "B", "fields": []})
        assert Http(url).refused("POST", "/subjects/a%2F1/versions", {"schema": other})[0] == 40901
        assert Http(url).raw("HEAD", "/subjects") == (200, b"")
    assert Http(all_urls[0]).ok("DELETE", "/subjects/a%2F1") == [1]
    assert Http(all_urls[1]).refused("GET", "/subjects/a%2F1/versions")[0] == 40401


@pytest.mark.long
def test_leaders_are_killed(cluster: Cluster) -> None:
    killed(cluster, 4, seed=1)


@pytest.mark.skipif(FORM != "long", reason="a minute of kills: only with KBROKER_TESTS=long")
def test_leaders_are_killed_often(cluster: Cluster) -> None:
    killed(cluster, 50, seed=2)


def test_an_address_is_published_in_each_session(cluster: Cluster) -> None:
    Http(urls(cluster)[0]).register("a", record("A"))
    first = leader(cluster)
    node = cluster.brokers[first].node
    before = cluster.run(node.tree.get(f"{REGISTRIES}/{first}"))
    assert before is not None
    assert json.loads(before.data) == {"version": 1, "url": cluster.brokers[first].registry_url}
    cluster.brokers[first].expire_session()

    def is_published_again() -> bool:
        node = cluster.run(cluster.brokers[first].node.tree.get(f"{REGISTRIES}/{first}"))
        return node is not None and node.stat.owner != before.stat.owner

    until(is_published_again)
    for url in urls(cluster):
        assert Http(url).ok("GET", "/subjects") == ["a"]


def test_a_leader_without_a_registry_is_named() -> None:
    with Cluster(brokers=2, registry=True) as cluster:
        Http(urls(cluster)[0]).register("a", record("A"))
        cluster.brokers[2].stop()
        cluster.has_registry = False
        cluster.brokers[2].start()
        until(lambda: _in_sync(cluster) == {1, 2})
        cluster.has_registry = True
        cluster.brokers[1].stop()
        cluster.brokers[1].start()
        until(lambda: leader(cluster) == 2)
        code, text = Http(cluster.brokers[1].registry_url).refused("GET", "/subjects")
        assert code == 50004
        assert "Broker 2 leads _schemas, and has no schema registry" in text


def _in_sync(cluster: Cluster) -> set[int]:
    """Return the replicas that all running brokers report as in sync."""
    nodes = [each.node for each in cluster.brokers.values() if each.is_running]
    known = [each.member.state.partition("_schemas", 0) for each in nodes]
    return set.intersection(*(set() if each is None else set(each.isr) for each in known))


@pytest.mark.long
def test_without_enough_replicas_nothing_is_acknowledged() -> None:
    """What cannot be replicated is refused in bounded time, and may or may not exist once replication works again."""
    with Cluster(registry=True, config={"min.insync.replicas": 2}) as cluster:
        Http(urls(cluster)[0]).register("a", record("A"))
        first = leader(cluster)
        others = [each for each in cluster.brokers if each != first]
        for each in others:
            cluster.brokers[each].kill()
        began = time.monotonic()
        code, _ = Http(cluster.brokers[first].registry_url).refused(
            "POST", "/subjects/b/versions", {"schema": record("B")}
        )
        assert code in (50001, 50004)
        assert time.monotonic() - began < 15
        assert Http(cluster.brokers[first].registry_url).ok("GET", "/subjects/a/versions") == [1]
        for each in others:
            cluster.brokers[each].start()
        assert Http(cluster.brokers[others[0]].registry_url).register("b", record("B"))["id"] == 2


@pytest.mark.long
def test_a_leader_that_was_cut_off_acknowledges_nothing(cluster: Cluster) -> None:
    """No other replica has what it appends, so it does not show it either."""
    Http(urls(cluster)[0]).register("a", record("A"))
    first = leader(cluster)
    cut, other = cluster.brokers[first], cluster.brokers[first % 3 + 1]
    cut.cut_from_zookeeper()
    cut.expire_session()

    def moved() -> bool:
        known = other.node.member.state.partition("_schemas", 0)
        return known is not None and known.leader not in (first, -1)

    until(moved)
    body = {"schema": record("Z")}
    assert Http(cut.registry_url).refused("POST", "/subjects/z/versions", body)[0] == 50001
    assert Http(cut.registry_url).refused("GET", "/subjects/z/versions")[0] == 50004
    assert Http(other.registry_url).register("b", record("B"))["id"] == 2
    cut.heal()
    until(lambda: Http(cut.registry_url).raw("GET", "/subjects") == (200, b'["a", "b"]'))
    assert Http(cut.registry_url).register("z", record("Z"))["id"] == 3
