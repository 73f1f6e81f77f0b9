"""Decisions about consumer groups that the log accepts late, or not at all: what depends on them is done, or undone."""

from __future__ import annotations

import pytest

from kbroker.group_coordinator.groups.classic_group import PREPARING
from kbroker.protocol.errors import ErrorCode
from tests.group_coordinator.consumer.test_migration import classic, context, subscription
from tests.group_coordinator.consumer_context import Consumer, ConsumerContext, converge

E = ErrorCode


def gives_up(c: ConsumerContext) -> tuple[Consumer, Consumer]:
    """Return two members; the first owns everything and has just been asked to revoke half of it."""
    a, b = Consumer(c, "a", "t"), Consumer(c, "b", "t")
    converge([a])
    b.beat()
    return a, b


@pytest.mark.parametrize("code", [E.NONE, E.REQUEST_TIMED_OUT])
def test_a_revocation_is_timed_even_if_the_log_was_late(code: ErrorCode) -> None:
    c = context()
    a, b = gives_up(c)
    c.lag = True
    a.beat()
    c.catch_up(code)
    c.lag = False
    for _ in range(7):
        c.advance(5_000)
        if "a" in c.consumer_group().members:
            c.beat("a", a.epoch)  # alive, and has not confirmed the revocation
        b.beat()
    assert c.consumer_group().members.keys() == {"b"}
    assert not c.consumer_group().revoking


@pytest.mark.parametrize("code", [E.NONE, E.REQUEST_TIMED_OUT])
def test_a_group_turns_back_even_if_the_log_was_late(code: ErrorCode) -> None:
    c = context()
    old = classic(c)
    new = Consumer(c, "new", "t")
    new.beat()
    c.lag = True
    new.leave()
    c.catch_up(code)
    c.lag = False
    group = c.group()
    assert group.state is PREPARING
    assert [name for name, _ in group.members[old].protocols] == ["range", "roundrobin"]
    c.advance(10_001)
    assert not group.members, "its session has run"


@pytest.mark.parametrize("code", [E.NONE, E.REQUEST_TIMED_OUT])
def test_a_classic_member_is_timed_even_if_the_log_was_late(code: ErrorCode) -> None:
    c = context()
    new = Consumer(c, "new", "t")
    converge([new])
    first = c.join(protocols={"range": subscription()}).answer.member_id
    c.lag = True
    c.join(first, protocols={"range": subscription()})
    c.catch_up(code)
    c.lag = False
    assert first in c.consumer_group().members
    c.advance(10_001)
    assert c.consumer_group().members.keys() == {"new"}


def test_a_member_that_came_again_keeps_its_timers_when_its_leaving_is_committed() -> None:
    c = context()
    a, b = Consumer(c, "a", "t"), Consumer(c, "b", "t")
    converge([a, b])
    c.lag = True
    a.leave()
    a.beat()
    c.catch_up()
    assert ("consumer session", "g", "a") in c.timers


def test_a_new_group_that_is_not_committed_answers_who_waits_for_an_assignment() -> None:
    c = context()
    c.lag = True
    first, second = c.join(version=3), c.join(version=3)
    c.advance(10_000)
    ids = [joined.answer.member_id for joined in (first, second)]
    follower = next(m for m in ids if m != c.group().leader_id)
    waiting = c.sync(follower, 1)
    c.catch_up(E.REQUEST_TIMED_OUT)
    assert waiting.answer.error_code == E.COORDINATOR_NOT_AVAILABLE
    assert not c.group().members


@pytest.mark.parametrize("code", [E.REQUEST_TIMED_OUT, E.NOT_ENOUGH_REPLICAS])
def test_an_empty_group_keeps_its_offsets_whatever_becomes_of_its_new_member(code: ErrorCode) -> None:
    c = context()
    c.commit(3)
    a = Consumer(c, "a", "t")
    a.beat()
    a.leave()
    if code is E.REQUEST_TIMED_OUT:
        c.lag = True
        c.join(protocols={"range": subscription()})
        c.catch_up(code)
        c.lag = False
    else:
        c.fail_with = code
        c.join(protocols={"range": subscription()})
        c.fail_with = E.NONE
    assert c.fetch()[0] == 3
    again = c.restarted()
    assert (c.classic_groups.keys(), c.consumer_groups.keys()) == (
        again.classic_groups.keys(),
        again.consumer_groups.keys(),
    )
    assert Consumer(c, "b", "t").beat().error_code == E.NONE
    assert c.restarted().consumer_group().members.keys() == {"b"}


def test_a_group_that_is_too_large_for_one_record_stays_a_consumer_group() -> None:
    c = context()
    ids = [classic(c)]
    new = Consumer(c, "new", "t")
    new.beat()
    c.fail_with = E.MESSAGE_TOO_LARGE
    for _ in range(10):
        c.advance(4_600)
        c.heartbeat(ids[0], 1)
    assert "new" in c.consumer_group().members
    c.fail_with = E.NONE
    c.advance(500)
    assert c.consumer_group().members.keys() == set(ids)
    assert not [key for key in c.timers if "new" in str(key)]


def test_an_upgrade_that_is_not_written_lets_parked_members_come_again() -> None:
    c = context()
    old = classic(c)
    second, parked = c.enter(protocols={"range": subscription()})
    c.fail_with = E.NOT_ENOUGH_REPLICAS
    assert c.enter_consumer("new", "t").error_code == E.COORDINATOR_NOT_AVAILABLE
    c.fail_with = E.NONE
    assert parked.answer.error_code == E.REBALANCE_IN_PROGRESS
    c.join(old, protocols={"range": subscription()})
    assert c.group().state is PREPARING, "it waits for the member that was answered"
    assert c.join(second, protocols={"range": subscription()}).answer.generation_id == 2
