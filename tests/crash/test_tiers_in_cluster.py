"""Fail-overs of three brokers under topics with remote storage: nothing acknowledged is lost, nothing stays behind.

A producer writes numbered records to one topic that keeps all of them, and to one that keeps few. Meanwhile brokers
stop, end, lose their sessions or their disks: in one process with a tree in memory, and as processes on a ZooKeeper. At
the end every acknowledged record is read
from the beginning, in order, at each replica as the leader; then the topics are deleted, and the store is empty.
"""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from compat_tests.harness.clusters import KBrokerCluster
from compat_tests.harness.zookeeper import ZooKeeper
from compat_tests.wire.client import WireClient
from kbroker.embed_cluster import Cluster
from kbroker.failpoints import VARIABLE
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.logs import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tests.crash.test_tiers import FAILPOINTS, KEPT, SHORT, check_store, objects, settings
from tests.figures import figure
from tests.tries import FORM

PATIENCE_S = 90.0
FAULTS = 60 if FORM == "long" else 5
KILLS = 20
"""The number of kills at moments, and of kills at failpoints."""
SESSION_S = 2.0
TIERED = {"remote.storage.enable": "true", "internal.segment.bytes": "100000", "local.retention.bytes": "200000"}
"""An empty follower begins at the leader's first local record.

The leader must keep this record until the follower's next fetch, on a busy machine, too. With small segments it does
not: 200 kB are written in a second.
"""
PARTITIONS = 52
"""The partitions of both topics and of `__remote_log_metadata`."""
EARLIEST, EARLIEST_LOCAL, LATEST = -2, -4, -1
SAFE = {
    "min.insync.replicas": "2",
    "replica.lag.time.max.ms": "3000",
    "replica.fetch.backoff.ms": "100",
    "controlled.shutdown.retry.backoff.ms": "100",
}


def value_of(number: int) -> bytes:
    """Return the value of a numbered record."""
    rng = random.Random(number)
    return rng.randbytes(rng.randrange(1000))


class Load:
    """Produces numbered records to both topics until `end`."""

    def __init__(self, bootstrap: str) -> None:
        self.count = 0
        self.acked: list[int] = []
        self.failed: list[str] = []
        self._over = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "batch.size": 9_000,
                "linger.ms": 5,
                "message.timeout.ms": 300_000,
                "log_level": 0,
            }
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.is_set():
            for _ in range(20 if len(self._producer) < 5_000 else 0):
                self.count += 1
                value = value_of(self.count)
                for topic in (KEPT, SHORT):
                    self._producer.produce(topic, value, b"%d" % self.count, on_delivery=self._delivered)
            self._producer.poll(0.05)

    def _delivered(self, error: Any, message: Any) -> None:
        if error:
            self.failed.append(str(error))
        elif message.topic() == KEPT:
            self.acked.append(int(message.key()))

    def end(self) -> None:
        """Stop, and wait until all records are acknowledged."""
        self._over.set()
        self._thread.join(PATIENCE_S)
        assert self._producer.flush(PATIENCE_S) == 0
        assert not self.failed, self.failed[:3]
        assert sorted(self.acked) == list(range(1, self.count + 1))


def until(holds: Callable[[], Any], what: str, why: Callable[[], object] = lambda: "") -> Any:
    """Wait for a condition. `why` returns the reason why it does not hold."""
    end = time.monotonic() + PATIENCE_S
    while not (found := holds()):
        assert time.monotonic() < end, f"{what}: {why()}"
        time.sleep(0.05)
    return found


def offset(bootstrap: str, topic: str, which: int) -> int:
    """Return an offset of the topic's leader; -1 if it is not known now."""
    wanted = ListOffsetsTopic(topic, [ListOffsetsPartition(0, -1, which)])
    for address in bootstrap.split(","):
        try:
            client = WireClient(address)
        except OSError:
            continue
        answer = client.ask(ListOffsetsRequest(-1, 0, [wanted], timeout_ms=5000), 8).topics[0].partitions[0]
        client.close()
        if answer.error_code == ErrorCode.NONE:
            return int(answer.offset)
    return -1


