"""Joining, syncing, heartbeats and leaving, as GroupMetadataManager of Kafka 4.4 decides them."""

from __future__ import annotations

import re

import pytest

from kbroker.coordination.shard import Cancel, Schedule
from kbroker.group_coordinator.config import NEW_MEMBER_JOIN_TIMEOUT_MS, GroupConfig
from kbroker.group_coordinator.groups.classic_group import COMPLETING, EMPTY, PREPARING, STABLE, VALID_FROM, GroupState
from kbroker.group_coordinator.records.classic_group import restore
from kbroker.protocol.errors import ErrorCode
from tests.group_coordinator.context import Context, subscription

NONE = ErrorCode.NONE


def test_member_id_required_then_a_whole_life() -> None:
    """KIP-394's round trip for a member id, the initial delay, one generation, leaving."""
    c = Context()
    first = c.join().answer
    assert first.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert re.fullmatch(r"client-[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", first.member_id)
    assert len(c.log) == 1, "a new group is written at once"
    joined = c.join(first.member_id)
    assert joined.answer is None
    assert c.group().state is PREPARING
    c.advance(2_999)
    assert joined.answer is None
    c.advance(1)
    answer = joined.answer
    assert (answer.error_code, answer.generation_id, answer.protocol_name, answer.protocol_type) == (
        0,
        1,
        "range",
        "consumer",
    )
    assert answer.leader == answer.member_id == first.member_id
    assert [m.metadata for m in answer.members] == [subscription("t")]
    assert c.heartbeat(first.member_id, 1) is NONE, "heartbeats are welcome while the group completes its rebalance"
    synced = c.sync(first.member_id, 1, {first.member_id: b"all"})
    assert (synced.answer.assignment, synced.answer.protocol_name) == (b"all", "range")
    assert c.group().state is STABLE
    assert c.leave((first.member_id, None)).members[0].error_code == NONE
    assert (c.group().state, c.group().generation, c.group().protocol_type) == (EMPTY, 2, "consumer")
    assert restore("g", c.log[-1].value).generation == 2


def test_initial_delay_grows_with_each_new_member_up_to_the_rebalance_timeout() -> None:
    c = Context()
    _, one = c.enter(rebalance=7_000)
    c.advance(2_000)
    _, two = c.enter(rebalance=7_000)
    c.advance(1_000)
    assert one.answer is None
    c.advance(1_500)
    _, three = c.enter(rebalance=7_000)
    c.advance(1_500)
    assert one.answer is None
    c.advance(999)
    assert one.answer is None
    c.advance(1)
    assert {p.answer.generation_id for p in (one, two, three)} == {1}


def test_scaling_from_one_to_three_members() -> None:
    """G1: in each generation every member receives its own part, and requests of an older generation are refused."""
    c = Context()
    ids = c.stable()
    for generation in (2, 3):
        new_id, joined = c.enter()
        assert joined.answer is None
        assert [c.heartbeat(m, generation - 1) for m in ids] == [ErrorCode.REBALANCE_IN_PROGRESS] * len(ids)
        rejoined = [c.join(m) for m in ids]
        ids.append(new_id)
        answers = [p.answer for p in [*rejoined, joined]]
        assert {a.generation_id for a in answers} == {generation}
        assert [bool(a.members) for a in answers].count(True) == 1
        assert sorted(a.assignment for a in c.sync_all(ids, generation)) == [
            f"p{i}".encode() for i in range(generation)
        ]
        assert c.sync(ids[0], generation - 1).answer.error_code == ErrorCode.ILLEGAL_GENERATION
        assert c.sync(ids[0], generation).answer.assignment == b"p0", "a stable group answers again"


