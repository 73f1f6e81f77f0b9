"""Static membership (KIP-345)."""

from __future__ import annotations

from kbroker.group_coordinator.groups.classic_group import COMPLETING, EMPTY, PREPARING, STABLE
from kbroker.protocol.errors import ErrorCode
from tests.group_coordinator.context import Context, subscription

NONE = ErrorCode.NONE


def two_static(c: Context) -> tuple[str, str]:
    """Create a stable group of the instances a (leader) and b."""
    a, b = c.join(instance="a"), c.join(instance="b")
    c.advance(6_000)
    ids = (a.answer.member_id, b.answer.member_id)
    assert ids[0].startswith("a-")
    c.sync_all(list(ids), 1)
    return ids


def test_a_bounce_changes_nothing_but_the_id() -> None:
    """G6: no rebalance, the same assignment, and the old member id is fenced."""
    c = Context()
    a, b = two_static(c)
    back = c.join(instance="b").answer
    assert (back.error_code, back.generation_id, back.leader, back.members) == (NONE, 1, a, [])
    assert back.member_id != b
    assert c.group().state is STABLE
    assert c.sync(back.member_id, 1, instance="b").answer.assignment == b"p1"
    fenced = ErrorCode.FENCED_INSTANCE_ID
    assert c.heartbeat(b, 1, instance="b") is fenced
    assert c.commit(1, member_id=b, generation=1, instance="b") is fenced
    assert c.sync(b, 1, instance="b").answer.error_code == fenced
    assert c.join(b, instance="b").answer.error_code == fenced
    assert c.leave((b, "b")).members[0].error_code == fenced
    assert c.heartbeat(b, 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert c.heartbeat(back.member_id, 1, instance="b") is NONE
    assert c.fetch() == (-1, NONE)


def test_a_bounce_survives_the_coordinator() -> None:
    """G6, KAFKA-10284: the new member id is in the log before it is returned."""
    c = Context()
    two_static(c)
    new = c.join(instance="b").answer.member_id
    moved = c.restarted()
    assert moved.group().static_members["b"] == new
    assert moved.sync(new, 1, instance="b").answer.assignment == b"p1"
    again = moved.join(instance="b").answer
    assert (again.error_code, again.generation_id) == (NONE, 1)


def test_a_leader_that_bounces_skips_the_assignment() -> None:
    """KIP-814: since version 9 it learns the members, and that it must not assign."""
    c = Context()
    a, _ = two_static(c)
    back = c.join(instance="a").answer
    assert (back.skip_assignment, back.leader, len(back.members)) == (True, back.member_id, 2)
    older = c.join(instance="a", version=8).answer
    assert (older.skip_assignment, older.leader, older.members) == (False, back.member_id, [])
    assert c.group().leader_id == older.member_id
    assert a not in c.group().members


def test_a_failed_replacement_is_undone() -> None:
    c = Context()
    a, b = two_static(c)
    c.fail_with = ErrorCode.NOT_ENOUGH_REPLICAS
    failed = c.join(instance="b", session=20_000, protocols={"range": b"\0\0"}).answer
    assert (failed.error_code, failed.member_id, failed.leader) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, "", a)
    assert c.group().members[b].session_timeout_ms == 10_000
    assert c.heartbeat(b, 1, instance="b") is NONE


def test_a_changed_protocol_rebalances() -> None:
    c = Context()
    joined = c.join(instance="a", protocols={"range": b"\0\0", "sticky": b"\0\0"})
    c.advance(3_000)
    c.sync_all([joined.answer.member_id], 1)
    same = c.join(instance="a", protocols={"range": b"\0\0"}).answer
    assert same.generation_id == 1, "what was chosen stays"
    changed = c.join(instance="a", protocols={"range": b"\0\0", "sticky": b"\0\0"}).answer
    assert changed.generation_id == 1
    changed = c.join(instance="a", protocols={"sticky": b"\0\0"}).answer
    assert (changed.generation_id, changed.protocol_name) == (2, "sticky")


def test_returning_while_others_join() -> None:
    c = Context()
    two_static(c)
    _, dynamic = c.enter()
    assert c.group().state is PREPARING
    first = c.join(instance="b")
    second = c.join(instance="b")
    assert first.answer.error_code == ErrorCode.FENCED_INSTANCE_ID, "its successor has taken the place"
    c.join(instance="a")
    assert dynamic.answer.generation_id == second.answer.generation_id == 2


def test_returning_while_the_assignment_is_awaited() -> None:
    c = Context()
    a, b = two_static(c)
    c.join(a, instance="a")
    c.join(b, instance="b", protocols={"range": subscription("u")})
    assert c.group().state is COMPLETING
    waiting = c.sync(b, 2, instance="b")
    back = c.join(instance="b")
    assert waiting.answer.error_code == ErrorCode.FENCED_INSTANCE_ID
    assert c.group().state is PREPARING
    c.join(a, instance="a")
    assert back.answer.generation_id == 3


def test_static_members_keep_their_place_through_a_join_phase() -> None:
    c = Context()
    a, b = two_static(c)
    c.join(a, instance="a", session=200_000)
    c.advance(5_000)
    c.heartbeat(b, 1, instance="b")
    for _ in range(11):
        c.advance(5_000)
        c.heartbeat(b, 1, instance="b")
    assert c.group().generation == 2
    assert b in c.group().members
    c.advance(70_000)
    assert "b" not in c.group().static_members, "the session still counts"


def test_nobody_returns() -> None:
    """G5: all members are static and all are gone; their sessions expire where the join phase cannot end."""
    c = Context()
    a, _ = two_static(c)
    c.leave((a, "a"))
    c.advance(200_000)
    assert c.group().state is EMPTY
    assert not c.group().static_members


def test_administrators_remove_by_instance_id() -> None:
    c = Context()
    a, b = two_static(c)
    answer = c.leave(("", "b"), ("", "c"))
    assert [(m.member_id, m.error_code) for m in answer.members] == [("", NONE), ("", ErrorCode.UNKNOWN_MEMBER_ID)]
    assert b not in c.group().members
    assert c.heartbeat(a, 1, instance="a") is ErrorCode.REBALANCE_IN_PROGRESS


def test_unknown_instances() -> None:
    c = Context()
    a, _ = two_static(c)
    assert c.heartbeat(a, 1, instance="z") is ErrorCode.UNKNOWN_MEMBER_ID
    assert c.join(a, instance="z").answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID
