"""Share groups: joining, assignment of initialised partitions, epochs, sessions, limits, refusals, reloading."""

from __future__ import annotations

import pytest

from kbroker.group_coordinator.config import GroupConfig
from kbroker.protocol.errors import ErrorCode

from .context import ShareContext

E = ErrorCode


def joined(context, *members, topic="t"):
    """Let members join a group whose partitions are initialised; return their last responses."""
    for member in members:
        context.share_beat(member, 0, topic)
    context.initialise()
    return beaten(context, *members)


def beaten(context, *members, rounds=3):
    answers = {}
    for _ in range(rounds):
        for member in members:
            answers[member] = context.share_beat(member, context.share_group().members[member].member_epoch)
            assert answers[member].error_code == E.NONE
    return answers


def test_the_first_member_gets_the_partitions_once_they_are_initialised():
    context = ShareContext()
    t = context.create("t", 3)
    first = context.share_beat("a", 0, "t")
    assert (first.error_code, first.member_id, first.member_epoch) == (0, "a", 2)
    assert first.heartbeat_interval_ms == 5_000
    assert first.assignment.topic_partitions == []
    (wanted,) = context.wanted
    assert (wanted.group_id, wanted.state_epoch, wanted.offsets) == ("g", 2, {t: {0: -1, 1: -1, 2: -1}})
    again = context.share_beat("a", 2)
    assert again.assignment is None
    assert len(context.wanted) == 1, "an initialisation is wanted once"
    context.initialise()
    after = context.share_beat("a", 2)
    assert after.member_epoch == 3
    assert [(each.topic_id, each.partitions) for each in after.assignment.topic_partitions] == [(t, [0, 1, 2])]
    assert context.share_beat("a", 3).assignment is None
    assert not context.wanted


def test_members_share_and_keep_their_partitions():
    context = ShareContext()
    t = context.create("t", 4)
    joined(context, "a")
    assert context.held("a") == {t: {0, 1, 2, 3}}
    joined(context, "b")
    beaten(context, "a", "b")
    assert len(context.held("a")[t]) == len(context.held("b")[t]) == 2
    assert context.held("a")[t] | context.held("b")[t] == {0, 1, 2, 3}


def test_more_members_than_partitions_share_them():
    context = ShareContext()
    t = context.create("t", 1)
    joined(context, "a", "b", "c")
    assert {name: context.held(name) for name in "abc"} == {key: {t: {0}} for key in "abc"}


def test_a_topic_that_grows_begins_at_its_start_there():
    context = ShareContext()
    t = context.create("t", 1)
    joined(context, "a")
    context.create("t", 3)
    beaten(context, "a", rounds=1)
    (wanted,) = context.wanted
    assert wanted.offsets == {t: {1: 0, 2: 0}}
    context.initialise()
    beaten(context, "a")
    assert context.held("a") == {t: {0, 1, 2}}


def test_an_initialisation_that_does_not_end_is_tried_again():
    context = ShareContext()
    context.create("t", 1)
    context.share_beat("a", 0, "t")
    context.advance(29_000)
    beaten(context, "a", rounds=1)
    assert len(context.wanted) == 1
    context.advance(2_000)
    beaten(context, "a", rounds=2)
    assert len(context.wanted) == 2


def test_a_failed_initialisation_is_tried_again_at_once():
    context = ShareContext()
    t = context.create("t", 1)
    context.share_beat("a", 0, "t")
    context.share_state(lambda state: state.not_initialized("g", {t: [0]}))
    context.wanted.clear()
    beaten(context, "a", rounds=1)
    (wanted,) = context.wanted
    assert wanted.offsets == {t: {0: -1}}


def test_subscriptions_differ():
    context = ShareContext()
    t, u = context.create("t", 2), context.create("u", 2)
    context.share_beat("a", 0, "t")
    context.share_beat("b", 0, "u", "t")
    context.initialise()
    beaten(context, "a", "b")
    assert context.held("a") == {t: {0}} or context.held("a") == {t: {1}}
    assert context.held("b")[u] == {0, 1}
    context.share_beat("b", context.share_group().members["b"].member_epoch, "t")
    beaten(context, "a", "b")
    assert set(context.held("b")) == {t}


