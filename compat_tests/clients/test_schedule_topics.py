"""Schedule topics and real clients: what each writes arrives unchanged at its target, and each reads over the marks.

The writers of other languages are programs in `writers/`, which their own tools fetch and build, so they run only with
KBROKER_TESTS=long, as do Java's, in a JVM of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Producer
from kafka import KafkaProducer

from compat_tests.clients.java_tools.tool import run
from compat_tests.clients.test_delay_topics import (
    EVERY_READER,
    IDLE_S,
    LONG,
    MOST_FETCHES,
    Reader,
)
from compat_tests.compared import of_kfake
from kbroker import Broker
from kbroker.admin.connection import Connection
from kbroker.admin.schedules import ScheduleTopic
from tests.figures import figure

WRITERS: Final = Path(__file__).with_name("writers")
TIMEOUT_S: Final = 300
SCHEDULED: Final = {"schedule.enable": "true", "message.timestamp.type": "LogAppendTime"}
COUNT: Final = 20
Told = tuple[str | None, str, dict[str, str]]
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

TOLD: Final[list[Told]] = [
    *((f"k{n}", f"v{n}", {"x-delay": str(50 * n), "trace": f"t{n}"}) for n in range(COUNT)),
    ("cron", "far away", {"x-schedule": "0 0 1 1 *", "x-schedule-timezone": "Asia/Kolkata"}),
    ("elsewhere", "there", {"x-deliver-after": "PT0.1S", "x-deliver-to": "there", "x-deliver-key": "other", "a": "b"}),
]
Writer = Callable[[Broker, str, Sequence[Told], Path], str | None]
"""Writes records to a topic; returns the name or the text of the error: (broker, topic, records, free directory)."""


def by_librdkafka(broker: Broker, topic: str, records: Sequence[Told], _: Path) -> str | None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    errors: list[str] = []
    for key, value, headers in records:
        producer.produce(
            topic, value, key, headers=[(name, text.encode()) for name, text in headers.items()],
            on_delivery=lambda error, _: errors.append(error.name()) if error else None,
        )  # fmt: skip
    assert producer.flush(TIMEOUT_S) == 0
    producer.close()
    return errors[0] if errors else None


def by_kafka_python(broker: Broker, topic: str, records: Sequence[Told], _: Path) -> str | None:
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, retries=0)
    sent = [
        producer.send(
            topic, value.encode(), None if key is None else key.encode(),
            headers=[(name, text.encode()) for name, text in headers.items()],
        )
        for key, value, headers in records
    ]  # fmt: skip
    producer.flush(TIMEOUT_S)
    errors = [str(each.exception) for each in sent if each.failed()]
    producer.close()
    return errors[0] if errors else None


def by_aiokafka(broker: Broker, topic: str, records: Sequence[Told], _: Path) -> str | None:
    async def write() -> str | None:
        producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers)
        await producer.start()
        try:
            for key, value, headers in records:
                named = [(name, text.encode()) for name, text in headers.items()]
                await producer.send_and_wait(
                    topic, value.encode(), None if key is None else key.encode(), headers=named
                )
        except Exception as error:  # noqa: BLE001 - the error is the result
            return str(error)
        finally:
            await producer.stop()
        return None

    return asyncio.run(write())


def by_java(broker: Broker, topic: str, records: Sequence[Told], _: Path) -> str | None:
    options = ["parse.key=true", "parse.headers=true", "key.separator=|", "headers.delimiter=;", "null.marker=NULL"]
    lines = [
        f"{','.join(f'{name}:{text}' for name, text in headers.items())};{'NULL' if key is None else key}|{value}\n"
        for key, value, headers in records
    ]
    properties = [each for option in options for each in ("--reader-property", option)]
    done = run(
        "console-producer", "--topic", topic, *properties, stdin="".join(lines), bootstrap=broker.bootstrap_servers
    )
    rest = [each for each in done if not each.startswith(("exit 0", ">"))]
    return " ".join(rest) or None


def by_franz_go(broker: Broker, topic: str, records: Sequence[Told], folder: Path) -> str | None:
    go = of_kfake.go()
    if go is None:
        pytest.skip("there is no Go here")
    shutil.copytree(WRITERS / "go", folder, dirs_exist_ok=True)
    return _run(folder, broker, topic, records, go, "run", ".")


def by_kafkajs(broker: Broker, topic: str, records: Sequence[Told], folder: Path) -> str | None:
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        pytest.skip("there is no Node.js here")
    shutil.copytree(WRITERS / "node", folder, dirs_exist_ok=True)
    fetch = [npm, "install", "--ignore-scripts", "--no-audit", "--no-fund"]
    subprocess.run(fetch, cwd=folder, check=True, capture_output=True, timeout=TIMEOUT_S)
    return _run(folder, broker, topic, records, node, "writer.js")


def _run(folder: Path, broker: Broker, topic: str, records: Sequence[Told], *command: str) -> str | None:
    arguments = [*command, broker.bootstrap_servers, topic, json.dumps(records)]
    done = subprocess.run(
        arguments, cwd=folder, env=dict(os.environ), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    return None if done.returncode == 0 else done.stdout[-2000:] + done.stderr[-2000:]


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as running:
        for name in ("target", "there"):
            running.topics.create(name, partitions=2)
        running.topics.create("later", config={**SCHEDULED, "schedule.target.topic": "target"})
        yield running


@pytest.mark.parametrize(
    "write",
    [
        by_librdkafka,
        by_kafka_python,
        by_aiokafka,
        pytest.param(by_java, marks=[pytest.mark.java, LONG]),
        pytest.param(by_franz_go, marks=LONG),
        pytest.param(by_kafkajs, marks=LONG),
    ],
)
def test_what_a_client_writes_arrives_unchanged(broker: Broker, write: Writer, tmp_path: Path) -> None:
    assert write(broker, "later", TOLD, tmp_path) is None
    wait_for(broker, "target", COUNT)
    wait_for(broker, "there", 1)
    found = {each.key: each for each in broker.topics["target"].records()}
    for key, value, headers in TOLD[:COUNT]:
        assert key is not None
        arrived = found.pop(key.encode())
        told = [(name, text) for name, text in arrived.headers if not name.startswith("__schedule.")]
        assert (arrived.value, told) == (value.encode(), [("trace", headers["trace"].encode())])
    assert found == {}
    (there,) = broker.topics["there"].records()
    assert (there.key, there.value, there.headers[0]) == (b"other", b"there", ("a", b"b"))
    refused = write(broker, "later", [("k", "v", {"x-delay": "soon"})], tmp_path)
    assert refused is not None
    figure(f"{write.__name__}, refused record", refused[:200])


@pytest.mark.parametrize("read", EVERY_READER)
def test_a_client_reads_over_the_marks(broker: Broker, read: Reader, tmp_path: Path) -> None:
    assert by_librdkafka(broker, "later", TOLD[:COUNT], tmp_path) is None
    wait_for(broker, "target", COUNT)
    with Connection(broker.bootstrap_servers, {}).admin() as admin:
        deadline = time.monotonic() + TIMEOUT_S
        while ScheduleTopic(admin, "later").count:  # until the last mark is written
            assert time.monotonic() < deadline
            time.sleep(0.02)
    values = [value for _, value, _ in TOLD[:COUNT]]
    found = read(broker, "later", COUNT, IDLE_S, tmp_path)
    assert found.values == values
    fetches = broker.requests.of("Fetch", client_id="reader")
    at_end = [
        each for each in fetches
        if each.answer is not None
        and not any(part.records for topic in each.answer.responses for part in topic.partitions)
    ]  # fmt: skip
    lag = broker.groups["g"].lag()
    figure(
        f"{read.__name__}, schedule topic", f"committed {found.committed}, lag {lag}, {len(at_end)} fetches at the end"
    )
    assert len(at_end) <= MOST_FETCHES


def wait_for(broker: Broker, topic: str, number: int) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while len(list(broker.topics[topic].records())) < number:
        assert time.monotonic() < deadline
        time.sleep(0.02)
