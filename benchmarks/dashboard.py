"""The queries of dashboards, sent to a Prometheus that scrapes three kbroker nodes under load.

Starts `kbroker cluster up -n 3 --metrics` and a `prometheus` (a program on the PATH, which Debian packages), writes and
reads through confluent-kafka, and sends Prometheus the queries of the panels in Grafana dashboards (JSON). It prints
what each query found; if a query found nothing, it prints which of its metrics do not exist. Then the load ends, and
the values in Prometheus are compared with the clients' own counts; a difference is an error.

The dashboards' variables match everything; the labels that they require (of Kubernetes, of Strimzi) are added to the
targets, as a scrape configuration does there.

    python -m benchmarks.dashboard DASHBOARD.json ... [--seconds 20]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, Self

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from compat_tests.harness.brokers import free_port

RESULTS = Path(__file__).parent / "results"
PATIENCE_S = 180.0
MOST_CONSUMED: Final = 100_000
TOPICS = ("orders", "payments", "visits")
LABELS = {
    "namespace": "kafka",
    "strimzi_io_cluster": "kbroker",
    "strimzi_io_name": "kbroker-kafka",
    "container": "kafka",
}
_KNOWN = {"$kubernetes_namespace": "kafka", "$strimzi_cluster_name": "kbroker"}
_ELSEWHERE = re.compile(r"\b(container|kubelet|jvm)_\w+")


class Load:
    """A producer and a lagging group, both of which count their records."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.acknowledged = dict.fromkeys(TOPICS, 0)
        self.consumed = 0
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=each) for each in (self._write, self._read)]

    def start(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        for future in admin.create_topics([NewTopic(topic, 3, 3) for topic in TOPICS]).values():
            future.result(PATIENCE_S)
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def _write(self) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 5, "acks": "all"})

        def delivered(error: Any, message: Any) -> None:
            assert error is None, error
            self.acknowledged[message.topic()] += 1

        while not self._ended.is_set():
            for topic in TOPICS:
                for _ in range(100):
                    producer.produce(topic, os.urandom(200), on_delivery=delivered)
            producer.poll(0.05)
        assert producer.flush(PATIENCE_S) == 0

    def _read(self) -> None:
        """Read one topic, and commit only after some of it: the rest is the lag."""
        settings = {"group.id": "billing", "auto.offset.reset": "earliest", "enable.auto.commit": False}
        consumer = Consumer({"bootstrap.servers": self.bootstrap, **settings})
        consumer.subscribe([TOPICS[0]])
        while not self._ended.is_set():
            found = consumer.consume(500, 0.2)
            if found:
                self.consumed += len(found)
                consumer.commit(asynchronous=False)
            if self.consumed >= MOST_CONSUMED:
                consumer.pause(consumer.assignment())
        consumer.close()


@contextmanager
def cluster(directory: Path) -> Iterator[dict[str, Any]]:
    """Run `kbroker cluster up`; yields the facts that it prints about itself."""
    ready = directory / "ready.json"
    command = [sys.executable, "-m", "kbroker", "cluster", "up", "-n", "3", "--listen", "127.0.0.1:0"]
    command += ["--metrics", "127.0.0.1:0", "--data-dir", str(directory / "cluster"), "--ready-file", str(ready)]
    with open(directory / "up.log", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not ready.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit((directory / "up.log").read_text())
            time.sleep(0.1)
        yield json.loads(ready.read_text())
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE_S)


class Prometheus:
    """A Prometheus that scrapes brokers every second."""

    def __init__(self, directory: Path, targets: list[str]) -> None:
        self._url = f"127.0.0.1:{free_port()}"
        told = [
            {"targets": [target], "labels": {**LABELS, "kubernetes_pod_name": f"kbroker-kafka-{number}"}}
            for number, target in enumerate(targets)
        ]
        config = {
            "global": {"scrape_interval": "1s"},
            "scrape_configs": [{"job_name": "kafka", "static_configs": told}],
        }
        file = directory / "prometheus.yml"
        file.write_text(json.dumps(config))  # which is YAML, too
        self._command = ["prometheus", f"--config.file={file}", f"--web.listen-address={self._url}"]
        self._command += [f"--storage.tsdb.path={directory / 'tsdb'}", "--log.level=error"]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE_S)

    def ask(self, query: str) -> list[float]:
        """Return the values that a query finds now."""
        asked = urllib.parse.urlencode({"query": query})
        with urllib.request.urlopen(f"http://{self._url}/api/v1/query?{asked}", timeout=30) as answer:
            found = json.load(answer)["data"]["result"]
        return [float(each["value"][1]) for each in found]

    def wait_for(self, query: str, values: list[float]) -> list[float]:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                found = self.ask(query)
                if found == values or time.monotonic() > deadline:
                    return found
            except OSError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.5)


