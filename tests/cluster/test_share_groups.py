"""Share groups in a cluster: leader, group coordinator and share coordinator on different brokers, moved and killed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer, ShareConsumer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from compat_tests.wire.client import WireClient
from kbroker import Cluster
from kbroker.broker import share_persister
from kbroker.cluster_state import SHARE_STATE_TOPIC
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.groups import FindCoordinatorRequest
from kbroker.protocol.messages.share_groups import ShareGroupDescribeRequest
from kbroker.protocol.messages.topics import DeleteTopicsRequest, DeleteTopicState
from kbroker.share_coordinator.coordinator import coordinator_key
from kbroker.share_coordinator.persister import Change
from tests.share_partition.conversation import Member, acquired, partition_of
from tests.txn.raw import until

from .sharing import ACCEPT, GROUP, LEADER, RELEASE, SETTINGS, STATES, Sharing, codes, fetched


def done(sharing: Sharing) -> set[int]:
    """Return the offsets that are stored as acknowledged, or precede the stored start offset."""
    state = sharing.stored()
    assert state is not None
    stored = {at for each in state.batches if each.delivery_state == 2 for at in range(each[0], each[1] + 1)}
    return stored | set(range(state.start_offset))


def test_the_parts_on_three_brokers_work_together(sharing: Sharing) -> None:
    sharing.join()
    sharing.produce(10)
    with sharing.member(LEADER) as member:
        assert fetched(member, sharing.topic) == [(0, 9, 1)]
        assert codes(member, sharing.topic, 0, 4) == 0
        assert codes(member, sharing.topic, 5, 5, RELEASE) == 0
        assert sharing.described(0, 1, 2) == {0: (0, 5, 5), 1: (0, -1, -1), 2: (0, -1, -1)}
        assert fetched(member, sharing.topic) == [(5, 5, 2)]
        assert codes(member, sharing.topic, 5, 9) == 0
    assert sharing.lag() == 0
    until("the end of the session", lambda: sharing.hosted(LEADER) == 0)
    assert done(sharing) == set(range(10))
    topic = sharing.any_node().member.state.topics[SHARE_STATE_TOPIC]
    assert {len(each.replicas) for each in topic.partitions} == {3}
    assert topic.configs["min.insync.replicas"] == "2"


def test_every_broker_finds_the_share_coordinator(sharing: Sharing) -> None:
    request = FindCoordinatorRequest(key_type=2, coordinator_keys=[coordinator_key(sharing.place())])
    for broker in sharing.cluster.brokers.values():
        with WireClient(broker.bootstrap_servers) as client:
            (found,) = client.ask(request, 6).coordinators
        assert (found.error_code, found.node_id) == (0, STATES)


def test_the_leader_moves(sharing: Sharing) -> None:
    sharing.join()
    sharing.produce(10)
    with sharing.member(LEADER) as before, sharing.member(2) as after:
        assert fetched(before, sharing.topic) == [(0, 9, 1)]
        assert codes(before, sharing.topic, 0, 3) == 0
        sharing.move(sharing.topic, 0, [2, 1, 3])
        assert sharing.hosted(1) == 0
        told = before.fetch()
        partition = partition_of(told)
        assert partition.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert partition.current_leader.leader_id == 2
        assert [each.node_id for each in told.node_endpoints] == [2]
        assert codes(before, sharing.topic, 4, 4) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "as in Kafka"
        assert fetched(after, sharing.topic) == [(4, 9, 1)], "what was held is free, what was accepted is done"
        assert codes(after, sharing.topic, 4, 9) == 0
        sharing.move(sharing.topic, 0, [1, 2, 3])
        sharing.produce(1)
        assert fetched(before, sharing.topic) == [(10, 10, 1)]


def test_a_write_of_an_earlier_leader_is_refused(sharing: Sharing) -> None:
    sharing.join()
    sharing.produce(3)
    with sharing.member(LEADER) as before, sharing.member(2) as after:
        assert fetched(before, sharing.topic) == [(0, 2, 1)]
        node = sharing.cluster.brokers[LEADER].node
        old = node.services.share.get(sharing.group, sharing.topic_id, 0)
        assert old is not None
        sharing.move(sharing.topic, 0, [2, 1, 3])
        assert fetched(after, sharing.topic) == [(0, 2, 1)]
        place = sharing.group, sharing.topic_id, 0
        late = sharing.cluster.run(
            node.services.share.persister.write(*place, Change(10**6, old.leader_epoch, 3, 0, []))
        )
        assert late.error_code == ErrorCode.FENCED_LEADER_EPOCH
        assert codes(after, sharing.topic, 0, 2) == 0


@pytest.mark.parametrize("killed", [LEADER, GROUP, STATES])
def test_a_broker_is_killed(sharing: Sharing, killed: int) -> None:
    sharing.join()
    sharing.produce(10)
    with sharing.member(LEADER) as member:
        assert fetched(member, sharing.topic) == [(0, 9, 1)]
        assert codes(member, sharing.topic, 0, 4) == 0
        sharing.cluster.brokers[killed].kill()
        if killed != LEADER:
            assert codes(member, sharing.topic, 5, 5) == 0, "whoever has the state now"
            assert codes(member, sharing.topic, 6, 6, RELEASE) == 0
    leader = sharing.leader()
    with sharing.member(leader, "other") as other:
        left = set(range(5, 10) if killed == LEADER else range(6, 10))
        while left:
            for first, last, count in fetched(other, sharing.topic):
                assert count == (1 if killed == LEADER else 2), "what was only held is not known to another leader"
                assert set(range(first, last + 1)) <= left, "nothing that was accepted"
                assert codes(other, sharing.topic, first, last) == 0
                left -= set(range(first, last + 1))
        until("the group at its new coordinator", lambda: sharing.lag() == 0)
        sharing.join()
        sharing.cluster.brokers[killed].start()
        sharing.produce(1)
        assert fetched(other, sharing.topic) == [(10, 10, 1)]


def test_the_state_moves_to_each_broker_and_back(sharing: Sharing) -> None:
    sharing.join()
    sharing.produce(12)
    index = sharing.state_partition()
    with sharing.member(LEADER) as member:
        assert fetched(member, sharing.topic) == [(0, 11, 1)]
        for number, replicas in enumerate(([1, 2, 3], [2, 3, 1], [3, 1, 2])):
            assert codes(member, sharing.topic, number * 4 + 1, number * 4 + 2) == 0
            sharing.move(SHARE_STATE_TOPIC, index, list(replicas))
        assert codes(member, sharing.topic, 0, 0) == 0
    until("the end of the session", lambda: sharing.hosted(LEADER) == 0)
    assert done(sharing) == {0, 1, 2, 5, 6, 9, 10}


def test_without_enough_replicas_an_acknowledgement_is_refused_and_changes_nothing(
    sharing: Sharing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share_persister, "PAUSES_MS", (50, 100, 200))
    sharing.join()
    sharing.produce(2)
    brokers = sharing.cluster.brokers
    with sharing.member(LEADER) as member:
        assert fetched(member, sharing.topic) == [(0, 1, 1)]
        brokers[2].kill()
        brokers[3].kill()
        assert codes(member, sharing.topic, 0, 0) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        brokers[2].start()
        until("a member that may go on", lambda: codes(member, sharing.topic, 0, 1) == 0)
    until("what is stored", lambda: sharing.lag() == 0)


def test_what_is_known_of_a_deleted_topic_goes_everywhere(sharing: Sharing) -> None:
    sharing.join()
    sharing.produce(2)
    with sharing.member(LEADER) as member:
        assert fetched(member, sharing.topic) == [(0, 1, 1)]
        assert codes(member, sharing.topic, 0, 0) == 0
        active = next(each for each in sharing.cluster.brokers.values() if each.node.controller.is_active)
        with WireClient(active.bootstrap_servers) as client:
            request = DeleteTopicsRequest(topics=[DeleteTopicState(name=sharing.topic)], timeout_ms=10_000)
            assert not client.ask(request, 6).responses[0].error_code
        until("the deleted state", lambda: sharing.stored() is None)
        until("the end of the replica", lambda: sharing.hosted(LEADER) == 0)
        assert partition_of(member.fetch()).error_code == ErrorCode.UNKNOWN_TOPIC_ID

    async def nothing() -> bool:
        brokers = sharing.cluster.brokers.values()
        return not any(list(shard.states()) for broker in brokers for shard in broker.node.shares.loaded())

    until("nothing left", lambda: sharing.cluster.run(nothing()))


def test_configs_of_a_group_hold_on_every_broker(sharing: Sharing) -> None:
    sharing.join()
    sharing.set_config("share.delivery.count.limit", "2")
    sharing.set_config("share.record.lock.duration.ms", "20000")
    for node_id, index in ((1, 0), (2, 1), (3, 2)):
        sharing.produce(1, index=index)
        with sharing.member(node_id, f"m{node_id}") as member:
            place = (sharing.topic, index)
            for count in (1, 2):
                answer = until("records", lambda member=member, place=place: _with_records(member, place))
                assert acquired(answer) == [(0, 0, count)]
                assert answer.acquisition_lock_timeout_ms == 20_000
                assert not member.acknowledge({place: [(0, 0, [RELEASE])]}).error_code
            until("the archive", lambda index=index: sharing.lag(index) == 0)


def _with_records(member: Member, place: tuple[str, int]) -> Any:
    answer = member.fetch(place, wait_ms=500)
    return answer if answer.responses and acquired(answer) else None


def test_members_are_described_wherever_the_coordinator_is(sharing: Sharing) -> None:
    sharing.join("a")
    described: Callable[[], Any] = lambda: _described(sharing)  # noqa: E731
    assert [each.member_id for each in described().members] == ["a"]
    sharing.cluster.brokers[GROUP].stop()
    group = until("the group elsewhere", described)
    assert [each.member_id for each in group.members] == ["a"]
    assert [each.topic_name for each in group.members[0].assignment.topic_partitions] == [sharing.topic]


def _described(sharing: Sharing) -> Any:
    with WireClient(sharing.cluster.brokers[sharing.group_at()].bootstrap_servers) as client:
        (group,) = client.ask(ShareGroupDescribeRequest(group_ids=[sharing.group]), 1).groups
    return None if group.error_code else group


def begin_at_the_earliest(admin: AdminClient, group: str) -> None:
    wanted = {"share.auto.offset.reset": "earliest", "share.delivery.count.limit": "10"}
    changes = [ConfigEntry(*each, incremental_operation=AlterConfigOpType.SET) for each in wanted.items()]
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=changes)
    admin.incremental_alter_configs([resource])[resource].result(30)


def test_consumers_go_on_while_each_broker_stops_in_turn() -> None:
    records, at_once = 400, 80
    with Cluster(brokers=3, config=SETTINGS) as cluster:
        client = {"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0}
        admin = AdminClient(client)
        admin.create_topics([NewTopic("jobs", 3, 3)])["jobs"].result(30)
        begin_at_the_earliest(admin, "workers")
        producer = Producer({**client, "batch.num.messages": 5})
        for number in range(records):
            producer.produce("jobs", str(number), partition=number % 3)
        assert producer.flush(30) == 0
        settings = {"group.id": "workers", "share.acknowledgement.mode": "explicit", "reconnect.backoff.max.ms": 200}
        consumer = ShareConsumer({**client, **settings})
        consumer.subscribe(["jobs"])
        answered: set[tuple[int, int]] = set()
        unanswered: set[tuple[int, int]] = set()
        again = []
        stops = [1, 2, 3]

        def worked() -> bool:
            messages = [each for each in consumer.poll(0.5) if each.error() is None]
            again.extend(each for each in messages if (each.partition(), each.offset()) in answered)
            accepted, released = messages[:at_once], messages[at_once:]
            for message in accepted:
                consumer.acknowledge(message, ACCEPT)
            for message in released:
                consumer.acknowledge(message, RELEASE)
            answers = consumer.commit_sync(30.0) if messages else {}
            stored = {each.partition for each, error in answers.items() if error is None}
            for place in [(each.partition(), each.offset()) for each in accepted]:
                (answered if place[0] in stored else unanswered).add(place)
            if stops and messages:
                cluster.brokers[stops[0]].stop()
                cluster.brokers[stops.pop(0)].start()
            return len(answered | unanswered) == records

        until("all records", worked)
        consumer.close()
        assert not again
        assert not stops
