"""The controller: what it refuses, what it stores, whom it notifies."""

from __future__ import annotations

import tempfile

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kbroker.cluster_state import BrokerEndpoint, TopicState
from kbroker.controller import controller as module
from kbroker.controller.controller import Controller
from kbroker.controller.embedded_store import EmbeddedStore
from kbroker.controller.features import BOOTSTRAP, UNRECORDED
from kbroker.controller.store_interface import Put
from kbroker.controller.topic_plans import InternalTopic, TopicDefaults
from kbroker.long_work import whole
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.topic_names import topic_name_fault
from tests.tries import tries

DEFAULTS = TopicDefaults(3, 1, {"__consumer_offsets": InternalTopic(4, 1, {"cleanup.policy": "compact"})})


@pytest.fixture
def directory(tmp_path):
    return str(tmp_path)


def controller_in(directory):
    controller = Controller(EmbeddedStore(directory), "cluster", DEFAULTS)
    controller.register_broker(BrokerEndpoint(1, "localhost", 9092))
    return controller


def code_of(call, *args):
    with pytest.raises(ApiError) as caught:
        call(*args)
    return caught.value.code


def test_topics_survive_a_restart(directory):
    controller = controller_in(directory)
    controller.put_topics([controller.plan_topic("a", 2, 1, None, {"retention.ms": "5"})])
    controller.put_topics([controller.plan_topic("b", -1, -1)])
    controller.put_topics([controller.plan_growth("a", 4, None)])
    before = controller.state
    controller._store.close()
    after = controller_in(directory).state
    assert after.topics == before.topics
    assert after.topic_names == before.topic_names
    assert len(after.topics["a"].partitions) == 4
    assert dict(after.topics["a"].configs) == {"retention.ms": "5"}


def test_topics_grow_from_what_they_are_when_it_is_their_turn(directory):
    controller = controller_in(directory)
    controller.put_topics([controller.plan_topic(name, 1, 1) for name in ("a", "b", "c", "d")])
    plans = [controller.plan_growth(name, 3, None) for name in ("a", "b", "c", "d")]
    controller.lose_replicas(1, [("a", 0)])
    controller.put_topics([controller.plan_growth("b", 3, None)])
    controller.delete_topics(["c", "d"])
    controller.put_topics([controller.plan_topic("d", 1, 1)])
    refused = whole(controller.grow_in_pieces(plans))
    assert {name: error.code for name, error in refused.items()} == {
        "b": ErrorCode.INVALID_PARTITIONS,
        "c": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "d": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    topics = controller.state.topics
    assert [each.leader for each in topics["a"].partitions] == [-1, 1, 1], "what has changed meanwhile stays"
    assert (len(topics["b"].partitions), len(topics["d"].partitions)) == (3, 1)


def test_a_deleted_topic_is_gone_with_its_configs_and_its_id(directory):
    controller = controller_in(directory)
    controller.put_topics([controller.plan_topic("a", 1, 1, None, {"retention.ms": "5"})])
    old = controller.state.topics["a"].topic_id
    controller.delete_topics(["a"])
    assert old not in controller.state.topic_names
    controller.put_topics([controller.plan_topic("a", 1, 1)])
    assert controller.state.topics["a"].topic_id != old
    controller._store.close()
    assert dict(controller_in(directory).state.topics["a"].configs) == {}


def test_what_cannot_be_created(directory):
    controller = controller_in(directory)
    controller.put_topics([controller.plan_topic("a.b", 1, 1)])
    plan = controller.plan_topic
    assert code_of(plan, "a.b", 1, 1) == ErrorCode.TOPIC_ALREADY_EXISTS
    assert code_of(plan, "a_b", 1, 1) == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert code_of(plan, "x", 0, 1) == ErrorCode.INVALID_PARTITIONS
    assert code_of(plan, "x", 1, 0) == ErrorCode.INVALID_REPLICATION_FACTOR
    assert code_of(plan, "x", 1, 2) == ErrorCode.INVALID_REPLICATION_FACTOR
    assert code_of(plan, "x", -1, -1, {0: [2]}) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert code_of(plan, "x", 1, -1, {0: [1]}) == ErrorCode.INVALID_REQUEST
    assert code_of(controller.plan_growth, "none", 2, None) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert code_of(controller.plan_growth, "a.b", 1, None) == ErrorCode.INVALID_PARTITIONS


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "é", "x" * 250])
def test_bad_names(name):
    assert topic_name_fault(name) is not None


def test_listeners_hear_of_every_change_once(directory):
    controller = controller_in(directory)
    heard = []
    controller.subscribe(lambda old, new: heard.append((old.version, new.version)))
    controller.put_topics([controller.plan_topic("a", 1, 1), controller.plan_topic("b", 1, 1)])
    controller.set_configs("topics", "a", {"retention.ms": "1"})
    controller.set_configs("brokers", "", {"log.retention.ms": "1"})
    controller.delete_topics(["a"])
    assert len(heard) == 4
    assert all(old < new for old, new in heard)


