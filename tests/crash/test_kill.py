"""kill -9 under load: acknowledged records are there once and in order, and groups continue from their commits.

An idempotent confluent-kafka producer (acks=all) writes through KILLS kills of the broker on one data directory and one
port; a consumer group reads and commits meanwhile. The moments are random; their seed is printed.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections import defaultdict
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from compat_tests.clients.java_tools.tool import run_class
from compat_tests.harness.brokers import KBroker, free_port
from tests.figures import figure
from tests.tries import tries

SEED = 20261121
KILLS = tries(16)
PARTITIONS = 3
TOPIC = "killed"
COMPLAINT = re.compile(r"Mismatch|Non-consecutive|Found timestamp|Exception|invalid|isvalid: false")


class FixedPort(KBroker):
    """A broker that restarts at the same address, so that clients continue by themselves."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.port = free_port()

    def _command(self) -> list[str]:
        command = super()._command()
        command[command.index("127.0.0.1:0")] = f"127.0.0.1:{self.port}"
        return command


class Load(threading.Thread):
    """Produces numbered records until it is stopped; remembers the acknowledged records and their offsets."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self.acknowledged: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self.failed: list[str] = []
        self.stopping = threading.Event()
        self.sent = 0
        self._producer = Producer(
            {
                "bootstrap.servers": address,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 2,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "retry.backoff.ms": 20,
                "log_level": 0,
            }
        )

    def run(self) -> None:
        while not self.stopping.is_set():
            number = self.sent
            try:
                self._producer.produce(
                    TOPIC, str(number).encode(), partition=number % PARTITIONS, on_delivery=self._delivered(number)
                )
                self.sent += 1
            except BufferError:
                self._producer.poll(0.05)
                continue
            self._producer.poll(0)
            if number % 50 == 0:
                self.stopping.wait(0.002)
        left = self._producer.flush(60)
        assert left == 0, f"{left} records were never answered"

    def _delivered(self, number: int):
        def note(error, message) -> None:
            if error is not None:
                self.failed.append(str(error))
            else:
                self.acknowledged[message.partition()].append((message.offset(), number))

        return note

    @property
    def count(self) -> int:
        return sum(len(entries) for entries in self.acknowledged.values())


def consumer(address: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "survivors",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 6000,
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
        }
    )


def wait_for(what: str, happened, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.005)


def read_and_commit(address: str, positions: dict[int, int]) -> None:
    """Read some records in the group, from where it committed, and commit; checks that no position went back."""
    reader = consumer(address)
    try:
        committed = reader.committed([TopicPartition(TOPIC, p) for p in range(PARTITIONS)], timeout=30)
        for entry in committed:
            held = entry.offset if entry.offset >= 0 else 0
            assert held == positions[entry.partition], (entry, positions)
        for partition in range(PARTITIONS):
            reader.assign([TopicPartition(TOPIC, partition, positions[partition])])
            messages = []
            wait_for("records", lambda: messages.extend(reader.consume(300, 0.2)) or len(messages) >= 100)  # noqa: B023
            for message in messages:
                assert message.error() is None, message.error()
                assert (message.partition(), message.offset()) == (partition, positions[partition])
                positions[partition] += 1
        reader.commit(offsets=[TopicPartition(TOPIC, p, o) for p, o in positions.items()], asynchronous=False)
    finally:
        reader.close()


def everything(address: str) -> dict[int, list[tuple[int, int]]]:
    """Read the topic from its start to its end: (offset, number) by partition."""
    reader = consumer(address)
    ends = {p: reader.get_watermark_offsets(TopicPartition(TOPIC, p), timeout=30)[1] for p in range(PARTITIONS)}
    reader.assign([TopicPartition(TOPIC, p, 0) for p in range(PARTITIONS)])
    found: dict[int, list[tuple[int, int]]] = defaultdict(list)

    def complete() -> bool:
        for message in reader.consume(5000, 0.5):
            assert message.error() is None, message.error()
            found[message.partition()].append((message.offset(), int(message.value())))
        return all(found[p] and found[p][-1][0] == ends[p] - 1 for p in range(PARTITIONS))

    wait_for("the end of the topic", complete)
    reader.close()
    return found


@pytest.fixture(scope="module")
def survived(tmp_path_factory: pytest.TempPathFactory):
    """Run the load through all kills; yields (load, positions, the broker running again)."""
    rng = random.Random(SEED)
    print(f"seed {SEED}, {KILLS} kills")
    broker = FixedPort(tmp_path_factory.mktemp("kill")).start()
    try:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(TOPIC, num_partitions=PARTITIONS)])[TOPIC].result(30)
        load = Load(broker.bootstrap)
        load.start()
        positions = dict.fromkeys(range(PARTITIONS), 0)
        for number in range(KILLS):
            seen = load.count
            wait_for("acknowledgements", lambda: load.count > seen + 300)  # noqa: B023
            if number % 4 == 1:
                read_and_commit(broker.bootstrap, positions)
            time.sleep(rng.uniform(0, 0.05))  # the random moment itself
            broker.kill()
            broker.start()
        load.stopping.set()
        load.join(90)
        assert not load.is_alive()
        yield load, positions, broker
    finally:
        broker.stop()


def test_every_acknowledged_record_is_there_once_and_in_order(survived) -> None:
    load, _, broker = survived
    assert load.failed == []
    found = everything(broker.bootstrap)
    figures = f"{load.count:,} records acknowledged, {sum(map(len, found.values())):,} found"
    figure(f"{KILLS} kills under an idempotent producer, seed {SEED}", figures)
    assert load.count == load.sent
    for partition, records in found.items():
        assert [offset for offset, _ in records] == list(range(len(records)))
        assert [n for _, n in records] == list(range(partition, load.sent, PARTITIONS))
        assert sorted(load.acknowledged[partition]) == records


def test_the_group_goes_on_where_it_committed(survived) -> None:
    _, positions, broker = survived
    assert min(positions.values()) > 0
    read_and_commit(broker.bootstrap, positions)


@pytest.mark.java
def test_kafkas_dump_tool_reads_every_file(survived, kafka_libs) -> None:
    _, _, broker = survived
    files = [
        str(path)
        for path in sorted(broker.data_dir.glob("*-*/*"))
        if path.suffix in (".log", ".index", ".timeindex", ".snapshot", ".txnindex") and path.stat().st_size
    ]
    assert any(TOPIC in name for name in files)
    for suffix in (".log", ".index", ".timeindex", ".snapshot", ".txnindex"):
        group = [name for name in files if name.endswith(suffix)]
        if not group:
            continue
        lines = run_class(
            "org.apache.kafka.tools.DumpLogSegments",
            "--deep-iteration",
            "--skip-record-metadata",
            "--files",
            ",".join(group),
        )
        assert lines[0] == "exit 0", lines[-20:]
        assert [line for line in lines if COMPLAINT.search(line)] == []
    print(f"{len(files)} files read")
