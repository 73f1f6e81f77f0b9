"""kill -9 under a schedule topic: each record goes to its target once, and none before its time.

A producer writes records that are due within a second or two, some with a key that a later record replaces or a
tombstone cancels. The broker ends KILLS times on one data directory: at the failpoints between an intent, its delivery
and its outcome, and at random moments. At the end each record is in the target once, read uncommitted.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from compat_tests.harness.brokers import BrokerFailed
from kbroker.failpoints import VARIABLE
from tests.crash.test_kill import FixedPort
from tests.figures import figure
from tests.tries import FORM

SEED = 20261129
KILLS = 100 if FORM == "long" else 6
SOURCE, TARGET = "later", "now"
PARTITIONS = 3
PATIENCE_S = 120.0
MARGIN_S = 0.4
"""A cancellation counts if it is acknowledged this long before the record is due."""
SCHEDULED = {"schedule.enable": "true", "message.timestamp.type": "LogAppendTime", "schedule.target.topic": TARGET}
FAILPOINTS = ("schedule.intended", "schedule.delivered", "schedule.replayed")


class Failing(FixedPort):
    """A broker that ends by itself at a failpoint."""

    armed = ""

    def _environment(self) -> dict[str, str]:
        return {**super()._environment(), VARIABLE: self.armed}

    def come_back(self, armed: str = "") -> None:
        """Start, perhaps with a failpoint; if it is passed before the broker answers, start again."""
        self.armed = armed
        try:
            self.start()
        except BrokerFailed:
            assert armed, self.log_tail()
            self.armed = ""
            self.start()


class Scheduling:
    """The producer, and what must arrive."""

    def __init__(self, address: str, rng: random.Random) -> None:
        self._rng = rng
        self.address = address
        settings = {"bootstrap.servers": address, "enable.idempotence": True, "log_level": 0, "linger.ms": 1}
        self.producer = Producer({**settings, "reconnect.backoff.max.ms": 100, "message.timeout.ms": 120_000})
        self.sent = 0
        self.acked: set[str] = set()
        self.replaced: set[str] = set()
        """What may arrive or not: it was replaced or cancelled when it was nearly due, or without an answer."""
        self.gone: set[str] = set()
        """What must not arrive."""
        self._open: list[tuple[str, str, float]] = []
        self.failed: list[KafkaError] = []

    def produce(self, count: int) -> None:
        for _ in range(count):
            value = f"v{self.sent}"
            self.sent += 1
            delay_ms = self._rng.choice((0, 100, self._rng.randrange(2500)))
            if self._rng.random() < 0.2:
                key = f"k{self.sent}"
                self._send(value, key, delay_ms + 1500)
                self._open.append((value, key, time.time() + (delay_ms + 1500) / 1000))
            else:
                self._send(value, None if self._rng.random() < 0.5 else f"once{self.sent}", delay_ms)
        if self._open and self._rng.random() < 0.7:
            self._cancel(*self._open.pop(self._rng.randrange(len(self._open))))
        self.producer.poll(0)

    def _send(self, value: str, key: str | None, delay_ms: int) -> None:
        def acked(error: KafkaError | None, _message: Message) -> None:
            if error is None:
                self.acked.add(value)
            else:
                self.failed.append(error)

        headers = [("x-deliver-after", str(delay_ms)), ("n", value)]
        self.producer.produce(SOURCE, value, key, headers=headers, on_delivery=acked)

    def _cancel(self, value: str, key: str, due_s: float) -> None:
        def acked(error: KafkaError | None, _message: Message) -> None:
            if error is None and time.time() + MARGIN_S < due_s:
                self.gone.add(value)

        self.replaced.add(value)
        if self._rng.random() < 0.5:
            self.producer.produce(SOURCE, None, key, on_delivery=acked)
            return
        successor = f"v{self.sent}"
        self.sent += 1

        def acked_successor(error: KafkaError | None, message: Message) -> None:
            acked(error, message)
            if error is None:
                self.acked.add(successor)

        headers = [("x-deliver-after", "700"), ("n", successor)]
        self.producer.produce(SOURCE, successor, key, headers=headers, on_delivery=acked_successor)


def arrived(address: str, least: int) -> list[Message]:
    """Return what is in the target, when it is at least so much and then does not grow for two seconds."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "reader", "isolation.level": "read_uncommitted"})
    places = [TopicPartition(TARGET, each, 0) for each in range(PARTITIONS)]
    consumer.assign(places)
    found: list[Message] = []
    deadline, quiet = time.monotonic() + PATIENCE_S, time.monotonic()
    while time.monotonic() < deadline and (len(found) < least or time.monotonic() < quiet + 2):
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            found.append(message)
            quiet = time.monotonic()
    consumer.close()
    return found


def judge(found: list[Message], load: Scheduling) -> Counter[str]:
    """Compare what arrived with what was to arrive; return how often each value did."""
    counts = Counter(each.value().decode() for each in found)
    assert [value for value, count in counts.items() if count > 1] == [], "each fires once"
    assert load.acked - load.replaced - counts.keys() == set(), "nothing is lost"
    assert load.gone & counts.keys() == set(), "what was cancelled in time does not fire"
    for each in found:
        told = dict(each.headers())
        assert int(told["__schedule.at"]) <= each.timestamp()[1], "nothing is early"
        assert told["n"] == each.value()
    return counts


def test_each_record_fires_once_over_kills(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    print(f"seed {SEED}, {KILLS} kills")
    broker = Failing(tmp_path)
    broker.start()
    ends: Counter[str] = Counter()
    try:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        topics = [NewTopic(TARGET, PARTITIONS), NewTopic(SOURCE, 2, config=SCHEDULED)]
        for each in admin.create_topics(topics).values():
            each.result(30)
        load = Scheduling(broker.bootstrap, rng)
        for kill in range(KILLS):
            until = time.monotonic() + (10 if broker.armed else rng.uniform(0.3, 1.5))
            while time.monotonic() < until and broker.running:
                load.produce(5)
                time.sleep(0.01)
            if broker.running:
                broker.kill()
                ends["at a moment"] += 1
            else:
                assert broker.died_by_kill(), broker.log_tail()
                ends[broker.armed.partition(":")[0]] += 1
            name = FAILPOINTS[kill % len(FAILPOINTS)]
            broker.come_back(f"{name}:{rng.choice((1, 1, 2, 5, 20))}" if kill % 4 < 3 else "")
        broker.kill()
        broker.come_back()
        assert load.producer.flush(PATIENCE_S) == 0
        found = arrived(broker.bootstrap, len(load.acked - load.replaced))
        log = broker.log_tail(400)
    finally:
        broker.stop()
    assert not load.failed
    counts = judge(found, load)
    figure(f"{sum(ends.values())} kills under a schedule topic", f"{len(counts)} fired of {load.sent}, {dict(ends)}")
    assert "Traceback" not in log, log
