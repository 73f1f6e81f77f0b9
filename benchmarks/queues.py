"""Share groups: kbroker and Apache Kafka alternate with the same work in one run.

Java's ShareConsumerPerformance with 1 and 8 consumers on 1 and 12 partitions; a ShareFetch with an acknowledgement
beside a plain Fetch; a million records in flight; 10,000 locks that expire together. Prints a table with ratios and
saves it under benchmarks/results/; asserts no times.

    python -m benchmarks.queues [--rounds 3] [--only tool|fetch|memory|locks]
"""

from __future__ import annotations

import argparse
import subprocess
import threading
import time
import uuid
from collections.abc import Callable

from confluent_kafka import Producer

from benchmarks.ratios import Row, Work, alternate, save, table
from benchmarks.subjects import cpu_seconds, memory_mb, running
from benchmarks.work import create
from compat_tests.harness.brokers import BrokerProcess
from compat_tests.harness.parts import fetch
from compat_tests.wire.client import WireClient
from kbroker.protocol.messages.cluster import MetadataRequest, MetadataRequestTopic
from kbroker.protocol.messages.configs import IncrementalAlterConfigsRequest, IncrementalConfig, IncrementalResource
from kbroker.protocol.messages.connections import ApiVersionsRequest
from kbroker.protocol.messages.fetch import FetchPartition as PlainPartition
from kbroker.protocol.messages.fetch import FetchRequest
from kbroker.protocol.messages.fetch import FetchTopic as PlainTopic
from kbroker.protocol.messages.groups import FindCoordinatorRequest
from kbroker.protocol.messages.share_fetch import (
    AcknowledgementBatch,
    FetchPartition,
    FetchTopic,
    ShareFetchRequest,
    ShareFetchResponse,
)
from kbroker.protocol.messages.share_groups import ShareGroupHeartbeatRequest

SETTINGS = {
    "group.share.min.heartbeat.interval.ms": "500",
    "group.share.heartbeat.interval.ms": "500",
    "group.share.min.record.lock.duration.ms": "1000",
    "group.share.max.partition.max.record.locks": "10000",
}
"""By default, a new group waits 5 s for its second heartbeat, a lock lasts 15 s at least, and 4,000 is the most locks.
"""
RECORDS, SIZE, A_REQUEST, REQUESTS = 400_000, 100, 10, 3000
IN_FLIGHT, PARTITIONS, LOCKS = 1_000_000, 100, 10_000
LOCK_MS, WAIT_S = 3000, 60
GROUP_CONFIGS = 32
ACCEPT, RELEASE = 1, 2

ROWS = [
    *(
        row
        for consumers in (1, 8)
        for partitions in (1, 12)
        for row in (
            Row(f"share consumers {consumers}, partitions {partitions}", "records_per_s", "records/s", 1.5, True),
            Row(f"share consumers {consumers}, partitions {partitions}", "cpu_s", "CPU s per 1,000,000", 0.6),
        )
    ),
    Row("Fetch of 10 records", "cpu_us", "CPU us"),
    Row("ShareFetch of 10 records with an acknowledgement", "cpu_us", "CPU us"),
    Row("a million records in flight", "mb", "MB", 60, of_ratio=False),
    Row("a million records in flight, every second one released", "mb", "MB", 60, of_ratio=False),
    Row("10,000 locks end at once", "redelivered_ms", "ms after the deadline", 100, of_ratio=False),
    Row("10,000 locks end at once", "held_ms", "longest wait of others, ms", 50, of_ratio=False),
]


def configure(client: WireClient, group: str, **configs: str) -> None:
    changes = [IncrementalConfig(name.replace("_", "."), 0, value) for name, value in configs.items()]
    answer = client.ask(IncrementalAlterConfigsRequest([IncrementalResource(GROUP_CONFIGS, group, changes)]), 1)
    assert not answer.responses[0].error_code, answer


