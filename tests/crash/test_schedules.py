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

from confluent_kafka.admin import AdminClient, NewTopic

from compat_tests.harness.brokers import BrokerFailed
from kbroker.failpoints import VARIABLE
from tests.crash.test_kill import FixedPort
from tests.figures import figure
from tests.scheduling.load import PARTITIONS, PATIENCE_S, SCHEDULED, SOURCE, TARGET, Scheduling, arrived, judge
from tests.tries import FORM

SEED = 20261129
KILLS = 100 if FORM == "long" else 6
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