def panels(path: Path) -> list[tuple[str, str]]:
    """Return the titles and queries of a dashboard, each query once."""

    def walk(several: list[Any]) -> Iterator[tuple[str, str]]:
        for panel in several:
            for target in panel.get("targets", []):
                if target.get("expr"):
                    yield panel["title"], " ".join(target["expr"].split())
            yield from walk(panel.get("panels", []))

    found: dict[str, str] = {}
    for title, query in walk(json.loads(path.read_text())["panels"]):
        found.setdefault(query, title)
    return [(title, query) for query, title in found.items()]


def filled_in(query: str) -> str:
    for name, value in _KNOWN.items():
        query = query.replace(name, value)
    query = re.sub(r"\$\{?(__rate_interval|__interval|interval)\}?", "1m", query)
    return re.sub(r"\$\{?\w+\}?", ".+", query)


def answers(prometheus: Prometheus, dashboard: Path) -> list[str]:
    lines = [f"## {dashboard.stem}", "", "| panel | query | found |", "|---|---|---|"]
    answered = others = asked = 0
    for title, query in panels(dashboard):
        asked += 1
        found = prometheus.ask(filled_in(query))
        if found:
            answered += 1
            some = ", ".join(f"{each:,.4g}" for each in found[:4])
            text = f"{len(found)}: {some}{' ...' if len(found) > 4 else ''}"
        else:
            elsewhere = _ELSEWHERE.search(query)
            others += bool(elsewhere)
            text = f"nothing: `{elsewhere.group()}` is not a broker's" if elsewhere else "**nothing**"
        escaped = query.replace("|", "\\|")
        lines.append(f"| {title} | `{escaped}` | {text} |")
    left = asked - answered - others
    lines += ["", f"{asked} queries: {answered} answered, {others} of containers or a JVM, {left} not"]
    return [*lines, ""]


def compared(prometheus: Prometheus, sums: list[tuple[str, str, float]]) -> list[str]:
    lines = ["## What clients counted", "", "| | query | clients | Prometheus |", "|---|---|---|---|"]
    for what, query, counted in sums:
        found = prometheus.wait_for(query, [counted])
        lines.append(f"| {what} | `{query}` | {counted:,.0f} | {', '.join(f'{each:,.0f}' for each in found)} |")
        if found != [counted]:
            raise SystemExit("\n".join([*lines, f"{what}: they differ"]))
    return [*lines, ""]


def expected(load: Load) -> list[tuple[str, str, float]]:
    """Return the name, the query and the clients' own count of each compared value."""
    consumer = Consumer({"bootstrap.servers": load.bootstrap, "group.id": "billing"})
    places = [TopicPartition(TOPICS[0], index) for index in range(3)]
    committed = sum(max(each.offset, 0) for each in consumer.committed(places, timeout=30))
    consumer.close()
    written = "kafka_server_brokertopicmetrics_messagesin_total"
    every = "|".join(TOPICS)
    lag = load.acknowledged[TOPICS[0]] - committed
    return [
        *((f"records of {t}", f'sum({written}{{topic="{t}"}})', float(load.acknowledged[t])) for t in TOPICS),
        ("all records of them", f'sum({written}{{topic=~"{every}"}})', float(sum(load.acknowledged.values()))),
        ("consumed and committed", 'sum(kbroker_group_offset{group="billing"})', float(load.consumed)),
        ("lag of the group", 'sum(kbroker_group_lag{group="billing"})', float(lag)),
        ("replicas in sync", 'sum(kafka_cluster_partition_insyncreplicascount{topic="orders"})', 9.0),
        ("controllers", "sum(kafka_controller_kafkacontroller_activecontrollercount)", 1.0),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dashboards", nargs="+", type=Path)
    parser.add_argument("--seconds", type=float, default=20.0)
    args = parser.parse_args()
    if shutil.which("prometheus") is None:
        raise SystemExit("there is no program `prometheus` on the PATH")
    version = subprocess.run(["prometheus", "--version"], capture_output=True, text=True, check=True).stdout.split()[2]
    with ExitStack() as ends:
        directory = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="dashboard-")))
        told = ends.enter_context(cluster(directory))
        prometheus = ends.enter_context(Prometheus(directory, [each["metrics"] for each in told["brokers"]]))
        load = Load(told["bootstrap_servers"])
        load.start()
        try:
            prometheus.wait_for("count(up == 1)", [3.0])
            time.sleep(args.seconds)
            lines = [line for each in args.dashboards for line in answers(prometheus, each)]
        finally:
            load.stop()
        lines += compared(prometheus, expected(load))
    stamp = time.strftime("%Y-%m-%d-%H%M", time.gmtime())
    head = [
        f"# Dashboards' queries, {stamp} UTC",
        "",
        f"- command: `python -m benchmarks.dashboard {' '.join(each.name for each in args.dashboards)}`; three nodes of"
        f" kbroker on a ZooKeeper under load, Prometheus {version}",
        f"- machine: {os.cpu_count()} cores, {platform.machine()}, Linux {platform.release()}; "
        f"Python {platform.python_version()}",
        "",
    ]
    print("\n".join([*head, *lines]))
    (RESULTS / f"{stamp}-dashboard.md").write_text("\n".join([*head, *lines]))


if __name__ == "__main__":
    main()