def fill(address: str, topic: str, records: int, partitions: int, a_batch: int = 500) -> None:
    """Write records in batches of `a_batch`, evenly to all partitions."""
    producer = Producer({"bootstrap.servers": address, "linger.ms": 50, "batch.num.messages": a_batch})
    for number in range(records):
        producer.produce(topic, bytes(SIZE), partition=number // a_batch % partitions)
        if not number % 10_000:
            producer.flush(WAIT_S)
    assert producer.flush(WAIT_S) == 0


class Member:
    """A member of a new group with a topic's partitions, and its share session.

    In a cluster, `address` is the leader's address, `coordinator` that of the group's coordinator.
    """

    def __init__(
        self, address: str, topic: str, partitions: int, group: str = "", coordinator: str = "", **configs: str
    ) -> None:
        self.client = WireClient(address)
        self.group, self.name = group or f"bench-{uuid.uuid4().hex[:8]}", "m" * 22
        configure(self.client, self.group, share_auto_offset_reset="earliest", **configs)
        self.topic_id = self.client.ask(MetadataRequest([MetadataRequestTopic(name=topic)]), 12).topics[0].topic_id
        self.partitions = partitions
        self.epoch = 0
        self._until(lambda: not self.client.ask(FindCoordinatorRequest(key=self.group), 2).error_code)
        self._member_epoch = 0
        with WireClient(coordinator or address) as client:
            self._until(lambda: self._beat(client, topic) == partitions)

    def _until(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not done():
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def _beat(self, client: WireClient, topic: str) -> int:
        request = ShareGroupHeartbeatRequest(self.group, self.name, self._member_epoch, subscribed_topic_names=[topic])
        answer = client.ask(request, 1)
        self._member_epoch = answer.member_epoch or self._member_epoch
        return sum(len(each.partitions) for each in answer.assignment.topic_partitions) if answer.assignment else 0

    def fetch(
        self, *acks: AcknowledgementBatch, partition: int = 0, most: int = A_REQUEST, wait_ms: int = 500
    ) -> ShareFetchResponse:
        """Acknowledge records of a partition, and fetch from all partitions."""
        request = self.request(*acks, partition=partition, most=most, wait_ms=wait_ms)
        answer: ShareFetchResponse = self.client.ask(request, 2)
        assert not answer.error_code, answer.error_code
        self.epoch += 1
        return answer

    def request(self, *acks: AcknowledgementBatch, partition: int, most: int, wait_ms: int) -> ShareFetchRequest:
        """Return the next request of the session."""
        topics = []
        if self.epoch == 0:
            topics = [FetchTopic(self.topic_id, [FetchPartition(index, []) for index in range(self.partitions)])]
        elif acks:
            topics = [FetchTopic(self.topic_id, [FetchPartition(partition, list(acks))])]
        request = ShareFetchRequest(self.group, self.name, self.epoch, max_wait_ms=wait_ms, min_bytes=1, topics=topics)
        request.max_records = request.batch_size = most
        return request


def accepted(answer: ShareFetchResponse) -> list[AcknowledgementBatch]:
    """Return the acknowledgement that accepts all acquired records."""
    return [
        AcknowledgementBatch(run.first_offset, run.last_offset, [ACCEPT])
        for topic in answer.responses
        for partition in topic.partitions
        for run in partition.acquired_records
    ]


def acquired(answer: ShareFetchResponse) -> int:
    return sum(run.last_offset - run.first_offset + 1 for run in accepted(answer))


def tool(broker: BrokerProcess) -> Work:
    """Let Java's tool consume all records of a topic, by 1 and by 8 consumers."""
    found = {}
    for partitions in (1, 12):
        topic = f"tool-{partitions}"
        create(broker.bootstrap, topic, partitions=partitions)
        fill(broker.bootstrap, topic, RECORDS, partitions)
        for consumers in (1, 8):
            group = f"bench-{consumers}-{partitions}-{uuid.uuid4().hex[:8]}"
            with WireClient(broker.bootstrap) as client:
                configure(client, group, share_auto_offset_reset="earliest")
            before = cpu_seconds(broker.pid)
            speed = _run_tool(broker.bootstrap, topic, group, consumers)
            spent = (cpu_seconds(broker.pid) - before) / RECORDS * 1e6
            found[f"share consumers {consumers}, partitions {partitions}"] = {"records_per_s": speed, "cpu_s": spent}
    return found


def _run_tool(address: str, topic: str, group: str, consumers: int) -> float:
    command = ["java", "-Xmx512M", "-XX:+UseSerialGC", "-cp", f"{fetch('kafka')}/*"]
    command += ["org.apache.kafka.tools.ShareConsumerPerformance", "--bootstrap-server", address, "--topic", topic]
    command += ["--group", group, "--num-records", str(RECORDS), "--threads", str(consumers), "--timeout", "30000"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    heading, values = (line.split(", ") for line in done.stdout.splitlines() if ", " in line)
    told = dict(zip((each.strip() for each in heading), values, strict=True))
    assert int(told["data.consumed.in.nMsg"]) >= RECORDS, told
    return float(told["nMsg.sec"])


def fetches(broker: BrokerProcess) -> Work:
    """Fetch 10 records per request, and then the same with an acknowledgement of the previous ones."""
    create(broker.bootstrap, "fetches")
    fill(broker.bootstrap, "fetches", (REQUESTS + 100) * A_REQUEST, 1, A_REQUEST)
    member = Member(broker.bootstrap, "fetches", 1)
    acks = accepted(member.fetch(wait_ms=5000))
    before = 0.0
    for number in range(REQUESTS + 20):
        if number == 20:
            before = cpu_seconds(broker.pid)
        acks = accepted(member.fetch(*acks))
        assert acks
    sharing = (cpu_seconds(broker.pid) - before) / REQUESTS * 1e6
    client = member.client
    before = cpu_seconds(broker.pid)
    for number in range(REQUESTS):
        wanted = PlainPartition(partition=0, fetch_offset=number * A_REQUEST, partition_max_bytes=1)
        request = FetchRequest(max_wait_ms=500, min_bytes=1, topics=[PlainTopic(topic="fetches", partitions=[wanted])])
        assert not client.ask(request, 11).error_code
    plain = (cpu_seconds(broker.pid) - before) / REQUESTS * 1e6
    return {
        "Fetch of 10 records": {"cpu_us": plain},
        "ShareFetch of 10 records with an acknowledgement": {"cpu_us": sharing},
    }


def memory(broker: BrokerProcess) -> Work:
    """Acquire 10,000 records of each of 100 partitions; then accept every second record, and release the others."""
    create(broker.bootstrap, "memory", partitions=PARTITIONS)
    fill(broker.bootstrap, "memory", IN_FLIGHT, PARTITIONS, 100)
    member = Member(
        broker.bootstrap,
        "memory",
        PARTITIONS,
        share_partition_max_record_locks=str(IN_FLIGHT // PARTITIONS),
        share_record_lock_duration_ms="60000",
    )
    before, got = memory_mb(broker.pid), 0
    deadline = time.monotonic() + WAIT_S
    while got < IN_FLIGHT:
        got += acquired(member.fetch(most=IN_FLIGHT))
        assert time.monotonic() < deadline, f"{got} in flight"
    flying = memory_mb(broker.pid) - before
    a_partition = IN_FLIGHT // PARTITIONS
    for index in range(PARTITIONS):
        every_second = AcknowledgementBatch(0, a_partition - 1, [ACCEPT, RELEASE] * (a_partition // 2))
        (topic,) = member.fetch(every_second, partition=index, wait_ms=0).responses
        assert not any(each.acknowledge_error_code for each in topic.partitions), topic
    return {
        "a million records in flight": {"mb": flying},
        "a million records in flight, every second one released": {"mb": memory_mb(broker.pid) - before},
    }


def locks(broker: BrokerProcess) -> Work:
    """Let 10,000 locks of one record each expire while a fetch waits for them and a client sends small requests."""
    create(broker.bootstrap, "locks")
    fill(broker.bootstrap, "locks", LOCKS, 1, 1)
    settings = {"share_record_lock_duration_ms": str(LOCK_MS), "share_partition_max_record_locks": str(LOCKS)}
    member = Member(broker.bootstrap, "locks", 1, **settings)
    got, first = 0, 0.0
    while got < LOCKS:
        got += acquired(member.fetch(most=LOCKS, wait_ms=2000))
        first = first or time.monotonic()
        assert time.monotonic() - first < LOCK_MS / 1000, f"{got} of {LOCKS} in time"
    last, waits, ended = time.monotonic(), [0.0], threading.Event()

    def others() -> None:
        with WireClient(broker.bootstrap) as client:
            while not ended.wait(0.002):
                asked = time.monotonic()
                client.ask(ApiVersionsRequest(), 0)
                waits.append(time.monotonic() - asked)

    watch = threading.Thread(target=others)
    watch.start()
    again = 0
    while again < LOCKS:
        again += acquired(member.fetch(most=LOCKS, wait_ms=5000))
        assert time.monotonic() - last < WAIT_S
    late = time.monotonic() - last - LOCK_MS / 1000
    ended.set()
    watch.join()
    return {"10,000 locks end at once": {"redelivered_ms": late * 1e3, "held_ms": max(waits) * 1e3}}


PIECES = {"tool": tool, "fetch": fetches, "memory": memory, "locks": locks}


def measure(name: str, only: str) -> Work:
    found: Work = {}
    for piece, run in PIECES.items():
        if only in ("", piece):
            with running(name, settings=SETTINGS) as (broker, _):
                found |= run(broker)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="alternating; medians are taken")
    parser.add_argument("--only", choices=list(PIECES), default="")
    args = parser.parse_args()
    rounds = alternate(args.rounds, lambda name: measure(name, args.only))
    save("queues", "Share groups", f"queues --rounds {args.rounds}", table(ROWS, rounds))


if __name__ == "__main__":
    main()
