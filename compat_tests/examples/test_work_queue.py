"""The recipes of a work queue, unchanged from examples/, on Apache Kafka, except our release back-off."""

from __future__ import annotations

import importlib.util
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from compat_tests.harness.brokers import ApacheKafka, BrokerProcess, KBroker
from compat_tests.harness.jvm import BRIEF
from compat_tests.harness.parts import fetch
from kbroker.testing.waiting import hold
from tests.tries import FORM

RECIPES = Path(__file__).parents[2] / "examples/recipes"
STEPS = [
    "test_a_job_that_fails_is_tried_again_and_then_given_up",
    "test_a_job_that_nobody_can_do_goes_to_the_dead_letter_topic",
    "test_the_job_of_a_worker_that_hangs_goes_to_another",
]
LOCK_MS = 3_000
alone = pytest.mark.skipif(FORM != "long", reason="asks Apache Kafka alone, which does not change: in make torture")
WAIT_S = 20.0
WORK_S = 10


class OnKafka:
    """The parts of an embedded broker that the recipe uses. Locks expire after 3 s, so the clock need not be moved."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap_servers = bootstrap
        self.topics = self
        self.clock = SimpleNamespace(advance=lambda **_time: None)
        self._admin = AdminClient({"bootstrap.servers": bootstrap})

    def create(self, name: str, config: dict[str, str] | None = None) -> None:
        self._admin.create_topics([NewTopic(name, 1, 1, config=config or {})])[name].result(WAIT_S)

    def configure(self, group: str, configs: Mapping[str, str]) -> None:
        changes = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in configs.items()
        ]
        changed = ConfigResource(ResourceType.GROUP, group, incremental_configs=changes)
        self._admin.incremental_alter_configs([changed])[changed].result(WAIT_S)

    def __getitem__(self, name: str) -> Any:
        return SimpleNamespace(records=lambda: self._records(name))

    def _records(self, name: str) -> list[Any]:
        settings = {"bootstrap.servers": self.bootstrap_servers, "group.id": "unused", "auto.offset.reset": "earliest"}
        consumer = Consumer({**settings, "enable.auto.commit": False})
        try:
            consumer.assign([TopicPartition(name, 0, 0)])
            return [_record(each) for each in consumer.consume(10, 1.0)]
        finally:
            consumer.close()

    def wait_for(self, holds: Callable[[OnKafka], Any]) -> Any:
        return hold(lambda: holds(self), WAIT_S)


def _record(message: Message) -> Any:
    return SimpleNamespace(value=message.value(), headers=message.headers())


@alone
@pytest.mark.java
@pytest.mark.parametrize("step", STEPS)
def test_the_work_queue_on_apache_kafka(tmp_path: Path, step: str) -> None:
    spec = importlib.util.spec_from_file_location("work_queue", RECIPES / "test_work_queue.py")
    assert spec is not None
    assert spec.loader is not None
    recipe = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(recipe)
    settings = {
        **recipe.QUICK,
        "group.share.min.record.lock.duration.ms": "1000",
        "group.share.record.lock.duration.ms": str(LOCK_MS),
    }
    with ApacheKafka(fetch("kafka"), tmp_path / "kafka", settings) as kafka:
        getattr(recipe, step)(OnKafka(kafka.bootstrap))


@pytest.mark.long
@pytest.mark.java
@pytest.mark.parametrize("name", ["kbroker", pytest.param("kafka", marks=alone)])
def test_the_work_queue_in_java(tmp_path: Path, name: str) -> None:
    """A worker works for some seconds: it tries a flaky job three times, and rejects an impossible job."""
    libs = fetch("kafka")
    settings = {"group.share.min.heartbeat.interval.ms": "100", "group.share.heartbeat.interval.ms": "200"}
    made: BrokerProcess
    made = ApacheKafka(libs, tmp_path / name, settings) if name == "kafka" else KBroker(tmp_path / name, settings)
    with made as broker:
        kafka = OnKafka(broker.bootstrap)
        kafka.create("jobs")
        kafka.create("dlq.jobs", {"errors.deadletterqueue.group.enable": "true"})
        kafka.configure(
            "workers",
            {
                "share.auto.offset.reset": "earliest",
                "errors.deadletterqueue.topic.name": "dlq.jobs",
                "errors.deadletterqueue.copy.record.enable": "true",
            },
        )
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for job in ("good", "flaky", "nonsense", "fine"):
            producer.produce("jobs", job)
        assert producer.flush(WAIT_S) == 0
        command = ["java", "-Xmx256M", *BRIEF, "-cp", f"{libs}/*", str(RECIPES / "WorkQueue.java")]
        tries = ["fine try 1", "flaky try 1", "flaky try 2", "flaky try 3", "good try 1", "nonsense try 1"]
        said: list[str] = []
        for _ in range(5):  # on a busy machine a worker may end before it has its partition
            done = subprocess.run(
                [*command, broker.bootstrap, "jobs", "workers", str(WORK_S)],
                capture_output=True,
                text=True,
                timeout=120,
                check=True,
            )
            said += done.stdout.split("\n")[:-1]
            if len(said) >= len(tries):
                break
        assert sorted(said) == tries
        [letter] = kafka.wait_for(lambda kafka: kafka["dlq.jobs"].records())
        assert letter.value == b"nonsense"
