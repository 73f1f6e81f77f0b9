"""A work queue: several workers of one topic, a job that fails, an impossible job, and a worker that hangs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import AcknowledgeType, Message, Producer, ShareConsumer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from kbroker import Broker

QUICK = {"group.share.min.heartbeat.interval.ms": "100", "group.share.heartbeat.interval.ms": "200"}
"""New members get partitions after a heartbeat: 5 s by default."""
GROUP = "workers"

pytestmark = pytest.mark.kafka(config=QUICK)


@contextmanager
def worker(kafka: Broker) -> Iterator[ShareConsumer]:
    """Join the group. Each job must be acknowledged: accepted, released for another try, or rejected."""
    consumer = ShareConsumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": GROUP,
            "share.acknowledgement.mode": "explicit",
            "log_level": 0,
        }
    )
    consumer.subscribe(["jobs"])
    try:
        yield consumer
    finally:
        consumer.close()


def queue(kafka: Broker, *jobs: str, **configs: str) -> None:
    """Create the topic with these jobs; the group begins at the first one."""
    kafka.topics.create("jobs")
    configs["share_auto_offset_reset"] = "earliest"
    changes = [
        ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for name, value in configs.items()
    ]
    group = ConfigResource(ResourceType.GROUP, GROUP, incremental_configs=changes)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.incremental_alter_configs([group])[group].result(20)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for job in jobs:
        producer.produce("jobs", job)
    assert producer.flush(20) == 0


def work(consumer: ShareConsumer, handle: Callable[[str], bool], until: Callable[[], bool]) -> None:
    """Accept each job for which `handle` returns true, and release the others."""
    deadline = time.monotonic() + 20
    while not until():
        assert time.monotonic() < deadline
        for message in consumer.poll(0.2):
            consumer.acknowledge(message, AcknowledgeType.ACCEPT if handle(text(message)) else AcknowledgeType.RELEASE)
        consumer.commit_sync(20.0)


def text(message: Message) -> str:
    value = message.value()
    assert message.error() is None
    assert value is not None
    return value.decode()


def test_a_job_that_fails_is_tried_again_and_then_given_up(kafka: Broker) -> None:
    queue(kafka, "good", "bad", "fine", share_delivery_count_limit="3")
    tried: list[str] = []

    def handle(job: str) -> bool:
        tried.append(job)
        return job != "bad"

    with worker(kafka) as consumer:
        work(consumer, handle, lambda: len(tried) == 5)
        assert len(consumer.poll(0.5)) == 0
    assert sorted(tried) == ["bad", "bad", "bad", "fine", "good"]


def test_a_job_that_fails_waits_before_its_next_try(kafka: Broker) -> None:
    queue(kafka, "bad", share_release_backoff_ms="60000")
    tried: list[str] = []

    def handle(job: str) -> bool:
        tried.append(job)
        return len(tried) == 2

    with worker(kafka) as consumer:
        work(consumer, handle, lambda: len(tried) == 1)
        assert len(consumer.poll(0.5)) == 0, "it waits for a minute"
        kafka.clock.advance(seconds=61)
        work(consumer, handle, lambda: len(tried) == 2)


def test_a_job_that_nobody_can_do_goes_to_the_dead_letter_topic(kafka: Broker) -> None:
    kafka.topics.create("dlq.jobs", config={"errors.deadletterqueue.group.enable": "true"})
    copies = {"errors_deadletterqueue_copy_record_enable": "true"}
    queue(kafka, "good", "nonsense", errors_deadletterqueue_topic_name="dlq.jobs", **copies)
    with worker(kafka) as consumer:
        done = 0
        deadline = time.monotonic() + 20
        while done < 2 and time.monotonic() < deadline:
            for message in consumer.poll(0.2):
                good = text(message) == "good"
                consumer.acknowledge(message, AcknowledgeType.ACCEPT if good else AcknowledgeType.REJECT)
                done += 1
            consumer.commit_sync(20.0)
    [letter] = kafka.wait_for(lambda broker: broker.topics["dlq.jobs"].records())
    assert letter.value == b"nonsense"
    assert dict(letter.headers)["__dlq.errors.message"] == b"Offset rejected by client."


def test_the_job_of_a_worker_that_hangs_goes_to_another(kafka: Broker) -> None:
    queue(kafka, "job")
    done: list[str] = []

    def handle(job: str) -> bool:
        done.append(job)
        return True

    with worker(kafka) as hanging, worker(kafka) as other:
        deadline = time.monotonic() + 20
        while not hanging.poll(0.2):
            assert time.monotonic() < deadline
        assert len(other.poll(0.5)) == 0, "the job is locked"
        kafka.clock.advance(seconds=31)  # share.record.lock.duration.ms is 30 s
        work(other, handle, lambda: done == ["job"])
