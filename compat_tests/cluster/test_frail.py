"""What Kafka promises for unclean and clean elections, for a cut or slow network, and for full disks.

The tests that kill the leader and the controller, restart brokers in turn, and end all brokers together are in
test_replication.py.
"""

from __future__ import annotations

import pytest

from compat_tests.cluster.tools import Frail, create, create_led_by, numbered, producer, read_all, send, streaming
from compat_tests.harness.clusters import Cluster
from compat_tests.harness.network import ZOOKEEPER
from compat_tests.wire.client import WireClient
from compat_tests.wire.exchanges.produce import batch
from compat_tests.wire.exchanges.produce import request as produce_request

pytestmark = [pytest.mark.java, pytest.mark.long]

HASTY_MS = 3000
"""Who gives up sooner than what is waited for in vain."""
SLOW_BYTES_PER_SECOND = 1000


def leave_alone(cluster: Cluster, topic: str, before: list[bytes], alone: list[bytes]) -> int:
    """Write some records to all replicas of a partition, and more to its leader only; then restart the other replicas.

    Returns the leader, which is dead.
    """
    assert send(producer(cluster), topic, before).acknowledged == before
    leader = cluster.wait_for_leader(topic, 0)
    for node_id in cluster.others(leader):
        cluster.kill(node_id)
    cluster.wait_for_isr(topic, 0, {leader})
    assert send(producer(cluster), topic, alone).acknowledged == alone
    cluster.kill(leader)
    for node_id in cluster.others(leader):
        cluster.start(node_id)
    return leader


def test_without_unclean_election_nobody_leads_until_the_last_in_sync_is_back(frail: Frail, name: str) -> None:
    cluster = frail.cluster
    topic = create(cluster, name, min_isr=1)
    before, alone, after = numbered("before", 20), numbered("alone", 20), numbered("after", 20)
    leader = leave_alone(cluster, topic, before, alone)

    def nobody_leads() -> bool:
        found = [cluster.partition(topic, 0, of=each) for each in cluster.others(leader)]
        return all(each is not None and each.leader_id == -1 for each in found)

    cluster.wait_for("nobody to lead", nobody_leads)
    hasty = producer(cluster, delivery_timeout_ms=HASTY_MS, request_timeout_ms=HASTY_MS - 500)
    assert send(hasty, topic, [b"refused"]).acknowledged == []
    assert nobody_leads()
    cluster.start(leader)
    assert cluster.wait_for_leader(topic, 0) == leader
    assert send(producer(cluster), topic, after).acknowledged == after
    assert read_all(cluster, topic) == before + alone + after


def test_an_unclean_election_goes_on_with_what_is_left(frail: Frail, name: str) -> None:
    cluster = frail.cluster
    topic = create(cluster, name, min_isr=1, unclean_leader_election_enable="true")
    before, alone, after = numbered("before", 20), numbered("alone", 20), numbered("after", 20)
    leader = leave_alone(cluster, topic, before, alone)
    other = cluster.wait_for_leader(topic, 0, other_than=leader)
    assert send(producer(cluster), topic, after).acknowledged == after
    cluster.start(leader)
    # The records that only the old leader had are lost, and it truncates its log there.
    cluster.wait_for_isr(topic, 0, cluster.node_ids)
    assert cluster.leader_of(topic, 0) == other
    assert read_all(cluster, topic) == before + after


def test_a_broker_cut_off_from_zookeeper_acknowledges_nothing_alone(frail: Frail, name: str) -> None:
    cluster, network = frail.cluster, frail.network
    controller = cluster.wait_for_controller()
    leader = cluster.others(controller)[0]
    topic = create_led_by(cluster, leader, name)
    before, after = numbered("before", 20), numbered("after", 20)
    assert send(producer(cluster), topic, before).acknowledged == before
    network.cut((leader, ZOOKEEPER), (ZOOKEEPER, leader))

    def is_replaced() -> bool:
        found = cluster.partition(topic, 0, of=controller)
        return found is not None and found.leader_id not in (-1, leader) and leader not in found.isr_nodes

    cluster.wait_for(f"another leader than {leader}, which goes on", is_replaced)
    # The old leader still believes that it leads, but nobody follows it any more. (A Kafka client would also ask other
    # brokers, and find the new leader.)
    with WireClient(cluster.address(leader)) as deceived:
        answer = deceived.ask(produce_request(topic, batch(20)), 9)
    assert answer.responses[0].partition_responses[0].error_code != 0
    informed = producer(cluster, bootstrap_servers=cluster.address(controller), enable_idempotence=True)
    assert send(informed, topic, after).acknowledged == after
    network.heal()

    def is_back() -> bool:
        found = [cluster.partition(topic, 0, of=each) for each in cluster.node_ids]
        return all(
            each is not None and each.leader_id not in (-1, leader) and set(each.isr_nodes) == set(cluster.node_ids)
            for each in found
        )

    cluster.wait_for(f"{leader} in sync behind another leader", is_back)
    assert read_all(cluster, topic) == before + after


def test_a_slow_follower_leaves_the_in_sync_replicas_and_comes_back(frail: Frail, name: str) -> None:
    cluster, network = frail.cluster, frail.network
    topic = create(cluster, name)
    leader = cluster.wait_for_leader(topic, 0)
    slow, fast = cluster.others(leader)
    with streaming(producer(cluster, enable_idempotence=True, linger_ms=2), topic, 1) as stream:
        stream.wait_for_more(cluster, 300)
        network.slow(SLOW_BYTES_PER_SECOND, (leader, slow))
        cluster.wait_for_isr(topic, 0, {leader, fast})
        # The broker is alive and receives everything, and acks=all continues without it.
        metadata = cluster.metadata(fast)
        assert metadata is not None
        assert {each.node_id for each in metadata.brokers} == set(cluster.node_ids)
        stream.wait_for_more(cluster, 1000)
        assert cluster.isr_of(topic, 0) == {leader, fast}
        network.heal()
        cluster.wait_for_isr(topic, 0, cluster.node_ids)
        stream.wait_for_more(cluster, 300)
    (sent,) = stream.sent
    assert sent.failed == []
    assert read_all(cluster, topic) == sent.acknowledged


def test_a_broker_with_a_full_disk_gives_its_leadership_up_and_comes_back(frail: Frail, name: str) -> None:
    if not frail.disks:
        pytest.skip("may not mount a tmpfs here")
    cluster = frail.cluster
    full = cluster.node_ids[-1]  # in a mixed cluster kbroker
    topic = create_led_by(cluster, full, name)
    with streaming(producer(cluster, enable_idempotence=True, linger_ms=2), topic, 1) as stream:
        stream.wait_for_more(cluster, 300)
        frail.disks[full].fill()
        cluster.wait_for_leader(topic, 0, other_than=full)
        stream.wait_for_more(cluster, 300)
        cluster.wait_for(f"the end of {full}, whose only disk is full", lambda: cluster.pid(full) is None)
        frail.disks[full].make_room()
        cluster.start(full)
        cluster.wait_for_isr(topic, 0, cluster.node_ids)
        stream.wait_for_more(cluster, 300)
    (sent,) = stream.sent
    assert sent.failed == []
    assert read_all(cluster, topic) == sent.acknowledged
