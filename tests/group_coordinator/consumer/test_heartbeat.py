"""ConsumerGroupHeartbeat: joining, staying, leaving; epochs, fencing, timers; the contents of each response."""

from __future__ import annotations

import sys

import pytest

from kbroker.group_coordinator.config import GroupConfig
from kbroker.group_coordinator.consumer import target
from kbroker.group_coordinator.groups.consumer_group import ConsumerGroupState, SubscriptionCounts, is_homogeneous
from kbroker.group_coordinator.groups.consumer_member import UNRELEASED, UNREVOKED
from kbroker.protocol.errors import ErrorCode
from tests.group_coordinator.consumer_context import EAGER, Consumer, ConsumerContext, assigned, converge

E = ErrorCode
SESSION_MS = 45_000


def context(config: GroupConfig = EAGER, **topics: int) -> ConsumerContext:
    c = ConsumerContext(config)
    for name, partitions in (topics or {"t": 4}).items():
        c.create(name, partitions)
    return c


def test_the_first_member_has_everything_at_once() -> None:
    c = context(t=3)
    answer = c.enter_consumer("a", "t", "missing")
    assert (answer.error_code, answer.member_id, answer.member_epoch) == (E.NONE, "a", 2)
    assert answer.heartbeat_interval_ms == 5_000
    t = c.topics.id_of("t")
    assert assigned(answer) == {(t, 0), (t, 1), (t, 2)}
    assert c.consumer_group().state is ConsumerGroupState.STABLE


def test_an_answer_repeats_the_assignment_only_where_that_is_asked_for() -> None:
    c = context()
    everything = assigned(c.enter_consumer("a", "t"))
    assert assigned(c.beat("a", 2)) is None
    assert assigned(c.beat("a", 2, owned=everything)) is None
    full = c.beat("a", 2, owned=everything, rebalance_timeout_ms=30_000, subscribed_topic_names=["t"])
    assert assigned(full) == everything
    assert len(c.log) == len(c.restarted().log)


def test_g1_revocation_comes_first_then_the_new_owner_gets_it() -> None:
    c = context()
    a, b = Consumer(c, "a", "t"), Consumer(c, "b", "t")
    a.beat()
    a.settle()
    assert (b.beat().member_epoch, b.told) == (3, set()), "b is in the new epoch and waits"
    assert c.consumer_group().members["b"].state is UNRELEASED
    assert c.consumer_group().state is ConsumerGroupState.RECONCILING
    a.beat()
    assert (a.epoch, len(a.told)) == (2, 2), "a keeps its epoch until it has given up"
    assert c.consumer_group().members["a"].state is UNREVOKED
    assert b.beat().assignment is None
    a.settle()
    assert a.beat().member_epoch == 3
    b.beat()
    assert len(b.told) == 2
    assert not a.owned & b.told
    assert c.consumer_group().state is ConsumerGroupState.STABLE


def test_the_epoch_before_is_good_while_its_answer_may_be_lost() -> None:
    c = context()
    a = Consumer(c, "a", "t")
    a.beat()
    a.settle()
    c.create("t", 6)
    grown = a.beat()
    assert grown.member_epoch == 3
    assert c.beat("a", 2, owned=a.owned).error_code == E.NONE
    assert c.beat("a", 2).error_code == E.FENCED_MEMBER_EPOCH, "it does not say what it has"
    assert c.beat("a", 2, owned={(b"x" * 16, 0)}).error_code == E.FENCED_MEMBER_EPOCH
    assert c.beat("a", 1, owned=a.owned).error_code == E.FENCED_MEMBER_EPOCH
    answer = c.beat("a", 4)
    assert answer.error_code == E.FENCED_MEMBER_EPOCH
    assert "greater member epoch (4) than the one known by the group coordinator (3)" in str(answer.error_message)


def test_a_fenced_member_joins_again_under_its_id() -> None:
    c = context()
    a = Consumer(c, "a", "t")
    a.beat()
    assert c.beat("a", 9).error_code == E.FENCED_MEMBER_EPOCH
    answer = a.join()
    assert (answer.error_code, answer.member_epoch, len(a.told)) == (E.NONE, 2, 4)


def test_who_is_unknown() -> None:
    c = context()
    assert c.beat("a", 1).error_code == E.GROUP_ID_NOT_FOUND
    assert c.beat("a", -1).error_code == E.GROUP_ID_NOT_FOUND
    c.enter_consumer("a", "t")
    assert c.beat("b", 1).error_code == E.UNKNOWN_MEMBER_ID
    assert c.beat("b", -1).error_code == E.UNKNOWN_MEMBER_ID
    assert c.beat("b", 1, instance_id="i").error_code == E.UNKNOWN_MEMBER_ID


def test_leaving_makes_room_for_others() -> None:
    c = context()
    a, b = Consumer(c, "a", "t"), Consumer(c, "b", "t")
    converge([a, b])
    assert (len(a.owned), len(b.owned)) == (2, 2)
    assert a.leave().member_epoch == -1
    converge([b])
    assert len(b.owned) == 4
    b.leave()
    assert c.consumer_group().state is ConsumerGroupState.EMPTY


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"member_id": ""}, E.INVALID_REQUEST),
        ({"group": ""}, E.INVALID_REQUEST),
        ({"group": " "}, E.INVALID_REQUEST),
        ({"instance_id": ""}, E.INVALID_REQUEST),
        ({"rack_id": ""}, E.INVALID_REQUEST),
        ({"rebalance_timeout_ms": -1}, E.INVALID_REQUEST),
        ({"owned": None}, E.INVALID_REQUEST),
        ({"owned": {(b"x" * 16, 0)}}, E.INVALID_REQUEST),
        ({"subscribed_topic_names": None}, E.INVALID_REQUEST),
        ({"server_assignor": "best"}, E.UNSUPPORTED_ASSIGNOR),
        ({"subscribed_topic_regex": "("}, E.INVALID_REGULAR_EXPRESSION),
        ({"subscribed_topic_regex": r"(a)\1"}, E.INVALID_REGULAR_EXPRESSION),
        ({"subscribed_topic_names": []}, E.NONE),
        ({"subscribed_topic_names": None, "subscribed_topic_regex": ""}, E.NONE),
        ({"server_assignor": "range"}, E.NONE),
    ],
)
def test_what_a_join_must_have(fields: dict[str, object], code: ErrorCode) -> None:
    c = context()
    whole: dict[str, object] = {"owned": set(), "rebalance_timeout_ms": 1_000, "subscribed_topic_names": ["t"]}
    whole |= fields
    member_id = str(whole.pop("member_id", "a"))
    answer = c.beat(member_id, 0, **whole)  # type: ignore[arg-type]
    assert answer.error_code == code
    if code is not E.NONE:
        assert answer.error_message
        assert not c.log


def test_epochs_that_make_no_sense() -> None:
    c = context()
    c.enter_consumer("a", "t")
    assert c.beat("a", -3).error_code == E.INVALID_REQUEST
    assert c.beat("a", -2).error_code == E.INVALID_REQUEST, "only a static member leaves for a while"
    assert c.beat("", 1, version=0).error_code == E.INVALID_REQUEST


def test_before_version_1_the_coordinator_makes_member_ids() -> None:
    c = context()
    answer = c.enter_consumer("", "t", version=0)
    assert answer.error_code == E.NONE
    assert answer.member_id
    assert c.consumer_group().members.keys() == {answer.member_id}