def read_all(bootstrap: str, topic: str, begin: int, end: int) -> list[tuple[int, int]]:
    """Return (offset, number) of the records in a range, and compare their values."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "a", "auto.offset.reset": "error", "log_level": 0})
    consumer.assign([TopicPartition(topic, 0, begin)])
    found: list[tuple[int, int]] = []
    stop = time.monotonic() + PATIENCE_S
    while not (found and found[-1][0] == end - 1) and time.monotonic() < stop:
        for message in consumer.consume(1000, 0.2):
            error = message.error()
            assert error is None or error.retriable(), error
            if error is None:
                number = int(message.key() or b"-1")
                assert message.value() == value_of(number)
                found.append((message.offset(), number))
    consumer.close()
    return found


def create(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    topics = [
        NewTopic(KEPT, 1, 3, config=TIERED),
        NewTopic(SHORT, 1, 3, config={**TIERED, "retention.bytes": "500000"}),
    ]
    for each in admin.create_topics(topics).values():
        each.result(PATIENCE_S)


def judge(bootstrap: str, load: Load) -> None:
    """Read both topics through the present leaders."""
    end = load.count
    until(lambda: offset(bootstrap, KEPT, LATEST) == end, "the leader knows the end")
    assert offset(bootstrap, KEPT, EARLIEST) == 0
    assert read_all(bootstrap, KEPT, 0, end) == [(each, each + 1) for each in range(end)]
    begin = offset(bootstrap, SHORT, EARLIEST)
    found = read_all(bootstrap, SHORT, begin, end)
    assert found == [(each, each + 1) for each in range(begin, end)]


def settled(bootstrap: str, load: Load) -> None:
    """Wait until both tiers have their parts."""
    until(lambda: offset(bootstrap, SHORT, EARLIEST) > 0, "retention deletes remote records")
    until(lambda: offset(bootstrap, KEPT, EARLIEST_LOCAL) >= load.count * 2 // 3, "segments leave the disks")


def delete_all(bootstrap: str, left: Callable[[], list[str]]) -> None:
    """Delete the topics, and wait until no segment is left in the store."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for each in admin.delete_topics([KEPT, SHORT]).values():
        each.result(PATIENCE_S)
    until(lambda: not left(), f"the store is empty, and has {left()[:3]}")


def test_nothing_is_lost_over_fail_overs(tmp_path: Path) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}, {FAULTS} faults")
    rng = random.Random(seed)
    store = tmp_path / "store"
    store.mkdir()
    counts: Counter[str] = Counter()
    more = {**SAFE, "follower.fetch.last.tiered.offset.enable": rng.choice(("true", "false"))}
    with Cluster(3, {**settings(store), **more}, data_dir=tmp_path / "data") as cluster:
        create(cluster.bootstrap_servers)
        load = Load(cluster.bootstrap_servers)

        def led() -> list[Any]:
            return [part for each in cluster.brokers.values() for part in each.node.replicas if part.leading]

        def is_safe() -> bool:
            """Whether no disk has the only copy of an acknowledged record."""
            return len(led()) >= PARTITIONS and not behind()

        def behind() -> list[tuple[object, ...]]:
            return [(*each.key, each.isr, each.log.log_end_offset) for each in led() if len(each.isr) != 3]

        def is_same() -> bool:
            logs = [each.node.replicas.get((name, 0)) for each in cluster.brokers.values() for name in (KEPT, SHORT)]
            return is_safe() and {each.log.high_watermark for each in logs if each is not None} == {load.count}

        for _ in range(FAULTS):
            time.sleep(rng.uniform(0.3, 1.0))
            how = rng.choice(("kill", "stop", "expire_session", "lose disk", "lose disk"))
            if how == "lose disk":
                until(is_safe, f"all replicas of {PARTITIONS} leaders are in sync", lambda: (len(led()), behind()))
            broker = rng.choice(list(cluster.brokers.values()))
            counts[how] += 1
            (broker.kill if how == "lose disk" else getattr(broker, how))()
            if how == "lose disk":
                shutil.rmtree(broker.data_dir)
            if how != "expire_session":
                time.sleep(rng.uniform(0.1, 1.0))
                broker.start()
        load.end()
        settled(cluster.bootstrap_servers, load)
        for number in (1, 2, 3):  # each replica as the leader
            until(is_same, "all replicas have all records", behind)
            others = [each for each in cluster.brokers.values() if each.node_id != number]
            for each in others:
                each.stop()
            judge(cluster.bootstrap_servers, load)
            for each in others:
                each.start()
        until(is_same, "all replicas have all records", behind)
        in_store = len(objects(store))
        for broker in cluster.brokers.values():
            check_store(Path(broker.data_dir), store)
        delete_all(cluster.bootstrap_servers, lambda: objects(store))
    figure(f"{FAULTS} fail-overs under remote storage", f"{load.count} records, {in_store} objects, {dict(counts)}")