def test_a_member_that_leaves_makes_room():
    context = ShareContext()
    t = context.create("t", 2)
    joined(context, "a", "b")
    left = context.share_beat("b", -1)
    assert (left.error_code, left.member_id, left.member_epoch) == (0, "b", -1)
    beaten(context, "a")
    assert context.held("a") == {t: {0, 1}}
    context.share_beat("a", -1)
    group = context.share_group()
    assert group.is_empty
    assert group.assignment_epoch == group.epoch
    assert context.share_beat("a", -1).error_code == E.UNKNOWN_MEMBER_ID
    assert not [key for key in context.timers if key[0] == "share session"]


def test_a_silent_member_is_removed():
    context = ShareContext()
    context.create("t", 2)
    joined(context, "a", "b")
    context.advance(44_000)
    beaten(context, "a", rounds=1)
    context.advance(2_000)
    assert set(context.share_group().members) == {"a"}
    assert context.share_beat("b", 3).error_code == E.UNKNOWN_MEMBER_ID


def test_a_removal_that_fails_is_tried_again():
    context = ShareContext()
    context.create("t", 1)
    joined(context, "a")
    context.fail_with = E.NOT_ENOUGH_REPLICAS
    context.advance(46_000)
    assert "a" in context.share_group().members
    context.fail_with = E.NONE
    context.advance(1_000)
    assert context.share_group().is_empty


def test_epochs_fence():
    context = ShareContext()
    context.create("t", 1)
    joined(context, "a")
    member = context.share_group().members["a"]
    assert context.share_beat("a", member.previous_epoch).error_code == E.NONE
    for epoch in (member.member_epoch + 1, 1):
        answer = context.share_beat("a", epoch)
        assert answer.error_code == E.FENCED_MEMBER_EPOCH
    assert answer.error_message == (
        "The share group member has a smaller member epoch (1) than the one known by the group coordinator (3), and it "
        "does not match the previous member epoch (2). The member must abandon all its partitions and rejoin."
    )
    assert context.share_beat("a", 0, "t").error_code == E.NONE, "a member may join again"


@pytest.mark.parametrize(
    ("member_id", "epoch", "topics", "text"),
    [
        (" ", 0, ["t"], "MemberId can't be empty."),
        ("m", 0, [], "SubscribedTopicNames must be set in first request."),
        ("m", -2, ["t"], "MemberEpoch is invalid."),
    ],
)
def test_invalid_requests(member_id, epoch, topics, text):
    context = ShareContext()
    answer = context.share_beat(member_id, epoch, *topics)
    assert (answer.error_code, answer.error_message) == (E.INVALID_REQUEST, text)
    assert context.share_beat("m", 0, "t", group=" ").error_message == "GroupId can't be empty."
    assert context.share_beat("m", 0, "t", rack="").error_message == "RackId can't be empty."


def test_unknown_groups_and_members():
    context = ShareContext()
    context.create("t", 1)
    unknown = context.share_beat("a", 1)
    assert (unknown.error_code, unknown.error_message) == (E.GROUP_ID_NOT_FOUND, "Share group g not found.")
    assert context.share_beat("a", -1).error_message == "Group g not found."
    joined(context, "a")
    unknown = context.share_beat("b", 1)
    assert (unknown.error_code, unknown.error_message) == (
        E.UNKNOWN_MEMBER_ID, "Member b is not a member of group g.",
    )  # fmt: skip


def test_a_full_group():
    context = ShareContext(GroupConfig(share_assignment_interval_ms=0, share_max_size=2))
    context.create("t", 1)
    joined(context, "a", "b")
    full = context.share_beat("c", 0, "t")
    assert full.error_code == E.GROUP_MAX_SIZE_REACHED
    assert full.error_message == "The share group has reached its maximum capacity of 2 members."
    assert context.share_beat("a", 0, "t").error_code == E.NONE