def test_commits_and_heartbeats_of_wrong_generations_change_nothing() -> None:
    """G2: commits and heartbeats of a wrong generation change nothing."""
    c = Context()
    (member,) = c.stable()
    assert c.commit(5, member_id=member, generation=1) is NONE
    written = len(c.log)
    assert c.commit(6, member_id=member, generation=0) is ErrorCode.ILLEGAL_GENERATION
    assert c.commit(6, member_id="somebody", generation=1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert c.commit(6, member_id="", generation=-1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert c.commit(6, member_id=member, generation=-1) is ErrorCode.ILLEGAL_GENERATION
    assert c.commit(6, member_id=member, generation=1, instance="i") is ErrorCode.UNKNOWN_MEMBER_ID
    assert c.heartbeat(member, 2) is ErrorCode.ILLEGAL_GENERATION
    assert c.heartbeat("somebody", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert c.heartbeat(member, 1, group="other") is ErrorCode.UNKNOWN_MEMBER_ID
    assert len(c.log) == written
    assert c.fetch() == (5, NONE)


def test_commit_during_a_rebalance() -> None:
    c = Context()
    (member,) = c.stable()
    new_id, _ = c.enter()
    assert c.commit(1, member_id=member, generation=1) is NONE, "the old generation may still commit"
    c.join(member)
    assert c.group().state is COMPLETING
    assert c.commit(2, member_id=member, generation=2) is ErrorCode.REBALANCE_IN_PROGRESS
    assert c.commit(2, member_id=new_id, generation=1) is ErrorCode.ILLEGAL_GENERATION


def test_session_timeout_and_what_keeps_it_off() -> None:
    c = Context()
    one, two = c.stable(2)
    for _ in range(3):
        c.advance(8_000)
        assert c.heartbeat(one, 1) is NONE
        assert c.commit(1, member_id=two, generation=1) is NONE, "a commit is a heartbeat"
    assert set(c.group().members) == {one, two}
    c.advance(8_000)
    c.heartbeat(one, 1)
    c.advance(2_000)
    assert set(c.group().members) == {one}
    assert c.group().state is PREPARING
    assert c.heartbeat(one, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    assert c.heartbeat(two, 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_heartbeats_during_a_rebalance_keep_the_member() -> None:
    """G10: REBALANCE_IN_PROGRESS is an answer to a living member."""
    c = Context()
    (member,) = c.stable(rebalance=30_000)
    c.enter()
    for _ in range(2):
        c.advance(9_000)
        assert c.heartbeat(member, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    assert member in c.group().members


def test_a_rebalance_ends_by_the_rebalance_timeout() -> None:
    """G5: a member that does not rejoin is removed, the others continue; the longest timeout of all members counts."""
    c = Context()
    one, two = c.stable(2, session=100_000, rebalance=20_000)
    _, joined = c.enter(rebalance=5_000, session=100_000)
    rejoined = c.join(two, rebalance=20_000)
    c.advance(19_999)
    assert joined.answer is None
    c.advance(1)
    assert one not in c.group().members
    assert joined.answer.generation_id == rejoined.answer.generation_id == 2
    assert c.group().leader_id == two, "leadership passes on"
    assert c.heartbeat(one, 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_sync_phase_ends_when_the_leader_is_silent() -> None:
    """G5, KAFKA-12890: a leader that joins and never sends SyncGroup does not block the others."""
    c = Context()
    leader, follower = c.stable(2, session=100_000, rebalance=10_000)
    c.enter(session=100_000, rebalance=10_000)
    assert [c.join(m, session=100_000, rebalance=10_000).answer is None for m in (leader, follower)] == [True, False]
    waiting = c.sync(follower, 2)
    c.advance(9_999)
    assert waiting.answer is None
    c.advance(1)
    assert waiting.answer.error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert set(c.group().members) == {follower}
    again = c.join(follower)
    assert (again.answer.generation_id, again.answer.leader) == (3, follower)


def test_pending_members_time_out() -> None:
    """KAFKA-7610: member ids that nobody uses are removed, and do not block a rebalance forever."""
    c = Context()
    (member,) = c.stable(rebalance=60_000)
    pending = c.join(session=6_000).answer.member_id
    rejoined = c.join(member)
    assert rejoined.answer is None, "the pending member is waited for"
    c.advance(6_000)
    assert rejoined.answer.generation_id == 2
    assert c.join(pending).answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_thousand_vanishing_joiners() -> None:
    """Row 34: joiners that vanish leave no state behind, with member ids or without."""
    c = Context()
    for i in range(500):
        c.join(group="new", version=9 if i % 2 else 3)
    assert c.group("new").members or c.group("new").pending_joins
    c.advance(NEW_MEMBER_JOIN_TIMEOUT_MS + 120_000)
    assert not c.group("new").members
    assert not c.group("new").pending_joins
    assert c.group("new").state is EMPTY


def test_an_old_client_joins_without_an_id_round_trip() -> None:
    c = Context()
    joined = c.join(version=0, session=9_000, rebalance=-1)
    c.advance(3_000)
    assert joined.answer.generation_id == 1
    assert c.group().members[joined.answer.member_id].rebalance_timeout_ms == 9_000


def test_protocols_are_chosen_by_votes() -> None:
    c = Context()
    a = {"range": b"ra", "sticky": b"sa"}
    b = {"sticky": b"sb", "range": b"rb"}
    entered = [c.enter(protocols=p) for p in (a, b, b)]
    c.advance(6_000)
    assert {p.answer.protocol_name for _, p in entered} == {"sticky"}
    assert sorted(m.metadata for m in entered[0][1].answer.members) == [b"sa", b"sb", b"sb"]


@pytest.mark.parametrize(
    ("names", "chosen"), [(("range", "roundrobin"), "range"), (("roundrobin", "range"), "range"), (("b", "a"), "a")]
)
def test_a_tie_of_votes_falls_as_in_java(names: tuple[str, str], chosen: str) -> None:
    c = Context()
    entered = [c.enter(protocols=dict.fromkeys(order, b"")) for order in (names, names[::-1])]
    c.advance(6_000)
    assert entered[0][1].answer.protocol_name == chosen


def test_inconsistent_protocols() -> None:
    c = Context()
    (member,) = c.stable()
    inconsistent = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert c.join(protocols={"other": b""}).answer.error_code == inconsistent
    assert c.join(protocol_type="connect").answer.error_code == inconsistent
    assert c.join(member, protocol_type="connect").answer.member_id == member
    assert c.join(group="new", protocols={}).answer.error_code == inconsistent
    assert c.join(group="new", protocol_type="").answer.error_code == inconsistent
    assert c.sync(member, 1, protocol_name="other").answer.error_code == inconsistent
    assert c.sync(member, 1, protocol_type="other").answer.error_code == inconsistent
    assert c.sync(member, 1, protocol_type=None, protocol_name=None).answer.error_code == NONE


def test_rejoining_without_a_change_is_answered_at_once() -> None:
    c = Context()
    leader, follower = c.stable(2)
    answer = c.join(follower).answer
    assert (answer.generation_id, answer.members, answer.leader, answer.skip_assignment) == (1, [], leader, False)
    assert c.group().state is STABLE
    assert c.join(follower, protocols={"range": subscription("other")}).answer is None
    assert c.group().state is PREPARING


def test_a_leader_that_rejoins_forces_a_rebalance() -> None:
    c = Context()
    leader, follower = c.stable(2)
    rejoined = c.join(leader)
    assert rejoined.answer is None
    assert c.heartbeat(follower, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    c.join(follower)
    assert rejoined.answer.generation_id == 2
    answer = c.join(leader).answer
    assert answer.generation_id == 2, "the leader may have missed the answer"
    assert len(answer.members) == 2


def test_sync_while_preparing_and_of_unknown_groups() -> None:
    c = Context()
    (member,) = c.stable()
    c.enter()
    assert c.sync(member, 1).answer.error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert c.sync(member, 1, group="other").answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_group_max_size_is_exact() -> None:
    """G7, KAFKA-9844: group.max.size is exact."""
    c = Context(GroupConfig(max_size=2))
    entered = [c.enter() for _ in range(2)]
    third = c.join()
    assert third.answer.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    c.advance(6_000)
    ids = [m for m, _ in entered]
    assert all(p.answer.generation_id == 1 for _, p in entered)
    c.sync_all(ids, 1)
    assert c.join().answer.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert len(c.group().members) == 2
    rejoined = [c.join(m, protocols={"range": b"\0\1"}) for m in ids]
    assert all(p.answer.error_code == NONE for p in rejoined), "members are no new members"


def test_two_joiners_race_for_the_last_place() -> None:
    """G7: ids that were given out in advance do not count, members do."""
    c = Context(GroupConfig(max_size=1))
    ids = [c.join().answer.member_id for _ in range(3)]
    joined = [c.join(m) for m in ids]
    assert [p.answer.error_code if p.answer else None for p in joined] == [
        None,
        *[ErrorCode.GROUP_MAX_SIZE_REACHED] * 2,
    ]
    c.advance(6_000)
    assert joined[0].answer.error_code == NONE


def test_a_loaded_group_that_is_too_large_rebalances() -> None:
    c = Context()
    ids = c.stable(3)
    small = Context(GroupConfig(max_size=2), c.log)
    assert small.group().state is PREPARING
    answers = [small.join(m) for m in ids]
    assert sorted(p.answer.error_code for p in answers if p.answer) == [ErrorCode.GROUP_MAX_SIZE_REACHED]


def test_leaving() -> None:
    c = Context()
    one, two = c.stable(2)
    pending = c.join().answer.member_id
    answer = c.leave((pending, None), ("somebody", None), (two, None), ("", "nobody"))
    unknown = ErrorCode.UNKNOWN_MEMBER_ID
    assert [m.error_code for m in answer.members] == [NONE, unknown, NONE, unknown]
    assert answer.error_code == NONE
    assert c.heartbeat(one, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    assert c.join(one).answer.generation_id == 2
    assert c.leave((one, None), group="other").error_code is unknown


def test_leaving_ends_the_join_phase() -> None:
    """G5: the last awaited member leaves, and its parked requests end too."""
    c = Context()
    one, two = c.stable(2)
    rejoined = c.join(one)
    c.leave((two, None))
    assert rejoined.answer.generation_id == 2
    new_id, joined = c.enter()
    c.leave((new_id, None))
    assert joined.answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert joined.answer.member_id == ""


def test_a_failed_sync_append_starts_over() -> None:
    c = Context()
    leader, follower = c.stable(2)
    c.join(leader)
    c.join(follower)
    waiting = c.sync(follower, 2)
    c.fail_with = ErrorCode.NOT_ENOUGH_REPLICAS
    failed = c.sync(leader, 2, {leader: b"x"})
    assert failed.answer.error_code == waiting.answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert c.group().state is PREPARING
    c.fail_with = NONE
    c.join(leader)
    c.join(follower)
    assert len(c.sync_all([leader, follower], 3)) == 2


def test_a_failed_append_of_a_new_group_leaves_no_group() -> None:
    c = Context()
    c.fail_with = ErrorCode.NOT_LEADER_OR_FOLLOWER
    c.join()
    assert not c.classic_groups
    old = c.join(version=3)
    assert old.answer.error_code == ErrorCode.NOT_COORDINATOR
    assert not c.classic_groups
    c.advance(600_000)


def test_strings_too_long_for_the_log() -> None:
    """Row 44: strings that are too long fail only their own request."""
    c = Context()
    long = "x" * 40_000
    c.join(group=long)
    assert long not in c.classic_groups
    member, joined = c.enter(client_id=long, protocols={long: b""})
    c.advance(3_000)
    assert joined.answer.error_code == NONE
    synced = c.sync(member, 1, {member: b""}, protocol_name=long)
    assert synced.answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert c.commit(1, group=long) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert c.restarted().classic_groups.keys() == {"g"}


def test_unloading_answers_everybody() -> None:
    c = Context()
    leader, follower = c.stable(2)
    _, new = c.enter()
    waiting = c.join(follower)
    c.enter(group="second")
    c.unload()
    assert new.answer.error_code == waiting.answer.error_code == ErrorCode.NOT_COORDINATOR
    assert c.heartbeat(leader, 1) is c.commit(1, member_id=leader, generation=1) is ErrorCode.NOT_COORDINATOR
    assert not c.timers


def test_the_table_of_transitions() -> None:
    assert set(VALID_FROM) == set(GroupState)
    c = Context()
    c.stable()
    with pytest.raises(RuntimeError, match="cannot go from Stable to CompletingRebalance"):
        c.group().to(COMPLETING, c.now)


def test_timers_are_data() -> None:
    assert Schedule(("join", "g"), 1.0) == (("join", "g"), 1.0)
    assert Cancel(("join", "g")).key == ("join", "g")
    with pytest.raises(ValueError, match="no timer"):
        Context().shard.on_timer("nonsense", 0)
