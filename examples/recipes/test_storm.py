"""A hundred storms: whether a consumer with its own retries handles each message, whatever happens to it.

Each seed is another storm, and always the same one, so a failed one can be examined alone. Consumers mostly wait, so
ten of them go through their storms at the same time, each with its own client id, by which its storm finds it.
"""

from __future__ import annotations

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import Consumer, KafkaException

from kbroker import Broker, Faults
from kbroker.testing import assert_committed

SEEDS = 100
MESSAGES = 5
APIS = ("Fetch", "FindCoordinator", "JoinGroup", "SyncGroup", "Heartbeat", "OffsetCommit", "OffsetFetch")


class Handling:
    """A consumer loop: it handles and commits each message, and retries after a failure."""

    def __init__(self, bootstrap_servers: str, group: str, topic: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "client.id": group,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 1_000,
                "heartbeat.interval.ms": 50,
                "fetch.wait.max.ms": 50,
                # A response about topics may be lost with its connection; librdkafka asks again only after five
                # minutes.
                "topic.metadata.refresh.interval.ms": 1_000,
                "reconnect.backoff.ms": 5,
                "reconnect.backoff.max.ms": 20,
                "retry.backoff.ms": 5,
                "fetch.error.backoff.ms": 5,
                "log_level": 0,
            }
        )
        self._consumer.subscribe([topic])
        self.handled: list[bytes | None] = []

    def step(self) -> None:
        message = self._consumer.poll(0.1)
        if message is None or message.error() is not None:
            return
        self.handled.append(message.value())
        with contextlib.suppress(KafkaException):  # it is delivered again, or the next commit covers it
            self._consumer.commit(message=message, asynchronous=False)

    def close(self) -> None:
        self._consumer.close()


QUICK = pytest.mark.kafka(config={"group.min.session.timeout.ms": 100})
"""If a storm loses a member, its group does not wait for the six seconds that are Kafka's minimum."""


@QUICK
@pytest.mark.long  # a marker of kbroker's own suite, for tests that take longer
def test_nothing_is_lost_in_a_hundred_storms(kafka: Broker, kafka_faults: Faults) -> None:
    with ThreadPoolExecutor(10) as pool:
        hits = list(pool.map(lambda seed: weather(kafka, kafka_faults, seed), range(SEEDS)))
    assert sum(hits) > SEEDS, "the storms were met"


@QUICK
@pytest.mark.long
def test_nothing_is_lost_in_a_storm(kafka: Broker, kafka_faults: Faults) -> None:
    weather(kafka, kafka_faults, seed=7)


def weather(kafka: Broker, kafka_faults: Faults, seed: int) -> int:
    """Let one storm pass over a consumer; return how many requests it met."""
    name = f"orders-{seed}"
    topic = kafka.topics.create(name)
    for number in range(MESSAGES):
        topic.produce(str(number))
    wanted = set(topic.values())
    with kafka_faults.storm(APIS, seed=seed, rate=0.2, client_id=name) as storm:
        handling = Handling(kafka.bootstrap_servers, name, name)
        deadline = time.monotonic() + 60
        while not wanted <= set(handling.handled):
            assert time.monotonic() < deadline, f"seed {seed}: only {handling.handled} of {wanted} after {storm!r}"
            handling.step()
        handling.close()
    committed = assert_committed(kafka.groups[name], {})
    assert committed.get((name, 0), 0) <= MESSAGES
    return storm.hits