def test_group_configs_have_effect():
    context = ShareContext()
    context.create("t", 1)
    context.configure("g", share_session_timeout_ms="50000", share_heartbeat_interval_ms="99999")
    assert context.share_beat("a", 0, "t").heartbeat_interval_ms == 15_000, "the broker's limit"
    context.advance(49_000)
    assert context.share_group().members
    context.advance(2_000)
    assert not context.share_group().members


def test_targets_wait_for_the_assignment_interval():
    context = ShareContext(GroupConfig())
    t = context.create("t", 2)
    context.share_beat("a", 0, "t")
    context.initialise()
    beaten(context, "a", rounds=1)
    assert context.held("a") == {}
    context.advance(1_000)
    beaten(context, "a", rounds=1)
    assert context.held("a") == {t: {0, 1}}


def test_a_reloaded_shard_goes_on():
    context = ShareContext()
    t = context.create("t", 2)
    joined(context, "a", "b")
    group = context.share_group()
    after = context.restarted()
    again = after.share_group()
    for name in ("epoch", "assignment_epoch", "assignment_timestamp", "metadata_hash", "members", "target"):
        assert getattr(again, name) == getattr(group, name), name
    assert again.state_partitions == group.state_partitions
    assert again.counts.by_name == group.counts.by_name
    records = len(after.log)
    beaten(after, "a", "b", rounds=1)
    assert len(after.log) == records
    after.advance(46_000)
    assert after.share_group().is_empty
    assert after.share_group().initialized[t].partitions == {0, 1}


def test_a_failed_write_changes_nothing():
    context = ShareContext()
    context.create("t", 1)
    context.fail_with = E.NOT_ENOUGH_REPLICAS
    assert context.share_beat("a", 0, "t").error_code == E.COORDINATOR_NOT_AVAILABLE
    assert context.shard.groups.get("g") is None
    context.fail_with = E.NONE
    assert context.share_beat("a", 0, "t").error_code == E.NONE


def test_other_protocols_are_refused():
    context = ShareContext()
    context.create("t", 1)
    joined(context, "a")
    assert context.join().answer.error_code == E.INCONSISTENT_GROUP_PROTOCOL
    assert context.sync("a", 1).answer.error_code == E.UNKNOWN_MEMBER_ID
    assert context.heartbeat("a", 1) == E.UNKNOWN_MEMBER_ID
    answer = context.beat("c", 0, owned=set(), subscribed_topic_names=["t"], rebalance_timeout_ms=60_000)
    assert (answer.error_code, answer.error_message) == (E.GROUP_ID_NOT_FOUND, "Group g is not a consumer group.")
    assert context.describe_consumer("g").error_message == "Group g is not a consumer group."
    assert context.describe("g", 6).error_message == "Group g is not a classic group."
    context.beat("c", 0, group="other", owned=set(), subscribed_topic_names=["t"], rebalance_timeout_ms=60_000)
    refused = context.share_beat("a", 0, "t", group="other")
    assert (refused.error_code, refused.error_message) == (E.GROUP_ID_NOT_FOUND, "Group other is not a share group.")


def test_share_groups_are_listed_by_type_and_state():
    context = ShareContext()
    context.create("t", 1)
    joined(context, "a")
    (listed,) = context.list(["Stable"], ["share"])
    assert (listed.group_id, listed.group_type, listed.group_state, listed.protocol_type) == (
        "g", "share", "Stable", "share",
    )  # fmt: skip
    context.share_beat("a", -1)
    assert [each.group_state for each in context.list(["empty"], ["Share"])] == ["Empty"]
    assert not context.list([], ["consumer"])


def test_an_empty_group_does_not_expire():
    context = ShareContext()
    context.create("t", 1)
    joined(context, "a")
    context.share_beat("a", -1)
    context.fire(("expire",))
    assert context.shard.groups.share("g") is not None
