"""A schedule topic in a cluster of three: whoever leads, each record fires once, and none before its time."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter

import pytest

from kbroker import Cluster
from tests.figures import figure
from tests.scheduling.load import PARTITIONS, PATIENCE_S, SCHEDULED, SOURCE, TARGET, Scheduling, arrived, judge
from tests.tries import FORM

FAST = {"replica.fetch.backoff.ms": 100, "replica.lag.time.max.ms": 1500, "replica.fetch.wait.max.ms": 100}
FAULTS = 60 if FORM == "long" else 6


class Feeding(threading.Thread):
    """Produces until it is ended."""

    def __init__(self, load: Scheduling) -> None:
        super().__init__(daemon=True)
        self._load = load
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(0.02):
            self._load.produce(5)

    def end(self) -> None:
        self._over.set()
        self.join(PATIENCE_S)


def test_each_record_fires_once_over_fail_overs() -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    rng = random.Random(seed)
    counts: Counter[str] = Counter()
    with Cluster(brokers=3, config=FAST) as cluster:
        durable = {"min.insync.replicas": "2"}
        cluster.topics.create(TARGET, partitions=PARTITIONS, replication_factor=3, config=durable)
        cluster.topics.create(SOURCE, partitions=2, replication_factor=3, config={**SCHEDULED, **durable})
        load = Scheduling(cluster.bootstrap_servers, rng)
        feeding = Feeding(load)
        feeding.start()
        for _ in range(FAULTS):
            time.sleep(rng.uniform(0.3, 1.5))
            broker = rng.choice(list(cluster.brokers.values()))
            how = rng.choice(("kill", "stop", "expire_session"))
            counts[how] += 1
            getattr(broker, how)()
            if how != "expire_session":
                time.sleep(rng.uniform(0.1, 1.5))
                broker.start()
        feeding.end()
        assert load.producer.flush(PATIENCE_S) == 0
        assert not load.failed
        found = arrived(cluster.bootstrap_servers, len(load.acked - load.replaced))
        fired = judge(found, load)
    figure(f"{FAULTS} faults under a schedule topic, seed {seed}", f"{len(fired)} fired of {load.sent}, {dict(counts)}")


@pytest.mark.parametrize("min_isr", [1])
def test_the_next_leader_goes_on_at_once(min_isr: int) -> None:
    with Cluster(brokers=3, config=FAST) as cluster:
        config = {"min.insync.replicas": str(min_isr)}
        cluster.topics.create(TARGET, partitions=1, replication_factor=3, config=config)
        cluster.topics.create(SOURCE, partitions=1, replication_factor=3, config={**SCHEDULED, **config})
        topic = cluster.topics[SOURCE]
        for number in range(20):
            topic.produce(str(number), headers=[("x-deliver-after", "3000"), ("n", str(number))])
        known = next(iter(cluster.brokers.values())).node.member.state.partition(SOURCE, 0)
        assert known is not None
        cluster.brokers[known.leader].kill()
        found = arrived(cluster.bootstrap_servers, 20)
    assert sorted(int(each.value()) for each in found) == list(range(20))
    late = [each.timestamp()[1] - int(dict(each.headers())["__schedule.at"]) for each in found]
    assert min(late) >= 0
    assert max(late) < 5000
