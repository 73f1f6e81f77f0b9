"""How UpdateMetadata changes the state that a broker knows."""

from __future__ import annotations

from kbroker.cluster_state import ClusterState
from kbroker.controller.member.metadata_cache import LEADER_DURING_DELETE, updated
from kbroker.long_work import whole
from kbroker.protocol.messages.inter_broker import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from tests.turns import turns

FIRST, SECOND = bytes(15) + b"\x07", bytes(15) + b"\x08"
EMPTY = ClusterState("cluster")


def partition(index, leader=1, epoch=0, isr=(1, 2), version=0):
    return UpdateMetadataPartitionState(
        partition_index=index,
        controller_epoch=1,
        leader=leader,
        leader_epoch=epoch,
        isr=list(isr),
        zk_version=version,
        replicas=[1, 2],
        offline_replicas=[],
    )


def topic(name, topic_id, *partitions):
    return UpdateMetadataTopicState(topic_name=name, topic_id=topic_id, partition_states=list(partitions))


def broker(number):
    endpoint = UpdateMetadataEndpoint(port=9090 + number, host="h", listener="PLAINTEXT", security_protocol=0)
    return UpdateMetadataBroker(id=number, endpoints=[endpoint], rack=f"r{number}")


def after(state, *topics, brokers=(1, 2), controller=1, configs=None):
    request = UpdateMetadataRequest(
        controller_id=controller,
        controller_epoch=1,
        topic_states=list(topics),
        live_brokers=[broker(number) for number in brokers],
    )
    return whole(updated(state, request, lambda name: (configs or {}).get(name, {})))


def test_brokers_replace_those_that_were_known():
    state = after(after(EMPTY), brokers=(2,), controller=2)
    assert list(state.brokers) == [2]
    assert state.brokers[2].by("PLAINTEXT").port == 9092
    assert state.brokers[2].rack == "r2"
    assert state.controller_id == 2


def test_partitions_are_merged_into_what_was_known():
    state = after(EMPTY, topic("t", FIRST, partition(0), partition(1)), configs={"t": {"retention.ms": "5"}})
    state = after(state, topic("t", FIRST, partition(1, leader=2, epoch=3, version=4)))
    first, second = state.topics["t"].partitions
    assert (first.leader, first.leader_epoch) == (1, 0)
    assert (second.leader, second.leader_epoch, second.partition_epoch, second.isr) == (2, 3, 4, (1, 2))
    assert state.topics["t"].configs == {"retention.ms": "5"}
    assert state.topic_names == {FIRST: "t"}


def test_brokers_alone_leave_the_topics_as_they_are():
    before = after(EMPTY, topic("t", FIRST, partition(0)))
    state = after(before, brokers=(1,))
    assert state.topics is before.topics


def test_a_topic_is_gone_with_its_last_partition():
    state = after(EMPTY, topic("t", FIRST, partition(0), partition(1)), topic("u", SECOND, partition(0)))
    state = after(state, topic("t", FIRST, partition(1, leader=LEADER_DURING_DELETE)))
    assert [each.leader for each in state.topics["t"].partitions] == [1, -1]
    state = after(state, topic("t", FIRST, partition(0, leader=LEADER_DURING_DELETE)))
    assert list(state.topics) == ["u"]
    assert state.topic_names == {SECOND: "u"}


def test_a_topic_that_is_made_anew_has_its_new_id_alone():
    state = after(EMPTY, topic("t", FIRST, partition(0)))
    state = after(state, topic("t", SECOND, partition(0)))
    assert state.topic_names == {SECOND: "t"}


def test_a_partition_that_is_told_before_those_below_it():
    state = after(EMPTY, topic("t", FIRST, partition(2)))
    assert [each.leader for each in state.topics["t"].partitions] == [-1, -1, 1]
    assert state.partition("t", 0).replicas == ()


def test_no_controller():
    assert after(EMPTY, controller=-2).controller_id == -1


def test_what_cannot_be_a_partition_is_passed_over():
    state = after(EMPTY, topic("t", FIRST, partition(0), partition(1)))
    state = after(state, topic("t", FIRST, partition(-1, leader=2), partition(2_000_000_000), partition(2)))
    assert [each.leader for each in state.topics["t"].partitions] == [1, 1, 1]


def test_what_one_request_adds_is_bounded():
    many = [topic(f"t{number}", bytes(14) + number.to_bytes(2), partition(400_000)) for number in range(9)]
    state = after(EMPTY, *many)
    assert len(state.topics) == 2


def test_a_request_is_taken_over_in_pieces():
    endpoint = UpdateMetadataEndpoint(port=1, host="h", listener="L", security_protocol=0)
    brokers = [UpdateMetadataBroker(id=number, endpoints=[endpoint] * 3) for number in range(100)]
    request = UpdateMetadataRequest(controller_id=1, controller_epoch=1, topic_states=[], live_brokers=brokers)
    assert sum(1 for _ in turns(updated(EMPTY, request, lambda _: {}))) >= 400


def test_topics_of_names_that_none_may_have_are_passed_over():
    names = ("../evil", "..", "", "a/b", "new\nline", "x" * 250)
    state = after(EMPTY, *(topic(name, FIRST, partition(0)) for name in names), topic("good", SECOND, partition(0)))
    assert list(state.topics) == ["good"]
    assert state.topic_names == {SECOND: "good"}
