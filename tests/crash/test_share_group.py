"""kill -9 under a share group: what a member has accepted, with the broker's answer, is never delivered again.

confluent-kafka's ShareConsumer acknowledges some of each poll and releases the rest; the broker is killed KILLS times
at random moments on one data directory. Records come again until the broker has stored their acceptance, whether or not
its answer arrived: the group's lag tells when that holds for all.

With a dead letter topic some records are rejected, and the first end is between a letter and the note that it is
written. Then each record is accepted, or its letter is in that topic, at least once.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, Producer, ShareConsumer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from compat_tests.wire.client import WireClient
from kbroker.failpoints import VARIABLE
from kbroker.protocol.messages.share_groups import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
)
from tests.crash.test_kill import FixedPort
from tests.figures import figure
from tests.tries import FORM

SEED = 20261128
KILLS = 150 if FORM == "long" else 4
RECORDS = 80 * KILLS
GROUP = "workers"
TOPIC = "jobs"
DEADLINE_SECONDS = 120 if FORM != "long" else 3600
LETTERS = "dlq.jobs"
ACCEPT, RELEASE, REJECT = 1, 2, 3

Place = tuple[int, int]


def prepare(address: str, *, has_letters: bool = False) -> None:
    """Create the topics, and let the group begin at the earliest record."""
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, num_partitions=2)])[TOPIC].result(30)
    changes = [
        ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET),
        ConfigEntry("share.delivery.count.limit", "10", incremental_operation=AlterConfigOpType.SET),
    ]
    if has_letters:
        configs = {"errors.deadletterqueue.group.enable": "true"}
        admin.create_topics([NewTopic(LETTERS, num_partitions=1, config=configs)])[LETTERS].result(30)
        name = "errors.deadletterqueue.topic.name"
        changes.append(ConfigEntry(name, LETTERS, incremental_operation=AlterConfigOpType.SET))
    group = ConfigResource(ResourceType.GROUP, GROUP, incremental_configs=changes)
    admin.incremental_alter_configs([group])[group].result(30)


def produce(address: str, numbers: range, while_waiting: Callable[[], None] = lambda: None) -> None:
    """Write some of the records."""
    settings = {"bootstrap.servers": address, "log_level": 0, "batch.num.messages": 7, "enable.idempotence": True}
    producer = Producer(settings)
    for number in numbers:
        producer.produce(TOPIC, str(number).encode(), partition=number % 2)
    deadline = time.monotonic() + 30
    while producer.flush(0.5):
        assert time.monotonic() < deadline
        while_waiting()


class Worker:
    """A member of the group that remembers the records that it accepted, and those delivered after that."""

    def __init__(self, address: str, rng: random.Random, rejected: float = 0.0) -> None:
        """`rejected` is the fraction of the records that it rejects."""
        self._rng = rng
        self._rejected = rejected
        self.accepted: set[Place] = set()
        self.unanswered: set[Place] = set()
        """Accepted without an answer: the broker ended before or after it stored the acceptance."""
        self.again: list[Place] = []
        self.deliveries = 0
        settings = {"bootstrap.servers": address, "group.id": GROUP, "share.acknowledgement.mode": "explicit"}
        quick = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100, "log_level": 0}
        self.consumer = ShareConsumer({**settings, **quick})
        self.consumer.subscribe([TOPIC])

    def work(self, before_commit: Callable[[], None] = lambda: None) -> None:
        """Poll once, accept about two thirds of the records, release or reject others, and wait for the answers."""
        messages = [each for each in self.consumer.poll(0.5) if each.error() is None]
        taken: dict[int, set[Place]] = {0: set(), 1: set()}
        for message in messages:
            place = (message.partition(), message.offset())
            self.deliveries += 1
            if place in self.accepted:
                self.again.append(place)
            chance = self._rng.random()
            kind = ACCEPT if chance < 0.67 else REJECT if chance < 0.67 + self._rejected else RELEASE
            self.consumer.acknowledge(message, kind)
            if kind == ACCEPT:
                taken[place[0]].add(place)
        before_commit()
        if messages:
            self._commit(taken)

    def _commit(self, taken: dict[int, set[Place]]) -> None:
        try:
            answers = self.consumer.commit_sync(30.0)
        except KafkaException:
            answers = {}
        answered = {each.partition for each, error in answers.items() if error is None}
        for partition, places in taken.items():
            (self.accepted if partition in answered else self.unanswered).update(places)

    @property
    def done(self) -> int:
        return len(self.accepted | self.unanswered)


def lag(address: str) -> int:
    """Return how many records are neither accepted nor archived; -1 while the coordinator is loading."""
    topics = [DescribeShareGroupOffsetsRequestTopic(TOPIC, [0, 1])]
    request = DescribeShareGroupOffsetsRequest([DescribeShareGroupOffsetsRequestGroup(GROUP, topics)])
    with WireClient(address) as client:
        partitions = client.ask(request, 1).groups[0].topics[0].partitions
    return -1 if any(each.error_code or each.lag < 0 for each in partitions) else sum(each.lag for each in partitions)


def test_what_was_accepted_is_never_delivered_again(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    print(f"seed {SEED}, {KILLS} kills")
    broker = FixedPort(tmp_path).start()
    try:
        prepare(broker.bootstrap)
        produce(broker.bootstrap, range(RECORDS))
        worker = Worker(broker.bootstrap, rng)
        kills = 0
        deadline = time.monotonic() + DEADLINE_SECONDS
        while kills < KILLS or lag(broker.bootstrap) != 0:
            assert time.monotonic() < deadline, (worker.done, worker.deliveries, kills, broker.log_tail())
            if kills < KILLS and worker.done > kills * RECORDS // KILLS:
                killer = threading.Timer(rng.uniform(0, 0.006), broker.kill)
                worker.work(killer.start)
                killer.join()
                broker.start()
                kills += 1
            else:
                worker.work()
        worker.consumer.close()
    finally:
        broker.stop()
    seen = f"{len(worker.accepted)} accepted, {len(worker.unanswered)} cut off, {worker.deliveries} deliveries"
    figure(f"{kills} kills under a share group, seed {SEED}", seen)
    assert worker.done == RECORDS, "nothing was given up"
    assert worker.again == []


class EndsAfterALetter(FixedPort):
    """A broker that ends by itself between writing a dead letter and recording that it is written."""

    armed = True

    def come_back(self) -> None:
        """Start it, if it has ended by itself."""
        if not self.running:
            assert self.died_by_kill()
            self.armed = False
            self.start()

    def _environment(self) -> dict[str, str]:
        return {**super()._environment(), VARIABLE: "share.dead_letters_written:5" if self.armed else ""}


def letters(address: str) -> list[Place]:
    """Return which records the dead letters in the topic are about."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "reader", "log_level": 0})
    place = TopicPartition(LETTERS, 0, 0)
    consumer.assign([place])
    _, end = consumer.get_watermark_offsets(place, timeout=30)
    found: list[Place] = []
    deadline = time.monotonic() + 30
    while len(found) < end and time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            told = dict(message.headers())
            found.append((int(told["__dlq.errors.partition"]), int(told["__dlq.errors.offset"])))
    consumer.close()
    assert len(found) == end
    return found


