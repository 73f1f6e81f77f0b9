"""A delay topic as seven clients see it: records, committed offset, lag, and fetches where they must wait.

The readers of other languages are programs in `readers/`, which their own tools fetch and build, so they run only with
KBROKER_TESTS=long, as do Java's, in a JVM of its own, and Spark's.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import Consumer
from kafka import KafkaConsumer, TopicPartition

from compat_tests.clients.java_tools.tool import run
from compat_tests.compared import of_kfake
from kbroker import Broker
from tests.figures import figure
from tests.tries import FORM

READERS: Final = Path(__file__).with_name("readers")
TIMEOUT_S: Final = 300
DELAYED: Final = {"delivery.delay.ms": "600000", "message.timestamp.type": "LogAppendTime"}
READABLE, WAITING = 20, 10
IDLE_S: Final = 3
MOST_FETCHES: Final = 5 * IDLE_S
"""Clients wait 500 ms for a fetch, so they send two in a second; a client that asks without a pause sends thousands."""
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class Found(NamedTuple):
    """The values that a client read, and the offset that it committed at the end."""

    values: list[str]
    committed: int


Reader = Callable[[Broker, str, int, int, Path], Found]
"""Reads a topic in the group "g": (broker, topic, number of records, seconds of further polls, free directory)."""


def of_librdkafka(broker: Broker, topic: str, count: int, idle_s: int, _: Path) -> Found:
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "client.id": "reader"}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest", "enable.auto.commit": False})
    consumer.subscribe([topic])
    values: list[str] = []
    until = time.monotonic() + TIMEOUT_S
    while time.monotonic() < until:
        message = consumer.poll(0.1)
        if message is not None and not message.error():
            values.append(message.value().decode())
            if len(values) == count:
                until = time.monotonic() + idle_s
    (committed,) = consumer.commit(asynchronous=False)
    consumer.close()
    return Found(values, committed.offset)


def read_by_kafka_python(consumer: KafkaConsumer, count: int, idle_s: int) -> list[str]:
    values: list[str] = []
    until = time.monotonic() + TIMEOUT_S
    while time.monotonic() < until:
        for records in consumer.poll(100).values():
            values += [each.value.decode() for each in records]
            until = time.monotonic() + (idle_s if len(values) >= count else TIMEOUT_S)
    return values


def of_kafka_python(broker: Broker, topic: str, count: int, idle_s: int, _: Path) -> Found:
    consumer = KafkaConsumer(
        bootstrap_servers=broker.bootstrap_servers, group_id="g", client_id="reader",
        auto_offset_reset="earliest", enable_auto_commit=False,
    )  # fmt: skip
    # As a member of the group it joins again in the middle on a busy machine, and reads everything twice.
    consumer.assign([TopicPartition(topic, each) for each in consumer.partitions_for_topic(topic) or ()])
    values = read_by_kafka_python(consumer, count, idle_s)
    consumer.commit()
    committed = consumer.committed(next(iter(consumer.assignment())))
    consumer.close()
    return Found(values, committed)


def of_aiokafka(broker: Broker, topic: str, count: int, idle_s: int, _: Path) -> Found:
    async def read() -> Found:
        consumer = AIOKafkaConsumer(
            topic, bootstrap_servers=broker.bootstrap_servers, group_id="g", client_id="reader",
            auto_offset_reset="earliest", enable_auto_commit=False,
        )  # fmt: skip
        await consumer.start()
        values: list[str] = []
        until = time.monotonic() + TIMEOUT_S
        while time.monotonic() < until:
            for records in (await consumer.getmany(timeout_ms=100)).values():
                values += [each.value.decode() for each in records]
                until = time.monotonic() + (idle_s if len(values) >= count else TIMEOUT_S)
        await consumer.commit()
        committed = await consumer.committed(next(iter(consumer.assignment())))
        await consumer.stop()
        return Found(values, committed)

    return asyncio.run(read())


def of_java(broker: Broker, topic: str, _count: int, idle_s: int, _: Path) -> Found:
    lines = run(
        "console-consumer", "--topic", topic, "--group", "g", "--from-beginning", "--timeout-ms", str(1000 * idle_s),
        "--consumer-property", "client.id=reader", bootstrap=broker.bootstrap_servers,
    )  # fmt: skip
    committed = broker.groups["g"].offsets[topic, 0]
    return Found([each for each in lines if each.startswith("v")], int(committed))


def of_franz_go(broker: Broker, topic: str, count: int, idle_s: int, folder: Path) -> Found:
    go = of_kfake.go()
    if go is None:
        pytest.skip("there is no Go here")
    shutil.copytree(READERS / "go", folder, dirs_exist_ok=True)
    return _run(folder, broker, topic, count, idle_s, go, "run", ".")


def of_kafkajs(broker: Broker, topic: str, count: int, idle_s: int, folder: Path) -> Found:
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        pytest.skip("there is no Node.js here")
    shutil.copytree(READERS / "node", folder, dirs_exist_ok=True)
    fetch = [npm, "install", "--ignore-scripts", "--no-audit", "--no-fund"]
    subprocess.run(fetch, cwd=folder, check=True, capture_output=True, timeout=TIMEOUT_S)
    return _run(folder, broker, topic, count, idle_s, node, "reader.js")


def _run(folder: Path, broker: Broker, topic: str, count: int, idle_s: int, *command: str) -> Found:
    arguments = [*command, broker.bootstrap_servers, topic, "g", str(count), str(idle_s)]
    done = subprocess.run(
        arguments, cwd=folder, env=dict(os.environ), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return Found(**json.loads(done.stdout))


LONG = pytest.mark.skipif(FORM != "long", reason="fetches a client of another language: only with KBROKER_TESTS=long")


EVERY_READER: Final = [
    of_librdkafka,
    of_kafka_python,
    of_aiokafka,
    pytest.param(of_java, marks=[pytest.mark.java, LONG]),
    pytest.param(of_franz_go, marks=LONG),
    pytest.param(of_kafkajs, marks=LONG),
]


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.mark.parametrize("read", EVERY_READER)
def test_a_client_reads_what_is_old_enough(broker: Broker, read: Reader, tmp_path: Path) -> None:
    topic = broker.topics.create("later", 1, config=DELAYED)
    values = [f"v{number}" for number in range(READABLE + WAITING)]
    for value in values[:READABLE]:
        topic.produce(value)
    broker.clock.advance(minutes=6)
    for value in values[READABLE:]:
        topic.produce(value)
    broker.clock.advance(minutes=5)
    first = read(broker, "later", READABLE, IDLE_S, tmp_path)
    assert first == Found(values[:READABLE], READABLE)
    assert broker.groups["g"].lag() == 0
    fetches = broker.requests.of("Fetch", client_id="reader")
    at_end = [each for each in fetches if each.answer is not None and not _records(each.answer)]
    figure(f"{read.__name__}, delay topic", f"{len(first.values)} records, {len(at_end)} fetches at the end")
    assert len(at_end) <= MOST_FETCHES, "the client must wait at the end, not ask again and again"
    broker.clock.advance(minutes=6)
    assert broker.groups["g"].lag() == WAITING
    assert read(broker, "later", WAITING, 0 if read is not of_java else IDLE_S, tmp_path) == Found(
        values[READABLE:], READABLE + WAITING
    )


def _records(answer: Any) -> bool:
    return any(each.records for topic in answer.responses for each in topic.partitions)


@pytest.mark.spark
@LONG
def test_spark_reads_what_is_old_enough(broker: Broker) -> None:
    from compat_tests.spark.session import spark

    topic = broker.topics.create("later", 1, config=DELAYED)
    for number in range(READABLE):
        topic.produce(f"v{number}")
    broker.clock.advance(minutes=11)
    topic.produce("waits")
    settings = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": "later"}
    frame = spark().read.format("kafka").options(**settings).load()
    assert sorted(each.offset for each in frame.select("offset").collect()) == list(range(READABLE))
