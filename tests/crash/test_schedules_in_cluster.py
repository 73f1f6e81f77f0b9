"""kill -9 of three broker processes on a ZooKeeper, under a schedule topic: each record fires once, none early.

A producer writes records that are due within some seconds, with acks=all and three replicas, while the leader of a
partition is killed: of the schedule topic or of its target, alone or with another broker. The target's records have the
time at which its own leader appended them, and the schedule topic says when each of them was due: so the judgement
believes nothing that the deliveries tell of themselves.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import Message
from confluent_kafka.admin import AdminClient, NewTopic

from compat_tests.harness.clusters import Cluster, KBrokerCluster
from compat_tests.harness.zookeeper import ZooKeeper
from tests.cluster.test_schedules import Feeding
from tests.figures import figure
from tests.scheduling.load import PARTITIONS, PATIENCE_S, SCHEDULED, SOURCE, TARGET, Scheduling, arrived, judge, records
from tests.tries import FORM

pytestmark = [
    pytest.mark.java,
    pytest.mark.long,
    pytest.mark.skipif(FORM != "long", reason="takes half a minute for its first kill: only in make torture"),
]

KILLS = 40
SESSION_S = 2.0
SETTINGS = {
    "zookeeper.session.timeout.ms": str(int(SESSION_S * 1000)),
    "min.insync.replicas": "2",
    "replica.lag.time.max.ms": "3000",
    "replica.fetch.backoff.ms": "100",
}
SOURCE_PARTITIONS = 2


def create_topics(cluster: Cluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    target = NewTopic(TARGET, PARTITIONS, 3, config={"message.timestamp.type": "LogAppendTime"})
    for topic in (target, NewTopic(SOURCE, SOURCE_PARTITIONS, 3, config=SCHEDULED)):  # the target must exist
        admin.create_topics([topic])[topic.topic].result(PATIENCE_S)
    cluster.wait_until_in_sync()


def kill_some(cluster: Cluster, rng: random.Random, counts: Counter[str]) -> None:
    """Kill the leader of a partition, perhaps with another broker, and start them again."""
    what = rng.choice(("schedules", "schedules", "schedules and another", "target"))
    topic, partitions = (TARGET, PARTITIONS) if what == "target" else (SOURCE, SOURCE_PARTITIONS)
    killed = [cluster.wait_for_leader(topic, rng.randrange(partitions))]
    if what.endswith("another"):
        killed.append(rng.choice(cluster.others(*killed)))
    counts[what] += 1
    for each in killed:
        cluster.kill(each)
    time.sleep(rng.choice((0.0, 0.3, SESSION_S + 1)))  # perhaps others are elected, perhaps it is back before
    for each in rng.sample(killed, len(killed)):
        cluster.start(each)


def judge_times(found: list[Message], scheduled: list[Message]) -> None:
    """Compare the times of appends to the target with what the records of the schedule topic say."""
    due_ms = {}
    for each in scheduled:
        if each.value() is not None:
            headers = dict(each.headers())
            due_ms[each.value()] = each.timestamp()[1] + int(headers["x-deliver-after"])
    for each in found:
        assert int(dict(each.headers())["__schedule.at"]) == due_ms[each.value()]
        assert each.timestamp()[1] >= due_ms[each.value()], "nothing is early"


def test_each_record_fires_once_over_kills_of_processes(kafka39_libs: Path, tmp_path: Path) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}, {KILLS} kills")
    rng = random.Random(seed)
    counts: Counter[str] = Counter()
    began = time.monotonic()
    with (
        ZooKeeper(kafka39_libs, tmp_path / "zookeeper") as zookeeper,
        KBrokerCluster(tmp_path, zookeeper, settings=SETTINGS) as cluster,
    ):
        cluster.wait_until_in_sync()
        create_topics(cluster)
        load = Scheduling(cluster.bootstrap, rng)
        feeding = Feeding(load)
        feeding.start()
        try:
            for _ in range(KILLS):
                time.sleep(rng.uniform(0.3, 1.5))  # the random moment itself
                kill_some(cluster, rng, counts)
        finally:
            feeding.end()
        cluster.mend()
        assert load.producer.flush(PATIENCE_S) == 0
        assert not load.failed
        found = arrived(cluster.bootstrap, len(load.acked - load.replaced))
        scheduled = records(cluster.bootstrap, SOURCE, SOURCE_PARTITIONS)
        fired = judge(found, load)
        judge_times(found, scheduled)
        logs = "\n".join(cluster.log_tail(each) for each in cluster.node_ids)
    assert "Traceback" not in logs, logs
    figure(
        f"{sum(counts.values())} kills of processes under a schedule topic, seed {seed}",
        f"{len(fired)} fired of {load.sent}, {dict(counts)}, {time.monotonic() - began:.0f} s",
    )
