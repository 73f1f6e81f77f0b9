"""Transactions and groups, and restarts with them; kbroker and Apache Kafka alternate with the same work in one run.

A loop that reads, processes and writes 100 records per transaction with confluent-kafka; a group of 200 members on
1,000 partitions that one more member joins, classic and KIP-848 (group_growth.py); a start with a million committed
offsets and 100,000 transactional ids. Prints a table with ratios and saves it under benchmarks/results/; asserts no
times.

    python -m benchmarks.coordinators [--rounds 3] [--only transactions|groups|replay]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
import uuid
from collections.abc import Callable

from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.group_growth import Group, classic_member, consumer_member
from benchmarks.ratios import Figures, Row, Work, alternate, save, table
from benchmarks.raw import percentile
from benchmarks.replay import replay, wait_for_coordinators
from benchmarks.subjects import running
from compat_tests.harness.brokers import BrokerProcess
from compat_tests.wire.client import WireClient
from kbroker.protocol.messages.cluster import MetadataRequest, MetadataRequestTopic

SOURCE, SINK = "source", "sink"
PER_TRANSACTION = 100
MEMBERS, PARTITIONS = 200, 1000
WAIT_S = 60

ROWS = [
    Row("transactions: read, process, write", "transactions_per_s", "tx/s", 1.5, True),
    Row("transactions: read, process, write", "p50_ms", "p50 ms"),
    Row("transactions: read, process, write", "p99_ms", "p99 ms", 0.7),
    Row("classic group, one more member", "seconds", "s to stable", 1.0),
    Row("classic group, one more member", "held_ms", "longest wait, ms"),
    Row("classic group, all at once", "seconds", "s to stable"),
    Row("KIP-848 group, one more member", "seconds", "s to stable", 1.0),
    Row("KIP-848 group, one more member", "held_ms", "longest wait, ms"),
    Row("KIP-848 group, all at once", "seconds", "s to stable"),
    Row("KIP-848 group, all at once", "held_ms", "longest wait, ms"),
]


def create(address: str, name: str, partitions: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    for future in admin.create_topics([NewTopic(name, partitions, 1)]).values():
        future.result(WAIT_S)


def transactions(broker: BrokerProcess, count: int) -> Figures:
    """Move 100 records `count` times from one topic to another, each time in a transaction with the offsets."""
    address = broker.bootstrap
    create(address, SOURCE)
    create(address, SINK)
    _fill(address, count * PER_TRANSACTION)
    consumer = Consumer({"bootstrap.servers": address, "group.id": "mover", "enable.auto.commit": False})
    consumer.assign([TopicPartition(SOURCE, 0, 0)])
    producer = Producer({"bootstrap.servers": address, "transactional.id": "mover", "linger.ms": 0})
    producer.init_transactions(WAIT_S)
    taken: list[float] = []
    began = 0.0
    for number in range(count):
        messages: list[Message] = []
        while len(messages) < PER_TRANSACTION:
            messages += consumer.consume(PER_TRANSACTION - len(messages), WAIT_S)
        started = time.perf_counter()
        if number == count // 10:
            began = started  # the work before this warms up both sides
        producer.begin_transaction()
        for message in messages:
            producer.produce(SINK, message.value(), message.key())
        offsets = [TopicPartition(SOURCE, 0, messages[-1].offset() + 1)]
        producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), WAIT_S)
        producer.commit_transaction(WAIT_S)
        taken.append(time.perf_counter() - started)
    seconds = time.perf_counter() - began
    consumer.close()
    taken = taken[count // 10 :]
    return {
        "transactions_per_s": len(taken) / seconds,
        "p50_ms": percentile(taken, 0.5) * 1e3,
        "p99_ms": percentile(taken, 0.99) * 1e3,
    }


def _fill(address: str, records: int) -> None:
    producer = Producer({"bootstrap.servers": address, "linger.ms": 5})
    for number in range(records):
        producer.produce(SOURCE, bytes(100), str(number))
        if not number % 10_000:
            producer.flush(WAIT_S)
    producer.flush(WAIT_S)


def groups(broker: BrokerProcess) -> Work:
    """Measure groups of 200 members that share 1,000 partitions."""
    create(broker.bootstrap, "shared", PARTITIONS)
    wait_for_coordinators(broker.bootstrap)
    with WireClient(broker.bootstrap) as client:
        topics = [MetadataRequestTopic(name="shared")]
        topic_id = client.ask(MetadataRequest(topics=topics), 12).topics[0].topic_id
    found: Work = {}
    for kind, member in (("classic", classic_member), ("KIP-848", consumer_member)):
        at_once, one_more = asyncio.run(_grow(broker.bootstrap, kind, member, topic_id))
        found[f"{kind} group, all at once"] = at_once
        found[f"{kind} group, one more member"] = one_more
    return found


async def _grow(address: str, kind: str, member: Callable[..., object], topic_id: bytes) -> tuple[Figures, Figures]:
    group = Group(address, f"{kind}-{uuid.uuid4().hex[:6]}", "shared", topic_id, PARTITIONS)
    figures = []
    for numbers in (range(MEMBERS - 1), range(MEMBERS - 1, MEMBERS)):
        watch = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "benchmarks.group_growth", address, stdout=asyncio.subprocess.PIPE
        )
        assert watch.stdout is not None
        await watch.stdout.readline()  # the command has started
        for number in numbers:
            group.join(member, number)  # type: ignore[arg-type]
        started = time.perf_counter()
        await group.stable(numbers.stop)
        seconds = time.perf_counter() - started
        watch.terminate()
        figures.append({"seconds": seconds, "held_ms": float(await watch.stdout.readline())})
        await watch.wait()
    await group.end()
    return figures[0], figures[1]


def measure(name: str, only: str, count: int) -> Work:
    found: Work = {}
    if only in ("", "transactions"):
        with running(name) as (broker, _):
            found["transactions: read, process, write"] = transactions(broker, count)
    if only in ("", "groups"):
        with running(name) as (broker, _):
            found |= groups(broker)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="alternating; medians are taken")
    parser.add_argument("--only", choices=["transactions", "groups", "replay"], default="")
    parser.add_argument("--transactions", type=int, default=1500)
    args = parser.parse_args()
    lines: list[str] = []
    if args.only != "replay":
        rounds = alternate(args.rounds, lambda name: measure(name, args.only, args.transactions))
        lines = table(ROWS, rounds, decimals=3)
    if args.only in ("", "replay"):
        lines += ["", "| start of kbroker over | measured | aim |", "|---|---|---|"]
        lines += ["| " + " | ".join(line) + " |" for line in replay()]
    save("coordinators", "Transactions and groups", f"coordinators --rounds {args.rounds}", lines)


if __name__ == "__main__":
    main()
