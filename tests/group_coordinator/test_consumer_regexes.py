"""Subscribed patterns: resolved behind the heartbeat, refreshed, forgotten."""

from __future__ import annotations

import pytest

from kbroker.group_coordinator.config import GroupConfig
from kbroker.group_coordinator.consumer import regexes
from kbroker.protocol.errors import ErrorCode
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
    c.advance(0)  # the slices of work that the heartbeat asked for
    assert c.consumer_group().resolved["logs_.*"].topics == {"logs_a", "logs_b"}
    converge([a])
    assert len(a.owned) == 3
    assert c.restarted().consumer_group().resolved == c.consumer_group().resolved


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


def test_the_work_is_done_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regexes, "SLICE_MATCHES", 10)
    c = context(**{f"t{number}": 1 for number in range(35)})
    a = member(c, "a", "t.*5")
    a.beat()
    steps = 0
    while ("regex", "g") in c.timers:
        del c.timers["regex", "g"]
        c.apply(c.shard.on_timer(("regex", "g"), c.now))
        steps += 1
    assert steps == 4
    assert c.consumer_group().resolved["t.*5"].topics == {"t5", "t15", "t25"}


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