def test_producer_ids_are_never_handed_out_twice(directory):
    controller = controller_in(directory)
    first = controller.allocate_producer_ids(1000)
    controller._store.close()
    second = controller_in(directory).allocate_producer_ids(1000)
    assert second >= first + 1000


def test_epochs_grow_after_a_crash(directory):
    controller = controller_in(directory)
    controller.put_topics([controller.plan_topic("a", 2, 1)])
    controller.bump_leader_epochs()
    controller._store.close()
    state = controller_in(directory).state
    assert [p.leader_epoch for p in state.topics["a"].partitions] == [1, 1]


def test_an_internal_topic_is_created_as_it_needs_to_be(directory):
    controller = controller_in(directory)
    controller.auto_create("__consumer_offsets")
    topic = controller.state.topics["__consumer_offsets"]
    assert len(topic.partitions) == 4
    assert dict(topic.configs) == {"cleanup.policy": "compact"}


def test_only_a_new_cluster_begins_with_a_config(tmp_path):
    controller = controller_in(str(tmp_path))
    controller.begin_cluster(2)
    assert controller.state.broker_configs == {"": {"min.insync.replicas": "2"}}
    controller.set_configs("brokers", "", {})
    again = controller_in(str(tmp_path))
    again.begin_cluster(2)
    assert again.state.broker_configs == {}


def test_a_new_cluster_records_its_feature_levels(tmp_path):
    """Otherwise a later version, with other default levels, would raise those of an old directory unasked."""
    controller_in(str(tmp_path)).begin_cluster(1)
    store = EmbeddedStore(str(tmp_path))
    assert store.get("/feature").value["features"] == BOOTSTRAP
    store.close()


def test_a_directory_without_recorded_levels_keeps_those_of_its_time(tmp_path):
    controller = controller_in(str(tmp_path))
    controller.set_configs("brokers", "", {"min.insync.replicas": "1"})
    again = controller_in(str(tmp_path))
    again.begin_cluster(1)
    assert again.state.features == UNRECORDED


HOSTILE = [
    "a/b",
    "/",
    "//",
    "a//b",
    "../x",
    ".",
    "..",
    "<default>",
    "%2F",
    "%",
    "%25",
    "%2E",
    "a%2fb",
    "\0",
    "é/ü",
    "\ud800",
    " ",
]


@settings(max_examples=tries(60))
@given(st.sets(st.text(min_size=1) | st.sampled_from(HOSTILE), min_size=1, max_size=8))
@example(set(HOSTILE))
def test_configs_of_groups_of_any_name_survive_a_restart(names):
    with tempfile.TemporaryDirectory() as directory:
        controller = controller_in(directory)
        for number, name in enumerate(sorted(names)):
            controller.set_configs("groups", name, {"consumer.session.timeout.ms": str(number)})
        controller.set_configs("brokers", "", {"log.retention.ms": "1"})
        before = controller.state
        assert before.group_configs.keys() == names
        controller._store.close()
        controller = controller_in(directory)
        assert controller.state.group_configs == before.group_configs
        assert controller.state.broker_configs == {"": {"log.retention.ms": "1"}}
        gone = min(names)
        controller.set_configs("groups", gone, {})
        controller._store.close()
        controller = controller_in(directory)
        assert controller.state.group_configs.keys() == names - {gone}
        controller._store.close()


@pytest.mark.parametrize("name", ["g", "a%b", "100%", "<default>", ".", "a b"])
def test_configs_of_groups_that_were_stored_as_they_are_named_are_still_read(directory, name):
    store = EmbeddedStore(directory)
    store.write([Put(f"/config/groups/{name}", {"version": 1, "config": {"consumer.session.timeout.ms": "1"}})])
    controller = Controller(store, "cluster", DEFAULTS)
    assert controller.state.group_configs == {name: {"consumer.session.timeout.ms": "1"}}
    controller.set_configs("groups", name, {"consumer.session.timeout.ms": "2"})
    store.close()
    controller = controller_in(directory)
    assert controller.state.group_configs == {name: {"consumer.session.timeout.ms": "2"}}
    controller.set_configs("groups", name, {})
    controller._store.close()
    assert controller_in(directory).state.group_configs == {}


def test_a_topic_is_copied_once_however_many_of_its_partitions_are_lost(directory, monkeypatch):
    controller = controller_in(directory)
    controller.put_topics([controller.plan_topic("a", 50, 1), controller.plan_topic("b", 1, 1)])
    copied = []
    plain = module.replace

    def counted(value, **changes):
        copied.append(type(value))
        return plain(value, **changes)

    monkeypatch.setattr(module, "replace", counted)
    controller.lose_replicas(1, [*(("a", index) for index in range(40)), ("a", 3), ("b", 0), ("c", 0), ("a", 50)])
    assert copied.count(TopicState) == 2
    led = [partition.leader for partition in controller.state.topics["a"].partitions]
    assert led == [-1] * 40 + [1] * 10
    assert controller.state.topics["b"].partitions[0].leader == -1
    assert controller.state.topics["a"].partitions[3].offline == (1, 1), "named twice"
