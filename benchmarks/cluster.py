"""Three kbroker nodes and three Apache Kafka 3.9.1 brokers alternate, each cluster on its own ZooKeeper.

A topic with three replicas, min.insync.replicas=2, acks=all, through confluent-kafka on the same machine:

    throughput     how fast 1 kB records of an idempotent producer are acknowledged, and the brokers' CPU for it
    latency        p50 and p99 of the acknowledgement of one record of 100 bytes, one after the other
    fail-over      from kill -9 of a leader to the first acknowledgement (zookeeper.session.timeout.ms = 6000)
    shutdown       the longest pause of a producer during a leader's clean shutdown: the median of five shutdowns,
                   because Apache Kafka's are 0.15 or 1.1 s
    catch-up       until a follower that missed `--gigabytes` is in sync again
    memory         resident, of all three, after that
    partitions     2,000 of them: partitions.py

Prints a table with ratios and saves it under benchmarks/results/; asserts no times.

    python -m benchmarks.cluster [--rounds 3] [--gigabytes 1] [--stage pauses|partitions]
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median

import psutil
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.partitions import many_partitions
from benchmarks.raw import percentile
from compat_tests.harness.clusters import Cluster, JavaCluster, KBrokerCluster
from compat_tests.harness.parts import fetch
from compat_tests.harness.zookeeper import ZooKeeper

RESULTS = Path(__file__).parent / "results"
Figures = dict[str, float]
PATIENCE_S = 120
_STOPS = 5
RECORD = os.urandom(1000)
SETTINGS = {"log.segment.bytes": str(1 << 30), "num.replica.fetchers": "1"}
BETTER_IF_MORE = frozenset({"throughput MB/s"})


def producer(cluster: Cluster, **config: object) -> Producer:
    return Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "acks": "all",
            "enable.idempotence": True,
            "queue.buffering.max.messages": 200_000,
            "queue.buffering.max.kbytes": 200_000,
            "topic.metadata.refresh.interval.ms": 5000,
            "log_level": 0,
            **config,
        }
    )


def create(cluster: Cluster, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    config = {"min.insync.replicas": "2"}
    admin.create_topics([NewTopic(topic, 1, 3, config=config)])[topic].result(PATIENCE_S)
    cluster.wait_for_isr(topic, 0, cluster.node_ids)


def cpu(cluster: Cluster) -> float:
    """Return the CPU seconds of all brokers so far."""
    total = 0.0
    for node_id in cluster.node_ids:
        times = psutil.Process(cluster.pid(node_id)).cpu_times()
        total += times.user + times.system
    return total


def write(cluster: Cluster, topic: str, megabytes: int) -> float:
    """Write the records and return the seconds until all of them were acknowledged."""
    client = producer(cluster, **{"linger.ms": 5, "batch.size": 1_000_000, "compression.type": "none"})
    began = time.perf_counter()
    for _ in range(megabytes * 1000):
        while True:
            try:
                client.produce(topic, RECORD)
                break
            except BufferError:
                client.poll(0.01)
        client.poll(0)
    assert client.flush(PATIENCE_S) == 0
    return time.perf_counter() - began


def throughput(cluster: Cluster) -> Figures:
    create(cluster, "throughput")
    write(cluster, "throughput", 50)
    before = cpu(cluster)
    seconds = write(cluster, "throughput", 300)
    return {"throughput MB/s": 300 / seconds, "CPU s/GB": (cpu(cluster) - before) / 0.3}


def latency(cluster: Cluster, records: int = 3000) -> Figures:
    create(cluster, "latency")
    client = producer(cluster, **{"linger.ms": 0})
    waits: list[float] = []
    for number in range(records + 200):
        began = time.perf_counter()
        client.produce("latency", b"x" * 100)
        assert client.flush(PATIENCE_S) == 0
        if number >= 200:
            waits.append(time.perf_counter() - began)
    return {"latency p50 ms": percentile(waits, 0.5) * 1e3, "latency p99 ms": percentile(waits, 0.99) * 1e3}


class Steady:
    """A producer that writes all the time, and records when each acknowledgement arrived."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self.answers: list[float] = []
        self._topic = topic
        self._client = producer(cluster, **{"linger.ms": 0, "delivery.timeout.ms": 300_000})
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._client.produce(self._topic, b"x" * 100, on_delivery=self._answered)
            self._client.poll(0.002)

    def _answered(self, error: object, _message: object) -> None:
        if error is None:
            self.answers.append(time.perf_counter())

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        self._client.flush(PATIENCE_S)


