"""Subscribed patterns: resolved after the heartbeat, refreshed, forgotten."""

from __future__ import annotations

import gc

import pytest

from kbroker.group_coordinator.config import GroupConfig
from kbroker.group_coordinator.consumer import regexes
from kbroker.group_coordinator.consumer.target import Targets
from kbroker.protocol.errors import ErrorCode
from tests.coordination.still import ON_PURPOSE
from tests.group_coordinator.consumer_context import EAGER, Consumer, ConsumerContext, converge

REFRESH_MS = 10_000


def context(config: GroupConfig = EAGER, **topics: int) -> ConsumerContext:
    c = ConsumerContext(config)
    for name, partitions in topics.items():
        c.create(name, partitions)
    return c


def member(c: ConsumerContext, member_id: str, pattern: str, *topics: str) -> Consumer:
    consumer = Consumer(c, member_id, *topics, subscribed_topic_regex=pattern)
    if not topics:
        consumer.topics = None
    return consumer


def test_a_pattern_is_resolved_behind_the_heartbeat() -> None:
    c = context(logs_a=2, logs_b=1, other=1)
    a = member(c, "a", "logs_.*")
    assert a.beat().error_code == ErrorCode.NONE
    assert a.told == set()
    c.advance(0)  # the slices of work that the heartbeat requested
    assert c.consumer_group().resolved["logs_.*"].topics == {"logs_a", "logs_b"}
    converge([a])
    assert len(a.owned) == 3
    assert c.restarted().consumer_group().resolved == c.consumer_group().resolved


def test_a_group_whose_coordinator_moves_away_leaves_no_match_unawaited(recwarn: pytest.WarningsRecorder) -> None:
    c = context(logs_a=2)
    member(c, "a", "logs_.*").beat()
    del c  # before the match has begun
    gc.collect()
    assert [str(each.message) for each in recwarn if each.category is RuntimeWarning] == []  # other tests leave sockets


def test_a_whole_name_must_match() -> None:
    c = context(t=1, tt=1, at=1)
    a = member(c, "a", "t")
    converge([a])
    assert {c.topics.name_of(topic_id) for topic_id, _ in a.owned} == {"t"}


def test_new_topics_are_found_but_not_more_often_than_every_ten_seconds() -> None:
    c = context(t1=1)
    a = member(c, "a", "t.*")
    converge([a], rounds=3)
    c.create("t2", 1)
    a.beat()
    c.advance(0)
    assert c.consumer_group().resolved["t.*"].topics == {"t1"}
    c.advance(REFRESH_MS)
    converge([a], rounds=3)
    assert len(a.owned) == 2