def kill_at(cluster: KBrokerCluster, armed: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Kill the leader of a topic, and let the next leader end at a failpoint; return whether it ended there."""
    leader = cluster.wait_for_leader(KEPT, 0)
    others = cluster.others(leader)
    monkeypatch.setenv(VARIABLE, armed)
    for each in others:
        cluster.stop(each)
        cluster.start(each)
    monkeypatch.delenv(VARIABLE)
    cluster.wait_until_in_sync()
    cluster.kill(leader)
    end = time.monotonic() + PATIENCE_S
    while None not in (pids := [cluster.pid(each) for each in others]) and time.monotonic() < end:
        time.sleep(0.05)
    for each in cluster.serving:
        cluster.kill(each)
    cluster.mend()
    return None in pids


@pytest.mark.java
@pytest.mark.long
@pytest.mark.skipif(FORM != "long", reason="takes half a minute for its first kill: only in make torture")
def test_nothing_is_lost_over_kills_of_processes(
    kafka39_libs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}, {KILLS} kills")
    rng = random.Random(seed)
    store = tmp_path / "store"
    store.mkdir()
    counts: Counter[str] = Counter()
    more = {**settings(store), **SAFE, "zookeeper.session.timeout.ms": str(int(SESSION_S * 1000))}
    with (
        ZooKeeper(kafka39_libs, tmp_path / "zookeeper") as zookeeper,
        KBrokerCluster(tmp_path, zookeeper, settings=more) as cluster,
    ):
        cluster.wait_until_in_sync()
        create(cluster.bootstrap)
        load = Load(cluster.bootstrap)
        for _ in range(KILLS):
            time.sleep(rng.uniform(0.3, 1.5))
            killed = cluster.wait_for_leader(KEPT, 0) if rng.random() < 0.6 else rng.choice(cluster.serving)
            how = rng.choice(("moment", "moment", "disk"))
            if how == "disk":
                cluster.wait_until_in_sync()
            counts[how] += 1
            cluster.kill(killed)
            if how == "disk":
                shutil.rmtree(cluster.data_dir(killed))
            time.sleep(rng.choice((0.0, 0.3, SESSION_S + 1)))
            cluster.start(killed)
        cluster.mend()
        for count in range(KILLS):
            name = FAILPOINTS[count % len(FAILPOINTS)]
            counts[name] += kill_at(cluster, f"{name}:{rng.choice((1, 1, 2, 3))}", monkeypatch)
        load.end()
        settled(cluster.bootstrap, load)
        for _ in range(4):
            cluster.wait_until_in_sync()
            stopped = cluster.wait_for_leader(KEPT, 0)
            cluster.stop(stopped)
            judge(cluster.bootstrap, load)
            cluster.start(stopped)
        cluster.wait_until_in_sync()
        in_store = len(objects(store))
        for each in cluster.node_ids:
            check_store(cluster.data_dir(each), store)
        delete_all(cluster.bootstrap, lambda: objects(store))
        logs = "\n".join(cluster.log_tail(each) for each in cluster.node_ids)
    assert "Traceback" not in logs, logs
    figure(
        f"{sum(counts.values())} kills of processes under remote storage",
        f"{load.count} records, {in_store} objects, {counts}",
    )
