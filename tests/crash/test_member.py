"""kill -9 under a subscribed member: it misses nothing, and goes back no further than to its committed offsets.

The member joins once, with either protocol, and survives all kills; after each restart another client asks for the
committed offsets. KBROKER_CRASH_SEED=n selects other moments, and KBROKER_CRASH_KILLS=n more kills.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import defaultdict

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.crash.test_kill import FixedPort, Load, wait_for
from tests.tries import tries

SEED = int(os.environ.get("KBROKER_CRASH_SEED", "7"))
KILLS = int(os.environ.get("KBROKER_CRASH_KILLS", tries(5)))
PARTITIONS = 3
TOPIC = "killed"
GROUP = "members"
PROTOCOLS: dict[str, dict[str, object]] = {
    "classic": {"session.timeout.ms": 10_000, "heartbeat.interval.ms": 200},
    "consumer": {"group.protocol": "consumer"},
}
CLIENT = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100, "retry.backoff.ms": 20, "log_level": 0}


class Member(threading.Thread):
    """Reads, commits, and checks the positions to which it is reset."""

    def __init__(self, address: str, protocol: str) -> None:
        super().__init__(daemon=True)
        self.stopping = threading.Event()
        self.acknowledged: dict[int, int] = defaultdict(int)
        self.complaints: list[str] = []
        self.commits = 0
        self.again = 0
        self._tried: dict[int, int] = defaultdict(int)
        self.next: dict[int, int] = defaultdict(int)
        self._consumer = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": GROUP,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                **PROTOCOLS[protocol],
                **CLIENT,
            }
        )

    def run(self) -> None:
        self._consumer.subscribe([TOPIC])
        while not self.stopping.is_set():
            messages = self._consumer.consume(2000, 0.2)
            for message in messages:
                if message.error() is None:
                    self._take(message.partition(), message.offset())
            if messages:
                self._commit()
        self._consumer.close()

    def _take(self, partition: int, offset: int) -> None:
        expected = self.next[partition]
        if offset > expected:
            self.complaints.append(f"{partition}: {expected} to {offset - 1} were left out")
        elif offset < expected:
            self.again += 1
            if offset < self.acknowledged[partition]:
                self.complaints.append(f"{partition}: {offset} again, {self.acknowledged[partition]} was committed")
        self.next[partition] = offset + 1

    def _commit(self) -> None:
        tried = dict(self.next)
        try:
            answers = self._consumer.commit(
                offsets=[TopicPartition(TOPIC, p, o) for p, o in tried.items()], asynchronous=False
            )
        except KafkaException:
            return  # killed meanwhile: the commit may have been written or not
        for answer in answers:
            if answer.error is None:
                self.acknowledged[answer.partition] = answer.offset
        self.commits += 1


def committed(address: str) -> dict[int, int]:
    reader = Consumer({"bootstrap.servers": address, "group.id": GROUP, **CLIENT})
    try:
        found = reader.committed([TopicPartition(TOPIC, p) for p in range(PARTITIONS)], timeout=30)
        return {entry.partition: max(entry.offset, 0) for entry in found}
    finally:
        reader.close()


@pytest.fixture
def broker(tmp_path):
    running = FixedPort(tmp_path).start()
    yield running
    running.stop()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_member_lives_through_it(broker, protocol):
    rng = random.Random(SEED)
    print(f"seed {SEED}, {KILLS} kills")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, num_partitions=PARTITIONS)])[TOPIC].result(30)
    load, member = Load(broker.bootstrap), Member(broker.bootstrap, protocol)
    load.start()
    member.start()
    try:
        for _ in range(KILLS):
            before = member.commits
            wait_for("commits", lambda: member.commits >= before + 5)  # noqa: B023
            time.sleep(rng.uniform(0, 0.1))  # the random moment itself
            broker.kill()
            known = dict(member.acknowledged)  # a killed broker acknowledges no more
            broker.start()
            now = committed(broker.bootstrap)
            assert all(now[p] >= offset for p, offset in known.items()), (known, now)
        load.stopping.set()
        load.join(90)
        ends = {p: 1 + max(offset for offset, _ in load.acknowledged[p]) for p in range(PARTITIONS)}
        wait_for("the rest", lambda: all(member.acknowledged[p] == end for p, end in ends.items()))
    finally:
        load.stopping.set()
        member.stopping.set()
        member.join(30)
    assert load.failed == []
    assert member.complaints == []
    assert committed(broker.bootstrap) == ends
    print(f"{sum(ends.values())} records, {member.commits} commits, {member.again} records read again")