def test_patterns_are_looked_up_again_after_their_interval() -> None:
    c = context(t1=1, t2=1)
    a = member(c, "a", "t.*")
    converge([a])
    c.delete("t2")
    converge([a], rounds=2)
    assert c.consumer_group().resolved["t.*"].topics == {"t1", "t2"}, "deletions alone do not ask for it"
    assert len(a.owned) == 1
    for _ in range(16):
        c.advance(EAGER.consumer_regex_refresh_interval_ms // 15)
        a.beat()
        a.settle()
        if a.epoch == 0:
            a.beat()
    c.advance(0)
    assert c.consumer_group().resolved["t.*"].topics == {"t1"}


def test_a_loaded_group_looks_its_patterns_up_once() -> None:
    c = context(t1=1)
    a = member(c, "a", "t.*")
    converge([a])
    c.create("t2", 1)
    c = a.context = c.restarted()
    c.advance(REFRESH_MS + 1)
    converge([a])
    assert len(a.owned) == 2


def test_a_pattern_goes_with_its_last_member() -> None:
    c = context(t1=1, u1=1)
    a, b = member(c, "a", "t.*"), member(c, "b", "t.*")
    converge([a, b])
    assert c.consumer_group().regexes == {"t.*": 2}
    c.beat("a", a.epoch, owned=a.owned, subscribed_topic_regex="u.*")
    c.advance(REFRESH_MS + 1)
    converge([a, b])
    assert c.consumer_group().resolved.keys() == {"t.*", "u.*"}
    b.leave()
    converge([a])
    assert c.consumer_group().resolved.keys() == {"u.*"}
    assert {c.topics.name_of(topic_id) for topic_id, _ in a.owned} == {"u1"}
    a.leave()
    assert not c.consumer_group().resolved
    assert not c.consumer_group().counts.topics()


def test_names_and_a_pattern_together() -> None:
    c = context(t1=1, t2=1, u=1)
    a = member(c, "a", "t.*", "u", "t1")
    converge([a])
    assert len(a.owned) == 3


def test_a_bad_pattern_changes_nothing() -> None:
    c = context(t1=1)
    a = member(c, "a", "t.*")
    converge([a])
    answer = c.beat("a", a.epoch, subscribed_topic_regex="t[")
    assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert answer.error_message == ("SubscribedTopicRegex `t[` is not a valid regular expression: missing closing ].")
    assert c.consumer_group().members["a"].regex == "t.*"


def slices(c: ConsumerContext, *groups: str) -> int:
    """Resolve patterns as the loop does, the groups in turn; return the number of slices."""
    steps = 0
    while any(("regex", group) in c.timers for group in groups):
        for group in groups:
            steps += c.fire(("regex", group))
    return steps


@pytest.mark.parametrize(("share", "expected"), [(8, 5), (1, 37), (0.001, 37)])
def test_the_work_is_cut_by_time(share: float, expected: int) -> None:
    c = context(**{f"t{number}": 1 for number in range(35)})
    a = member(c, "a", "t.*5")
    a.beat()
    c.step_s = regexes.SLICE_SECONDS / share  # a match, and compiling, may take any time
    assert slices(c, "g") == expected
    assert c.consumer_group().resolved["t.*5"].topics == {"t5", "t15", "t25"}


def test_groups_share_the_time() -> None:
    c = context(**{f"t{number}": 1 for number in range(31)})
    c.enter_consumer("a", subscribed_topic_regex="t.*")
    c.enter_consumer("b", subscribed_topic_regex="t.*", group="h")
    c.step_s = regexes.SLICE_SECONDS / 7.9  # slightly more than an eighth, however sums are rounded
    assert slices(c, "g", "h") == 2 * (32 / 4 + 1), "four steps each, and a slice that finds nothing left"
    assert c.consumer_group("h").resolved["t.*"].topics == c.topics.state.topics.keys()


ORDINARY = [
    ".*", "orders-.*", "(?i)logs[._-](eu|us)-[0-9]{1,4}", r"[\pL\pN._-]+", "[^_].*", ".{0,249}", r"\p{Greek}+",
    "|".join(f"some-team.some-topic-{number}" for number in range(250)), "(((a?){10}){10}){9}",
]  # fmt: skip


@pytest.mark.parametrize("pattern", ORDINARY, ids=lambda pattern: pattern[:20])
def test_ordinary_patterns_are_taken(pattern: str) -> None:
    regexes.compile_regex(pattern)("some-team.some-topic-7")


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        (r"[\pL\pN]{250}", "pattern too large"),
        (r"\pL{100}", "pattern too large"),
        (r"(?i)\W{500}\W{500}", "pattern too large"),
        (r"\pL" * 65, "Unicode classes"),
        (r"[\p{Greek}\P{Latin}]" * 40, "Unicode classes"),
        ("".join(f"(?P<n{number}>a?)" for number in range(33)), "named groups"),
        ("a?" * 5_000, "longer than"),
        ("(" * 5_000 + ")" * 5_000, "longer than"),
        ("\u20ac" * 3_000, "longer than"),
    ],
    ids=lambda text: text[:20],
)
def test_patterns_that_would_cost_much_are_refused(pattern: str, why: str) -> None:
    c = context(t1=1)
    answer = c.enter_consumer("a", subscribed_topic_regex=pattern)
    assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert why in str(answer.error_message)
    assert len(str(answer.error_message)) < 1_000
    assert not c.timers.keys() - {("expire",)}


def test_patterns_look_for_no_groups_but_named_ones() -> None:
    match = regexes.compile_regex("(t)(?P<number>[0-9]+)")("t1")
    assert match
    assert match.groups() == ("1",), "RE2 looks for those with names all the same, so their number is bounded"


def test_a_look_that_was_refused_or_failed_does_not_keep_others_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    c = context(t1=1)
    a = member(c, "a", "t.*")
    converge([a])
    c.create("t2", 1)
    c.advance(REFRESH_MS + 1)
    with monkeypatch.context() as patch:
        patch.setattr(Targets, "reconcile", broken)
        assert a.beat().error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    a.beat()
    with monkeypatch.context() as patch:
        patch.setattr(regexes, "compile_regex", broken)
        c.advance(0)
    assert c.consumer_group().resolved["t.*"].topics == {"t1"}
    converge([a])
    assert len(a.owned) == 2


def broken(*_args: object, **_options: object) -> None:
    raise RuntimeError(ON_PURPOSE)


def test_a_pattern_that_makes_backtracking_explode_is_matched_at_once() -> None:
    c = ConsumerContext(EAGER)
    c.create("a" * 200, 1)
    a = member(c, "a", "(a*)*(a*)*b")
    converge([a])
    assert not a.owned


def test_what_the_log_did_not_take_is_found_again() -> None:
    c = context(t1=1)
    a = member(c, "a", "t.*")
    a.beat()
    c.fail_with = ErrorCode.NOT_ENOUGH_REPLICAS
    c.advance(0)
    c.fail_with = ErrorCode.NONE
    assert not c.consumer_group().resolved
    converge([a])
    assert len(a.owned) == 1