def pause_of(cluster: Cluster, topic: str, harm: Callable[[int], None], seconds: float) -> float:
    """Return the longest time without an acknowledgement while the topic's leader is killed or stopped."""
    steady = Steady(cluster, topic)
    time.sleep(2)
    leader = cluster.leader_of(topic, 0)
    began = time.perf_counter()
    harm(leader)
    cluster.wait_for_leader(topic, 0, other_than=leader)
    time.sleep(seconds)
    steady.stop()
    around = [each for each in steady.answers if each >= began - 1]
    cluster.mend()
    return max(later - earlier for earlier, later in pairwise(around))


def catch_up(cluster: Cluster, gigabytes: float) -> Figures:
    create(cluster, "catchup")
    away = cluster.others(cluster.leader_of("catchup", 0))[0]
    cluster.stop(away)
    cluster.wait_for_isr("catchup", 0, cluster.others(away))
    write(cluster, "catchup", int(gigabytes * 1000))
    began = time.perf_counter()
    cluster.start(away)
    cluster.wait_for_isr("catchup", 0, cluster.node_ids)
    return {"catch-up s": time.perf_counter() - began}


def pauses(cluster: Cluster) -> Figures:
    create(cluster, "pauses")
    fail_over = pause_of(cluster, "pauses", cluster.kill, 3)
    stops = [1e3 * pause_of(cluster, "pauses", cluster.stop, 3) for _ in range(_STOPS)]
    print("stops: " + ", ".join(f"{each:.0f} ms" for each in stops), flush=True)
    return {"fail-over s": fail_over, "shutdown pause ms": median(stops)}


def measure(cluster: Cluster, gigabytes: float) -> Figures:
    cluster.wait_until_in_sync()
    figures = {**throughput(cluster), **latency(cluster)}
    figures |= pauses(cluster)
    figures |= catch_up(cluster, gigabytes)
    sizes = [psutil.Process(cluster.pid(each)).memory_info().rss for each in cluster.node_ids]
    figures["memory MB"] = sum(sizes) / 1e6
    return figures | many_partitions(cluster)


def stage(work: Callable[[Cluster], Figures]) -> Callable[[Cluster, float], Figures]:
    """Return one stage of the measurement, run alone."""

    def measured(cluster: Cluster, _gigabytes: float) -> Figures:
        cluster.wait_until_in_sync()
        return work(cluster)

    return measured


STAGES = {"pauses": stage(pauses), "partitions": stage(many_partitions)}


def run(name: str, gigabytes: float, work: Callable[[Cluster, float], Figures]) -> Figures:
    libs = fetch("kafka39")
    with tempfile.TemporaryDirectory(prefix="bench-") as text, ZooKeeper(libs, Path(text) / "zookeeper") as zookeeper:
        directory = Path(text)
        made: Cluster = (
            KBrokerCluster(directory, zookeeper, settings=SETTINGS)
            if name == "kbroker"
            else JavaCluster(libs, directory, zookeeper, settings=SETTINGS)
        )
        with made as cluster:
            return work(cluster, gigabytes)


def table(rounds: dict[str, list[Figures]]) -> list[str]:
    lines = ["| figure | kbroker | Apache Kafka 3.9.1 | ratio |", "|---|---|---|---|"]
    for figure in rounds["kbroker"][0]:
        ours, theirs = (median(each[figure] for each in rounds[name]) for name in ("kbroker", "kafka"))
        lines.append(f"| {figure} | {ours:,.2f} | {theirs:,.2f} | {ours / theirs if theirs else 0:.2f}x |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--only", choices=("kbroker", "kafka"))
    parser.add_argument("--stage", choices=tuple(STAGES))
    args = parser.parse_args()
    work = STAGES[args.stage] if args.stage else measure
    rounds: dict[str, list[Figures]] = {name: [] for name in ("kbroker", "kafka") if args.only in (None, name)}
    for _ in range(args.rounds):
        for name, found in rounds.items():
            found.append(run(name, args.gigabytes, work))
            print(f"{name:8}" + ", ".join(f"{k} {v:,.2f}" for k, v in found[-1].items()), flush=True)
    if args.only:
        return
    stamp = time.strftime("%Y-%m-%d-%H%M", time.gmtime())
    lines = [
        f"# Three brokers, {stamp} UTC",
        "",
        f"- command: `python -m benchmarks.cluster --rounds {args.rounds} --gigabytes {args.gigabytes:g}"
        f"{f' --stage {args.stage}' if args.stage else ''}` (medians)",
        f"- machine: {os.cpu_count()} cores, {platform.machine()}, Linux {platform.release()}, ZooKeeper and clients "
        f"on it too; Python {platform.python_version()}",
        "",
        *table(rounds),
        "",
    ]
    print("\n".join(lines))
    (RESULTS / f"{stamp}-cluster.md").write_text("\n".join(lines))


if __name__ == "__main__":
    main()