def test_every_record_is_accepted_or_has_a_dead_letter(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    print(f"seed {SEED}, {KILLS} kills, and one after a letter")
    broker = EndsAfterALetter(tmp_path)
    broker.start()
    try:
        prepare(broker.bootstrap, has_letters=True)
        worker = Worker(broker.bootstrap, rng, rejected=0.15)
        kills = produced = 0
        deadline = time.monotonic() + DEADLINE_SECONDS
        while broker.armed or produced < RECORDS or kills < KILLS or lag(broker.bootstrap) != 0:
            assert time.monotonic() < deadline, (worker.done, worker.deliveries, kills, broker.log_tail())
            if produced < RECORDS:
                produce(broker.bootstrap, range(produced, produced + 20), broker.come_back)
                produced += 20
            broker.come_back()
            if not broker.armed and kills < KILLS:
                killer = threading.Timer(rng.uniform(0, 0.006), broker.kill)
                worker.work(killer.start)
                killer.join()
                broker.start()
                kills += 1
            else:
                worker.work()
            broker.come_back()
        worker.consumer.close()
        found = letters(broker.bootstrap)
    finally:
        broker.stop()
    seen = f"{len(worker.accepted)} accepted, {len(worker.unanswered)} cut off, {len(found)} letters"
    figure(f"{kills + 1} kills under a share group with dead letters, seed {SEED}", seen)
    places = {(number % 2, number // 2) for number in range(RECORDS)}
    assert worker.accepted | worker.unanswered | set(found) == places
    assert not worker.accepted & set(found), "what was accepted has no letter"
    assert worker.again == []
    assert len(found) > len(set(found)), "the letter of the first end was written again"
