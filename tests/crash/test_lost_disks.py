"""A broker loses its disk again and again: each restore from the store gives each offset its record or none.

A producer writes numbered records to a topic with remote storage, some of them in transactions, and a group commits
offsets. kill -9 ends the broker at a failpoint or at a random moment. Then its disk is lost and restored, also by a
restore that is killed first. The next round begins with the restored directory.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kbroker.failpoints import VARIABLE
from tests.crash.test_schedules import Failing
from tests.crash.test_tiers import TIERED, check_store, objects, settings
from tests.figures import figure
from tests.tries import FORM

SEED = 20261201
LOSSES = 40 if FORM == "long" else 3
FAILPOINTS = ("tiers.announced", "tiers.sent", "tiers.copied", "tiers.state_copied", "tiers.deleted")
RESTORE_FAILPOINTS = ("", "restore.own_topics", "restore.logs", "", "restore.snapshot")
PATIENCE_S = 60.0
TOPIC, GROUP = "kept", "readers"
GAP = 10_000_000
"""More offsets than a quick machine writes between two state copies."""


class Writer:
    """Writes numbered records, and knows the acknowledged number of each offset over all rounds."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._sent = 0
        self.numbers: dict[int, int] = {}
        self.aborted: set[int] = set()
        """The numbers of aborted records."""
        self._lost: set[int] = set()
        self.committed: set[int] = set()

    def write(self, broker: Failing, store: Path) -> None:
        """Write until the broker ends, or has copied some segments."""
        transactional = Producer({**self._settings(broker), "transactional.id": "writer"})
        plain = Producer(self._settings(broker))
        answered: list[object] = []
        consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": GROUP,
                "log_level": 0,
                "on_commit": lambda *answer: answered.append(answer),
            }
        )
        wanted = len(objects(store)) + self._rng.randrange(3, 12)
        until = time.monotonic() + PATIENCE_S
        with suppress(KafkaException):
            transactional.init_transactions(10)
            while broker.running and (broker.armed or len(objects(store)) < wanted) and time.monotonic() < until:
                for _ in range(10):
                    self._produce(plain, 10)
                transactional.begin_transaction()
                begin = self._sent + 1
                self._produce(transactional, 20)
                if self._rng.random() < 0.3:
                    transactional.abort_transaction(5)
                    self.aborted.update(range(begin, self._sent + 1))
                else:
                    transactional.commit_transaction(5)
                if self.numbers:
                    at = self._rng.choice(list(self.numbers))
                    self.committed.add(at)
                    # A synchronous commit has no deadline: it would wait for ever for a broker that has ended.
                    answered.clear()
                    consumer.commit(offsets=[TopicPartition(TOPIC, 0, at)], asynchronous=True)
                    answer_until = time.monotonic() + 5
                    while not answered and broker.running and time.monotonic() < answer_until:
                        consumer.poll(0.02)
        for each in (plain, transactional):
            each.purge()
            each.flush(1)
        consumer.close()

    def _settings(self, broker: Failing) -> dict[str, Any]:
        return {
            "bootstrap.servers": broker.bootstrap,
            "enable.idempotence": True,
            "batch.size": 9_000,
            "linger.ms": 5,
            "delivery.timeout.ms": 5_000,
            "log_level": 0,
        }

    def _produce(self, producer: Producer, count: int) -> None:
        for _ in range(count):
            self._sent += 1
            value = self._rng.randbytes(self._rng.randrange(1000))
            producer.produce(TOPIC, value, b"%d" % self._sent, on_delivery=self._delivered)
        producer.poll(0.01)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None:
            offset, number = message.offset(), int(message.key())
            assert offset not in self._lost, f"offset {offset} is used again"
            assert self.numbers.setdefault(offset, number) == number, f"offset {offset} has two records"

    def lose(self, remote_end: int) -> None:
        """Forget the records that only the lost disk had, but not their offsets."""
        self._lost |= {offset for offset in self.numbers if offset >= remote_end}
        self.numbers = {offset: number for offset, number in self.numbers.items() if offset < remote_end}


def read_all(broker: Failing, isolation: str) -> dict[int, int]:
    """Return the number at each offset."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "all",
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "isolation.level": isolation,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    found: dict[int, int] = {}
    while (message := consumer.poll(PATIENCE_S)) is not None and message.error() is None:
        assert message.offset() not in found
        found[message.offset()] = int(message.key() or b"-1")
    assert message is not None
    assert message.error().name() == "_PARTITION_EOF", message.error()
    consumer.close()
    return found


def restore(broker: Failing, store: Path, failpoint: str) -> int:
    """Restore a lost disk; return the end of the records in remote storage."""
    shutil.rmtree(broker.data_dir)
    command = [sys.executable, "-m", "kbroker", "log", "restore", str(broker.data_dir), "--from", f"file://{store}"]
    command += ["--gap", str(GAP), "--json"]
    if failpoint:
        killed = subprocess.run(command, env={**os.environ, VARIABLE: failpoint}, capture_output=True, check=False)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
    done = subprocess.run(command, capture_output=True, check=False, timeout=PATIENCE_S)
    assert (done.returncode, done.stderr) == (0, b"")
    (found,) = [each for each in json.loads(done.stdout)["partitions"] if each["topic"] == TOPIC]
    return int(found["remote_end"])


@pytest.mark.long
def test_each_offset_has_its_record_or_none_over_lost_disks(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    print(f"seed {SEED}, {LOSSES} lost disks")
    store = tmp_path / "store"
    store.mkdir()
    broker = Failing(tmp_path)
    broker.settings.update({**settings(store), "remote.storage.state.interval.ms": "1000"})
    broker.start()
    writer, ends = Writer(rng), Counter[str]()
    before = 0
    try:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(TOPIC, 1, 1, config=TIERED)])[TOPIC].result(30)
        until = time.monotonic() + PATIENCE_S
        while not any(TOPIC.encode() in path.read_bytes() for path in store.glob("broker-state/*/*/*")):
            assert time.monotonic() < until, "no state copy has the topic"
            time.sleep(0.05)
        for loss in range(LOSSES):
            writer.write(broker, store)
            ends[broker.armed.partition(":")[0] if not broker.running else "at a moment"] += 1
            broker.kill()
            check_store(broker.data_dir, store)
            remote_end = restore(broker, store, RESTORE_FAILPOINTS[loss % len(RESTORE_FAILPOINTS)])
            broker.come_back()
            found = read_all(broker, "read_uncommitted")
            writer.lose(remote_end)
            assert not writer.aborted.intersection(read_all(broker, "read_committed").values())
            assert found.items() >= writer.numbers.items()
            assert len(found) >= before  # a broker that ends early has copied nothing in this round
            before = len(found)
            assert all(offset < remote_end for offset in found), "the other records were on the lost disk"
            consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": GROUP, "log_level": 0})
            (at,) = consumer.committed([TopicPartition(TOPIC, 0)], timeout=PATIENCE_S)
            consumer.close()
            assert at.offset in {*writer.committed, -1001}
            broker.kill()
            broker.come_back(f"{FAILPOINTS[loss % len(FAILPOINTS)]}:{rng.choice((1, 2, 3))}" if loss % 6 < 5 else "")
        assert before > 20 * LOSSES
        log = broker.log_tail(400)
    finally:
        broker.stop()
    figure(f"{sum(ends.values())} lost disks", f"{before} records in {len(objects(store))} objects, {dict(ends)}")
    assert "Traceback" not in log, log
