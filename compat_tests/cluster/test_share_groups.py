"""Share groups on three processes of kbroker with a real ZooKeeper: Java's consumer, and kills of its brokers.

Java's application receives what it received from one Apache Kafka 4.4.0 (compat_tests/recorded). The brokers of Apache
Kafka 3.9 have no share groups.
"""

from __future__ import annotations

import random
import time

import pytest

from compat_tests.harness import recorded
from compat_tests.harness.clusters import Cluster
from compat_tests.harness.compare import compare, normalise, report
from compat_tests.share.scenarios import share_consumer
from compat_tests.wire.client import WireClient
from kbroker.protocol.messages.share_groups import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
)
from tests.crash.test_share_group import GROUP, TOPIC, Worker, prepare, produce
from tests.figures import figure
from tests.tries import FORM

SIDES = ("kbroker",)
SEED = 20261128
KILLS = 30
RECORDS = 20 * KILLS
DEADLINE_S = 900
DECLARED = "committed(3)"
"""The start offset of a share partition passes aborted records once they are found: see compat_tests/differences.py."""

pytestmark = [
    pytest.mark.java,
    pytest.mark.skipif(FORM != "long", reason="kills brokers for minutes: only with KBROKER_TESTS=long"),
]


def test_an_application_sees_what_it_sees_of_one_broker(cluster: Cluster) -> None:
    known = recorded.find("java-share", "share_consumer")
    assert known is not None
    seen = normalise(share_consumer(cluster.bootstrap, "java-share-share-consumer"), cluster.bootstrap)
    found = compare(known, recorded.shifted(seen))
    found.pop(DECLARED, None)
    assert not found, report(found)


def lag(cluster: Cluster) -> int:
    """Return how many records are neither accepted nor archived; -1 while no broker can answer."""
    topics = [DescribeShareGroupOffsetsRequestTopic(TOPIC, [0, 1])]
    request = DescribeShareGroupOffsetsRequest([DescribeShareGroupOffsetsRequestGroup(GROUP, topics)])
    for node_id in cluster.serving:
        with WireClient(cluster.address(node_id)) as client:
            (group,) = client.ask(request, 1).groups
        if not group.error_code:
            partitions = group.topics[0].partitions
            if not any(each.error_code or each.lag < 0 for each in partitions):
                return sum(each.lag for each in partitions)
    return -1


def test_what_was_accepted_never_comes_again_while_brokers_are_killed(cluster: Cluster) -> None:
    rng = random.Random(SEED)
    print(f"seed {SEED}, {KILLS} kills")
    prepare(cluster.bootstrap)
    produce(cluster.bootstrap, range(RECORDS))
    worker = Worker(cluster.bootstrap, rng)
    kills = 0
    deadline = time.monotonic() + DEADLINE_S
    try:
        while kills < KILLS or lag(cluster) != 0:
            assert time.monotonic() < deadline, (worker.done, worker.deliveries, kills)
            if kills < KILLS:
                victim = rng.choice(cluster.serving)
                worker.work(lambda: cluster.kill(victim))  # noqa: B023 - called at once
                cluster.start(victim)
                cluster.wait_until_in_sync()
                kills += 1
            else:
                worker.work()
    finally:
        worker.consumer.close()
    seen = f"{len(worker.accepted)} accepted, {len(worker.unanswered)} cut off, {worker.deliveries} deliveries"
    figure(f"{kills} kills of cluster members under a share group, seed {SEED}", seen)
    assert worker.done == RECORDS, "nothing was given up"
    assert worker.again == []
