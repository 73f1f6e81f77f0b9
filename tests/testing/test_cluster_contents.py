"""Topics and groups of a cluster as Python values, whoever leads and coordinates them."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition

from kbroker import Cluster
from kbroker.embed_cluster import ClusterBroker
from kbroker.protocol.errors import ApiError
from kbroker.testing import assert_committed, assert_records
from kbroker.testing.asking_cluster import ClusterAsking

pytestmark = pytest.mark.long
PATIENCE_S = 30.0
FAST = {"replica.fetch.backoff.ms": 100, "controlled.shutdown.retry.backoff.ms": 100}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=3, config=FAST) as made:
        yield made


def consumer(cluster: Cluster, group: str) -> Consumer:
    own = {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False, "log_level": 0}
    return Consumer({"bootstrap.servers": cluster.bootstrap_servers, **own})


def test_topics_are_written_and_read_at_their_leaders(cluster: Cluster) -> None:
    topic = cluster.topics.create("orders", 6, {"min.insync.replicas": 2})
    leaders = {each.leader for each in cluster.brokers[1].node.metadata.state.topics["orders"].partitions}
    assert leaders == {1, 2, 3} == {topic.leader(index) for index in range(6)}
    for index in range(6):
        assert topic.produce(f"v{index}", key="k", partition=index).offset == 0
    assert_records(topic, [("k", f"v{index}") for index in range(6)])
    assert list(cluster.topics) == ["orders"]
    assert (topic.partitions, topic.configs) == (6, {"min.insync.replicas": "2"})
    for each in cluster.brokers.values():
        assert len(each.node.metadata.state.topics["orders"].partitions[0].replicas) == 3
    single = cluster.topics.create("single", replication_factor=1)
    assert len(cluster.brokers[1].node.metadata.state.topics["single"].partitions[0].replicas) == 1
    single.delete()
    assert [list(each.node.metadata.state.topics).count("single") for each in cluster.brokers.values()] == [0, 0, 0]
    topic.delete()


def test_groups_are_asked_at_their_coordinators(cluster: Cluster) -> None:
    topic = cluster.topics.create("read", 3)
    for index in range(3):
        topic.produce("v", partition=index)
    names = [f"group-{number}" for number in range(6)]
    cluster.requests.clear()
    for name in names:
        client = consumer(cluster, name)
        client.subscribe(["read"])
        cluster.wait_for(lambda _, client=client: client.poll(0.1) is not None, PATIENCE_S)
        (member,) = cluster.groups[name].members
        answered = cluster.requests.of("FindCoordinator", group=name)[-1].answer
        assert cluster.groups[name].coordinator == answered.node_id
        assert member.assigned == (("read", 0), ("read", 1), ("read", 2))
        client.commit(offsets=[TopicPartition("read", 0, 1)], asynchronous=False)
        client.close()
        assert_committed(cluster.groups[name], {("read", 0): 1, ("read", 1): None})
        assert (cluster.groups[name].lag(), cluster.groups[name].lag("read")) == (2, 2)
    assert set(names) <= set(cluster.groups)
    assert len(cluster.groups) == len(set(cluster.groups))
    topic.delete()


def test_what_is_not_there_is_told(cluster: Cluster) -> None:
    topic = cluster.topics.create("there")
    group = cluster.groups["nobody"]
    for look, said in (
        (lambda: cluster.topics["their"], "there is no topic 'their'; did you mean 'there'?"),
        (lambda: group.lag("their"), "there is no topic 'their'; did you mean 'there'?"),
    ):
        with pytest.raises(KeyError) as missing:
            look()
        assert str(missing.value) == said
    assert (group.state, group.offsets, group.members) == ("Dead", {}, [])
    with pytest.raises(ApiError, match="UNKNOWN_TOPIC_OR_PARTITION: topic there has 1 partitions, not 7"):
        topic.produce("v", partition=7)
    with pytest.raises(ApiError, match="TOPIC_ALREADY_EXISTS: topic there: "):
        cluster.topics.create("there")
    with pytest.raises(AssertionError, match=r"not within 0\.05 s: there is no topic 'their'"):
        cluster.wait_for(lambda cluster: cluster.topics["their"].values(), timeout=0.05)
    topic.delete()
    with pytest.raises(KeyError, match="there is no topic 'there'"):
        topic.delete()


def test_who_leads_may_be_another_one() -> None:
    with Cluster(brokers=3, config=FAST) as cluster:
        topic = cluster.topics.create("orders", 3, {"min.insync.replicas": 2})
        for number in (1, 2, 3):
            for index in range(3):
                topic.produce(f"before {number}", partition=index)
            cluster.brokers[number].kill()
            for index in range(3):
                topic.produce(f"after {number}", partition=index)
            cluster.brokers[number].start()
            cluster.wait_for(
                lambda cluster, number=number: all(
                    number in each.isr
                    for each in cluster.brokers[number].node.metadata.state.topics["orders"].partitions
                ),
                PATIENCE_S,
            )
        expected = [f"{when} {number}" for number in (1, 2, 3) for when in ("before", "after")]
        for index in range(3):
            assert_records(topic, expected, partition=index, timeout=PATIENCE_S)
        cluster.brokers[1].cut_from_zookeeper()
        cluster.brokers[1].expire_session()
        assert topic.produce("by another", partition=0).offset == 6
        cluster.brokers[1].heal()


def test_a_leader_that_its_followers_have_left_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with Cluster(brokers=3, config=FAST) as cluster:
        topic = cluster.topics.create("orders", 1, {"min.insync.replicas": 2})
        former = cluster.brokers[_leader_at(cluster.brokers[1])]
        others = [each for each in cluster.brokers.values() if each is not former]
        former.cut_from_zookeeper()
        former.expire_session()
        cluster.wait_for(lambda _: all(_leader_at(each) not in (former.node_id, -1) for each in others), PATIENCE_S)
        looks = iter([former.node_id])
        truth = ClusterAsking.leader_of
        monkeypatch.setattr(ClusterAsking, "leader_of", lambda *where: next(looks, None) or truth(*where))
        begun = time.monotonic()
        topic.produce("by another")
        assert time.monotonic() - begun < 5
        assert topic.values() == [b"by another"]
        former.heal()


def _leader_at(broker: ClusterBroker) -> int:
    return broker.node.metadata.state.topics["orders"].partitions[0].leader


def test_a_cluster_that_has_stopped_says_so() -> None:
    with Cluster(brokers=1) as cluster:
        topic, group = cluster.topics.create("orders"), cluster.groups["billing"]
    for ask in (
        topic.records,
        lambda: topic.produce("v"),
        lambda: cluster.topics["orders"],
        lambda: group.state,
        cluster.brokers[1].start,
        cluster.brokers[1].kill,
    ):
        with pytest.raises(RuntimeError, match=r"not running|is running"):
            ask()
