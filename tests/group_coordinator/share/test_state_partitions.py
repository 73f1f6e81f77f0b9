"""The share partitions that a group has used: altered, deleted, removed with their topic or their group."""

from __future__ import annotations

import pytest

from kbroker.group_coordinator.groups.share_group import StatePartitions, UsedTopic
from kbroker.group_coordinator.share.state_partitions import Deletion, Initialization
from kbroker.protocol.errors import ErrorCode

from .context import ShareContext

E = ErrorCode


@pytest.fixture
def context():
    """Return an empty group that has used both partitions of `t`."""
    context = ShareContext()
    context.create("t", 2)
    context.share_beat("a", 0, "t")
    context.initialise()
    context.share_beat("a", -1)
    return context


def test_an_alteration_begins_an_initialisation(context):
    t, u = context.topics.id_of("t"), context.create("u", 1)
    wanted = context.share_state(lambda state: state.alter("g", {t: {0: 5}, u: {0: 7}}))
    assert wanted == Initialization("g", context.share_group().epoch, {t: {0: 5}, u: {0: 7}})
    held = context.share_group().state_partitions
    assert held.initializing == {t: UsedTopic("t", frozenset({0})), u: UsedTopic("u", frozenset({0}))}
    context.share_state(lambda state: state.initialized("g", {t: [0], u: [0]}))
    held = context.share_group().state_partitions
    assert held == StatePartitions({}, {t: UsedTopic("t", frozenset({0, 1})), u: UsedTopic("u", frozenset({0}))})


def test_an_alteration_makes_a_group(context):
    t = context.topics.id_of("t")
    context.share_state(lambda state: state.alter("new", {t: {0: 5}}))
    assert context.share_group("new").is_empty


def test_groups_with_members_keep_their_offsets(context):
    t = context.topics.id_of("t")
    context.share_beat("a", 0, "t")
    assert context.share_state(lambda state: state.alter("g", {t: {0: 5}})) is E.NON_EMPTY_GROUP
    assert context.share_state(lambda state: state.delete_offsets("g", ["t"])) is E.NON_EMPTY_GROUP
    assert context.share_state(lambda state: state.delete_groups(["g"])) == {"g": E.NON_EMPTY_GROUP}


def test_offsets_are_deleted_in_two_steps(context):
    t, _ = context.topics.id_of("t"), context.create("u", 1)
    found = context.share_state(lambda state: state.delete_offsets("g", ["t", "u", "v"]))
    assert found.topics == {t: [0, 1]}
    assert [(each.topic_name, each.error_code) for each in found.refused] == [
        ("u", E.UNKNOWN_TOPIC_OR_PARTITION), ("v", E.UNKNOWN_TOPIC_OR_PARTITION),
    ]  # fmt: skip
    assert found.refused[0].error_message == "There is no offset information to delete."
    assert context.share_group().state_partitions == StatePartitions(deleting={t: "t"})
    again = context.share_state(lambda state: state.delete_offsets("g", ["t"]))
    assert again.topics == {t: [0, 1]}, "a deletion that did not end is tried again"
    context.share_state(lambda state: state.offsets_deleted("g", [t]))
    assert context.share_group().state_partitions == StatePartitions()
    context.share_beat("a", 0, "t")
    assert context.wanted[-1].offsets == {t: {0: -1, 1: -1}}


def test_a_member_that_comes_back_takes_a_topic_out_of_deletion(context):
    t = context.topics.id_of("t")
    context.share_state(lambda state: state.delete_offsets("g", ["t"]))
    context.share_beat("a", 0, "t")
    held = context.share_group().state_partitions
    assert (set(held.initializing), set(held.deleting)) == ({t}, set())


def test_a_deleted_group_names_all_its_states(context):
    t, u = context.topics.id_of("t"), context.create("u", 2)
    context.share_state(lambda state: state.alter("g", {u: {1: 0}}))
    found = context.share_state(lambda state: state.delete_groups(["g", "unknown"]))
    assert found == {"g": Deletion("g", {t: [0, 1], u: [1]})}
    assert context.share_group().state_partitions.deleting == {t: "t", u: "u"}
    (result,) = context.ask(lambda shard, _now: shard.delete_groups(["g"]))
    assert result.error_code == E.NONE
    assert context.shard.groups.get("g") is None
    assert context.restarted().shard.groups.get("g") is None


def test_a_group_can_be_deleted_after_its_topics(context):
    context.delete("t")
    assert context.share_state(lambda state: state.delete_groups(["g"])) == {}
    (result,) = context.ask(lambda shard, _now: shard.delete_groups(["g"]))
    assert result.error_code == E.NONE


def test_a_deleted_topic_is_forgotten_by_every_group():
    context = ShareContext()
    t = context.create("t", 1)
    u = context.create("u", 1)
    for number in range(120):
        context.share_state(lambda state, number=number: state.alter(f"g{number}", {t: {0: 0}, u: {0: 0}}))
    context.delete("t")
    context.share_state(lambda state: state.on_topics_deleted([t]))
    context.advance(1_000)
    for group in context.shard.groups.shares():
        assert group.state_partitions.topic_ids() == {u}


def test_deleted_topics_are_not_noted_where_there_are_no_share_groups():
    context = ShareContext()
    for number in range(3):
        context.share_state(lambda state, number=number: state.on_topics_deleted([bytes([number]) * 16]))
    assert not context.shard.share_state._deleted


def test_a_topic_that_is_deleted_while_it_is_initialised_leaves_nothing():
    context = ShareContext()
    t = context.create("t", 1)
    context.share_beat("a", 0, "t")
    context.delete("t")
    context.share_state(lambda state: state.on_topics_deleted([t]))
    context.initialise()
    assert context.share_group().state_partitions == StatePartitions()


def test_an_initialisation_that_was_cut_off_by_a_move_of_the_coordinator_begins_where_it_would_have():
    context = ShareContext()
    t = context.create("t", 2)
    context.share_beat("a", 0, "t")
    assert context.wanted[-1].offsets == {t: {0: -1, 1: -1}}
    moved = context.restarted()
    moved.create("t", 3)
    moved.advance(31_000)
    moved.wanted = []
    moved.share_beat("b", 0, "t")
    assert moved.wanted[-1].offsets == {t: {0: -1, 1: -1, 2: 0}}, "the third partition is newer than the group"


def test_results_for_a_group_that_is_gone_are_ignored(context):
    t = context.topics.id_of("t")
    records = len(context.log)
    for decide in (
        lambda state: state.initialized("gone", {t: [0]}),
        lambda state: state.not_initialized("gone", {t: [0]}),
        lambda state: state.offsets_deleted("gone", [t]),
    ):
        context.share_state(decide)
    assert len(context.log) == records


def test_groups_of_other_types_are_not_deleted_here(context):
    assert context.share_state(lambda state: state.delete_offsets("unknown", ["t"])) is E.GROUP_ID_NOT_FOUND
    context.beat("c", 0, group="c", owned=set(), subscribed_topic_names=["t"], rebalance_timeout_ms=60_000)
    t = context.topics.id_of("t")
    assert context.share_state(lambda state: state.alter("c", {t: {0: 0}})) is E.GROUP_ID_NOT_FOUND
    assert context.share_state(lambda state: state.delete_groups(["c"])) == {}
