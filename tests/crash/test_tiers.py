"""kill -9 under topics with remote storage: nothing acknowledged is lost, nothing comes twice, nothing stays behind.

A producer writes numbered records to one topic that keeps all of them, and to one that keeps few. The broker ends KILLS
times: at the failpoints between the steps of a copy and of a deletion, and at random moments. At the end every
acknowledged record is read from the beginning, in order; then the topics are deleted, and the store is empty.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from compat_tests.wire.client import WireClient
from kbroker.protocol.messages.logs import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tests.crash.test_schedules import Failing
from tests.figures import figure
from tests.tries import FORM

SEED = 20261130
KILLS = 100 if FORM == "long" else 6
FAILPOINTS = ("tiers.announced", "tiers.sent", "tiers.copied", "tiers.deletion_announced", "tiers.deleted")
PATIENCE_S = 60.0
KEPT, SHORT = "kept", "short"
TIERED = {"remote.storage.enable": "true", "internal.segment.bytes": "20000", "local.retention.bytes": "40000"}
EARLIEST, EARLIEST_LOCAL = -2, -4


def settings(store: Path) -> dict[str, str]:
    return {
        "remote.log.storage.system.enable": "true",
        "remote.storage.url": f"file://{store}",
        "remote.log.manager.task.interval.ms": "100",
        "log.initial.task.delay.ms": "100",
        "log.retention.check.interval.ms": "200",
        "log.segment.delete.delay.ms": "100",
    }


def start_offset(bootstrap: str, topic: str, which: int) -> int:
    client = WireClient(bootstrap)
    wanted = ListOffsetsTopic(topic, [ListOffsetsPartition(0, -1, which)])
    answer = client.ask(ListOffsetsRequest(-1, 0, [wanted], timeout_ms=5000), 8)
    client.close()
    return int(answer.topics[0].partitions[0].offset)


def read_all(bootstrap: str, topic: str, begin: int, end: int) -> list[tuple[int, int]]:
    """Return (offset, number) of the records in a range, without those that retention deletes meanwhile."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "a", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, 0, begin)])
    found: list[tuple[int, int]] = []
    until = time.monotonic() + PATIENCE_S
    while not (found and found[-1][0] == end - 1) and time.monotonic() < until:
        for message in consumer.consume(1000, 0.2):
            assert message.error() is None, message.error()
            found.append((message.offset(), int(message.key() or b"-1")))
    consumer.close()
    return found


def objects(store: Path) -> list[str]:
    """Return the segments of a store, whose empty directories may vanish meanwhile."""
    found = [f"{folder}/{name}" for folder, _, names in os.walk(store) for name in names]
    return [path for path in found if "/broker-state/" not in path]


def check_store(data_dir: Path, store: Path) -> None:
    """Compare all objects with their records, and with their checksums: none is missing, damaged or an orphan."""
    command = [sys.executable, "-m", "kbroker", "log", "check", str(data_dir), "--from", f"file://{store}"]
    done = subprocess.run([*command, "--deep", "--json"], capture_output=True, check=False, timeout=PATIENCE_S)
    found = json.loads(done.stdout)
    assert not [each for each in found if not each["file"].startswith(str(data_dir))], found


def test_nothing_is_lost_over_kills(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    print(f"seed {SEED}, {KILLS} kills")
    store = tmp_path / "store"
    store.mkdir()
    broker = Failing(tmp_path)
    broker.settings.update(settings(store))
    broker.start()
    ends: Counter[str] = Counter()
    acked: list[int] = []
    failed: list[str] = []

    def delivered(error: Any, message: Any) -> None:
        if error:
            failed.append(str(error))
        elif message.topic() == KEPT:
            acked.append(int(message.key()))

    try:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        topics = [
            NewTopic(KEPT, 1, 1, config=TIERED),
            NewTopic(SHORT, 1, 1, config={**TIERED, "retention.bytes": "100000"}),
        ]
        for each in admin.create_topics(topics).values():
            each.result(30)
        producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap,
                "enable.idempotence": True,
                "batch.size": 9_000,
                "linger.ms": 5,
                "log_level": 0,
            }
        )
        number = 0
        for kill in range(KILLS):
            until = time.monotonic() + (10 if broker.armed else rng.uniform(0.5, 1.5))
            while time.monotonic() < until and broker.running:
                for _ in range(20 if len(producer) < 10_000 else 0):
                    number += 1
                    key, value = b"%d" % number, rng.randbytes(rng.randrange(1000))
                    for topic in (KEPT, SHORT):
                        producer.produce(
                            topic,
                            value,
                            key,
                            on_delivery=delivered,
                        )
                producer.poll(0.02)
            if broker.running:
                broker.kill()
                ends["at a moment"] += 1
            else:
                assert broker.died_by_kill(), broker.log_tail()
                ends[broker.armed.partition(":")[0]] += 1
            name = FAILPOINTS[kill % len(FAILPOINTS)]
            broker.come_back(f"{name}:{rng.choice((1, 1, 2, 3))}" if kill % 6 < 5 else "")
        broker.kill()
        broker.come_back()
        assert producer.flush(PATIENCE_S) == 0
        until = time.monotonic() + PATIENCE_S
        while start_offset(broker.bootstrap, SHORT, EARLIEST) == 0 or (
            start_offset(broker.bootstrap, KEPT, EARLIEST_LOCAL) < number * 2 // 3
        ):
            assert time.monotonic() < until, broker.log_tail()
            time.sleep(0.05)
        assert start_offset(broker.bootstrap, KEPT, EARLIEST) == 0
        found = read_all(broker.bootstrap, KEPT, 0, number)
        begin = start_offset(broker.bootstrap, SHORT, EARLIEST)
        left = read_all(broker.bootstrap, SHORT, begin, number)
        kept = start_offset(broker.bootstrap, SHORT, EARLIEST)  # retention may go on while the consumer reads
        in_store = len(objects(store))
        check_store(broker.data_dir, store)
        assert not failed
        assert sorted(acked) == list(range(1, number + 1))
        assert found == [(offset, offset + 1) for offset in range(number)]
        assert all(begin <= offset == value - 1 for offset, value in left)
        assert [each for each in left if each[0] >= kept] == [(offset, offset + 1) for offset in range(kept, number)]
        for deleted in admin.delete_topics([KEPT, SHORT]).values():
            deleted.result(30)
        until = time.monotonic() + PATIENCE_S
        while objects(store):
            assert time.monotonic() < until, objects(store)
            time.sleep(0.05)
        log = broker.log_tail(400)
    finally:
        broker.stop()
    figure(f"{sum(ends.values())} kills under remote storage", f"{number} records, {in_store} objects, {dict(ends)}")
    assert "Traceback" not in log, log
