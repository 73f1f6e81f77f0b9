"""Tiered storage in a cluster: fail-overs, followers without the remote records, deletions."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kbroker.embed_cluster import Cluster, ClusterBroker
from kbroker.partition import Partition
from tests.tiers.test_broker import (
    EARLIEST,
    LATEST,
    LOCAL,
    PATIENCE_S,
    TIERED,
    TOPIC,
    alter,
    files,
    offset,
    produce,
    records,
    settings,
    tiered,
    until,
)

COUNT = 700
"""With 300 more records, no timestamp is in the future, so that all segments are old enough for a copy."""
FAST = {"controlled.shutdown.retry.backoff.ms": "100", "replica.fetch.backoff.ms": "100"}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    config = {**settings(tmp_path / "store"), "min.insync.replicas": "2", "replica.lag.time.max.ms": "2000", **FAST}
    with Cluster(3, config, data_dir=tmp_path / "data") as made:
        client = AdminClient({"bootstrap.servers": made.bootstrap_servers})
        client.create_topics([NewTopic(TOPIC, 1, 3, config={**TIERED, "remote.copy.lag.ms": "0"})])[TOPIC].result(
            PATIENCE_S
        )
        yield made


def hosted(broker: ClusterBroker) -> Partition:
    """Return a broker's replica of the topic."""
    found = until(lambda: broker.node.replicas.get((TOPIC, 0)))
    assert isinstance(found, Partition)
    return found


def leader(cluster: Cluster) -> ClusterBroker:
    def found() -> ClusterBroker | None:
        running = [each for each in cluster.brokers.values() if each.is_running]
        return next((each for each in running if hosted(each).leading), None)

    broker = until(found)
    assert isinstance(broker, ClusterBroker)
    return broker


def in_sync(cluster: Cluster, count: int = 3) -> None:
    """Wait until the replicas are in sync, and know the end of the copied records."""
    running = [each for each in cluster.brokers.values() if each.is_running]

    def is_done() -> bool:
        logs = [hosted(each).log for each in running]
        ends = {(log.log_end_offset, log.earliest_offset) for log in logs}
        copied = {log.tier.end_offset for log in logs if log.tier is not None}
        return len(hosted(leader(cluster)).isr) == count and len(ends) == len(copied) == 1

    until(is_done)


def test_all_leaders_read_both_tiers_as_one_log(cluster: Cluster, tmp_path: Path) -> None:
    produce(cluster, 0, COUNT)
    tiered(cluster)
    before = records(cluster, COUNT)
    assert len(before) == COUNT
    for number in range(3):
        in_sync(cluster)
        former = leader(cluster)
        end = COUNT + number * 100
        (former.kill if number % 2 else former.stop)()
        assert leader(cluster) is not former
        assert records(cluster, end)[:COUNT] == before
        produce(cluster, end, 100)
        tiered(cluster)
        assert [each[0] for each in records(cluster, end + 100)] == list(range(end + 100))
        former.start()
    in_sync(cluster)
    local = offset(cluster, LOCAL)
    until(lambda: all(0 < hosted(each).log.log_start_offset <= local for each in cluster.brokers.values()))
    assert files(tmp_path / "store")


def test_a_follower_without_its_disk_continues_behind_the_remote_records(cluster: Cluster) -> None:
    produce(cluster, 0, COUNT, **{"transactional.id": "committed"})
    tiered(cluster)
    in_sync(cluster)
    end = offset(cluster, LATEST)
    before = records(cluster, end)
    follower = next(each for each in cluster.brokers.values() if not hosted(each).leading)
    follower.stop()
    shutil.rmtree(follower.data_dir)
    produce(cluster, end, 100, **{"transactional.id": "aborted"})
    follower.start()
    in_sync(cluster)
    log = hosted(follower).log
    assert 0 == log.earliest_offset < log.log_start_offset
    others = [each for each in cluster.brokers.values() if each is not follower]
    like = next(each for each in others if hosted(each).leading)
    assert log.producers.entries.keys() == hosted(like).log.producers.entries.keys()
    assert log.proven_epochs().entries == hosted(like).log.proven_epochs().entries
    alter(cluster, min_insync_replicas="1")
    for each in others:
        each.kill()
    until(lambda: hosted(follower).leading)
    assert records(cluster, offset(cluster, LATEST), **{"isolation.level": "read_committed"}) == before
    for each in others:
        each.start()


def test_deletions_reach_all_replicas_and_the_store(cluster: Cluster, tmp_path: Path) -> None:
    store = tmp_path / "store"
    produce(cluster, 0, COUNT)
    tiered(cluster)
    in_sync(cluster)
    client = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    (deleted,) = client.delete_records([TopicPartition(TOPIC, 0, 333)]).values()
    assert deleted.result(PATIENCE_S).low_watermark == 333
    assert {hosted(each).log.earliest_offset for each in cluster.brokers.values()} == {333}
    former = leader(cluster)
    former.kill()
    assert leader(cluster) is not former
    assert offset(cluster, EARLIEST) == 333
    assert [each[0] for each in records(cluster, COUNT, 333)] == list(range(333, COUNT))
    former.start()
    client = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    client.delete_topics([TOPIC])[TOPIC].result(PATIENCE_S)
    until(lambda: not files(store))


def test_a_topic_that_leaves_remote_storage_leaves_nothing_there(cluster: Cluster, tmp_path: Path) -> None:
    produce(cluster, 0, COUNT)
    tiered(cluster)
    in_sync(cluster)
    alter(cluster, remote_storage_enable="false", remote_log_delete_on_disable="true", local_retention_bytes="-2")
    until(lambda: not files(tmp_path / "store"))
    until(lambda: all(hosted(each).log.tier is None for each in cluster.brokers.values()))
    start = offset(cluster, EARLIEST)
    assert start == offset(cluster, LOCAL) > 0
    until(lambda: {hosted(each).log.log_start_offset for each in cluster.brokers.values()} == {start})
    assert [each[0] for each in records(cluster, COUNT, start)] == list(range(start, COUNT))