def test_g5_a_silent_member_is_removed_when_its_session_is_over() -> None:
    c = context()
    a, b = Consumer(c, "a", "t"), Consumer(c, "b", "t")
    converge([a, b])
    for _ in range(9):
        c.advance(SESSION_MS // 9)
        b.beat()
    assert c.consumer_group().members.keys() == {"b"}
    converge([b])
    assert len(b.owned) == 4
    assert c.beat("a", a.epoch).error_code == E.UNKNOWN_MEMBER_ID


def test_g5_a_member_that_does_not_give_up_is_removed_after_its_rebalance_timeout() -> None:
    c = context()
    a, b = Consumer(c, "a", "t", rebalance_timeout_ms=10_000), Consumer(c, "b", "t")
    a.beat()
    a.settle()
    b.beat()
    a.beat()
    for _ in range(9):
        c.advance(1_000)
        assert a.beat().error_code == E.NONE
    c.advance(1_001)
    assert "a" not in c.consumer_group().members
    converge([b])
    assert len(b.owned) == 4


def test_g5_a_removal_that_is_not_written_is_tried_again() -> None:
    c = context()
    Consumer(c, "a", "t").beat()
    c.fail_with = E.NOT_ENOUGH_REPLICAS
    c.advance(SESSION_MS)
    assert "a" in c.consumer_group().members
    c.fail_with = E.NONE
    c.advance(500)
    assert not c.consumer_group().members


def test_g7_a_full_group_takes_nobody_but_its_own() -> None:
    c = context(GroupConfig(consumer_assignment_interval_ms=0, consumer_max_size=2))
    c.enter_consumer("a", "t")
    c.enter_consumer("b", "t", instance_id="i")
    assert c.enter_consumer("c", "t").error_code == E.GROUP_MAX_SIZE_REACHED
    assert c.enter_consumer("a", "t").error_code == E.NONE
    c.beat("b", -2, instance_id="i")
    assert c.enter_consumer("d", "t", instance_id="i").error_code == E.NONE
    c.beat("a", -1)
    assert c.enter_consumer("c", "t").error_code == E.NONE


def test_g6_a_static_member_comes_back_to_what_it_had() -> None:
    c = context()
    a, b = Consumer(c, "a", "t", instance_id="one"), Consumer(c, "b", "t", instance_id="two")
    converge([a, b])
    had, others, epoch = a.owned, b.owned, c.consumer_group().epoch
    assert c.enter_consumer("thief", "t", instance_id="one").error_code == E.UNRELEASED_INSTANCE_ID
    assert a.leave(-2).member_epoch == -2
    c = a.context = b.context = c.restarted()
    back = Consumer(c, "c", "t", instance_id="one")
    assert back.beat().error_code == E.NONE
    assert back.told == had
    assert b.beat().error_code == E.NONE
    assert (b.told, c.consumer_group().epoch) == (others, epoch), "nobody was rebalanced"
    assert c.beat("a", 2, instance_id="one").error_code == E.FENCED_INSTANCE_ID
    assert c.beat("a", -1, instance_id="one").error_code == E.FENCED_INSTANCE_ID


def test_a_static_member_that_stays_away_is_removed() -> None:
    c = context()
    a = Consumer(c, "a", "t", instance_id="one")
    a.beat()
    a.leave(-2)
    c.advance(SESSION_MS + 1)
    assert not c.consumer_group().members


def test_targets_are_computed_once_an_interval() -> None:
    c = context(GroupConfig(), t=12)
    members = [Consumer(c, f"m{number}", "t") for number in range(4)]
    for member in members:
        member.beat()
    group = c.consumer_group()
    assert (group.epoch, group.assignment_epoch, group.state) == (5, 2, ConsumerGroupState.ASSIGNING)
    c.advance(999)
    members[0].beat()
    assert group.assignment_epoch == 2
    c.advance(1)
    members[0].beat()
    assert group.assignment_epoch == 5, "one target for the three that came meanwhile"
    converge(members)
    assert [len(member.owned) for member in members] == [3, 3, 3, 3]


def test_group_configs_hold_for_their_group() -> None:
    c = context(GroupConfig())
    c.configure(
        "g",
        consumer_session_timeout_ms="50000",
        consumer_heartbeat_interval_ms="7000",
        consumer_assignment_interval_ms="0",
    )
    assert c.enter_consumer("a", "t").heartbeat_interval_ms == 7_000
    assert c.enter_consumer("a", "t", group="h").heartbeat_interval_ms == 5_000
    c.advance(SESSION_MS + 1)
    assert (len(c.consumer_group().members), len(c.consumer_group("h").members)) == (1, 0)
    c.advance(5_000)
    assert not c.consumer_group().members


def test_topics_that_appear_grow_and_go() -> None:
    c = context(t=2)
    a = Consumer(c, "a", "t", "u")
    converge([a])
    epoch = c.consumer_group().epoch
    c.create("other", 3)
    converge([a])
    assert c.consumer_group().epoch == epoch, "nobody subscribes to it"
    u = c.create("u", 1)
    converge([a])
    assert (u, 0) in a.owned
    c.create("t", 4)
    converge([a])
    assert len(a.owned) == 5
    c.delete("t")
    converge([a])
    assert a.owned == {(u, 0)}
    again = c.create("t", 1, life=1)
    converge([a])
    assert a.owned == {(u, 0), (again, 0)}
    assert c.consumer_group().state is ConsumerGroupState.STABLE


def test_a_heartbeat_that_changes_nothing_looks_at_no_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    c = context()
    a = Consumer(c, "a", "t")
    converge([a])
    looks: list[int] = []

    def noted(regexes: dict[str, int], counts: SubscriptionCounts, members: int) -> bool:
        looks.append(len(counts.by_name))
        return is_homogeneous(regexes, counts, members)

    monkeypatch.setattr(target, "is_homogeneous", noted)
    a.beat()
    assert not looks
    c.create("t", 6)
    converge([a])
    assert looks == [1]
    assert len(a.owned) == 6


def test_a_rack_that_changes_makes_the_epoch_grow() -> None:
    c = context()
    a = Consumer(c, "a", "t")
    converge([a])
    epoch = c.consumer_group().epoch
    c.create("x", 1, rack="r2")
    a.beat()
    assert c.consumer_group().epoch == epoch + 1


def test_a_changed_subscription_takes_effect_at_once() -> None:
    c = context(GroupConfig(), t=2, u=2)
    a = Consumer(c, "a", "t")
    converge([a])
    a.topics = ["u"]
    c.beat("a", a.epoch, owned=a.owned, subscribed_topic_names=["u"])
    assert assigned(c.beat("a", a.epoch, owned=set())) == {(c.topics.id_of("u"), 0), (c.topics.id_of("u"), 1)}
    epoch = c.consumer_group().assignment_epoch
    answer = c.beat("a", epoch, owned={(c.topics.id_of("u"), 0)}, subscribed_topic_names=["t"])
    assert c.consumer_group().assignment_epoch == epoch, "the last target is too young for another"
    assert assigned(answer) == set(), "what it no longer wants is taken from it without one"


def test_the_assignor_that_most_members_ask_for() -> None:
    c = context(t=3)
    members = [Consumer(c, name, "t", server_assignor=assignor) for name, assignor in (("a", "range"), ("b", "range"))]
    members.append(Consumer(c, "c", "t", server_assignor="uniform"))
    converge(members)
    assert c.describe_consumer("g").assignor_name == "range"
    assert [sorted(p for _, p in member.owned) for member in members] == [[0], [1], [2]]
    for name in "ab":
        c.beat(name, -1)
    converge(members[2:])
    assert c.describe_consumer("g").assignor_name == "uniform"


def test_another_assignor_that_most_members_ask_for_makes_the_epoch_grow() -> None:
    c = context(t=3)
    a = Consumer(c, "a", "t")
    converge([a])
    epoch = c.consumer_group().epoch
    for assignor, step in (("uniform", 0), ("range", 1), ("range", 1), ("uniform", 2)):
        c.beat("a", a.epoch, server_assignor=assignor)
        assert c.consumer_group().epoch == epoch + step
        converge([a])
        assert (c.describe_consumer("g").assignor_name, a.epoch) == (assignor, epoch + step)


def test_a_group_that_everybody_has_left_has_the_target_of_nobody() -> None:
    c = context(t=3)
    members = [Consumer(c, name, "t") for name in "ab"]
    converge(members)
    group = c.consumer_group()
    members[0].leave()
    assert group.assignment_epoch < group.epoch
    members[1].leave()
    assert (group.assignment_epoch, group.assignment_timestamp) == (group.epoch, 0)
    joined = members[0].join()
    assert joined.member_epoch == group.epoch
    assert len(assigned(joined)) == 3, "a target is due at once"


def test_failed_appends_change_nothing() -> None:
    c = context()
    c.fail_with = E.NOT_ENOUGH_REPLICAS
    assert c.enter_consumer("a", "t").error_code == E.COORDINATOR_NOT_AVAILABLE
    assert not c.consumer_groups
    c.fail_with = E.NONE
    a, b = Consumer(c, "a", "t"), Consumer(c, "b", "t")
    converge([a, b])
    c.create("t", 5)
    c.fail_with = E.NOT_ENOUGH_REPLICAS
    assert a.beat().error_code == E.COORDINATOR_NOT_AVAILABLE
    c.fail_with = E.NONE
    converge([a, b])
    assert len(a.owned | b.owned) == 5, "the topic's growth is not forgotten"


def _calls(members: int, partitions: int, *, mixed: bool) -> int:
    """Return the number of calls in the heartbeat that computes a target for members that joined together."""
    c = context(GroupConfig(), **{f"t{number}": partitions // 10 for number in range(10)})
    topics = list(c.topics.state.topics)
    consumers = [
        Consumer(c, f"m{number}", *[t for place, t in enumerate(topics) if not mixed or (number + place) % 3])
        for number in range(members)
    ]
    for consumer in consumers:
        consumer.beat()
    c.advance(1_000)
    count = 0

    def note(_frame: object, event: str, _arg: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        consumers[0].beat()
    finally:
        sys.setprofile(None)
    assert c.consumer_group().assignment_epoch == c.consumer_group().epoch
    return count


@pytest.mark.parametrize("mixed", [False, True])
def test_a_target_costs_in_proportion_to_members_and_partitions(mixed: bool) -> None:
    """The event loop waits for the target: 200 members on 1,000 partitions must stay within milliseconds."""
    _calls(2, 20, mixed=mixed)  # what the first use creates does not count
    large = _calls(200, 1_000, mixed=mixed)
    assert large < 60_000
    assert _calls(400, 2_000, mixed=mixed) < 2.5 * large
