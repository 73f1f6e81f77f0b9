"""Groups that change their protocol: with members according to the policy, without members always; offsets stay."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.group_coordinator.classic.join_group import JoinGroups
from kbroker.group_coordinator.config import GroupConfig, MigrationPolicy
from kbroker.group_coordinator.consumer.classic_subscriptions import read_assignment, write_assignment
from kbroker.group_coordinator.groups.classic_group import COMPLETING, PREPARING, STABLE
from kbroker.group_coordinator.groups.consumer_group import ConsumerGroupState
from kbroker.protocol.errors import ErrorCode
from tests.coordination.still import ON_PURPOSE
from tests.group_coordinator.consumer_context import Consumer, ConsumerContext, Owned, converge

E = ErrorCode
POLICIES = {policy.name: policy for policy in MigrationPolicy}


def context(policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL, **options: Any) -> ConsumerContext:
    c = ConsumerContext(GroupConfig(consumer_assignment_interval_ms=0, consumer_migration_policy=policy, **options))
    c.create("t", 4)
    return c


def subscription(owned: Owned = frozenset()) -> bytes:  # type: ignore[assignment]
    indexes = sorted(index for _, index in owned)
    out = b"\0\1\0\0\0\1\0\1t\xff\xff\xff\xff\0\0\0\1\0\1t" + len(indexes).to_bytes(4, "big")
    return out + b"".join(index.to_bytes(4, "big") for index in indexes)


def whole(c: ConsumerContext) -> bytes:
    t = c.topics.id_of("t")
    assert t is not None
    return write_assignment({t: frozenset(range(4))}, 1, c.topics)


def classic(c: ConsumerContext, *, instance: str | None = None) -> str:
    """Create a classic group with one stable member that owns everything; return its id."""
    protocols = {"range": subscription(), "roundrobin": subscription()}
    if instance is None:
        member_id, parked = c.enter(protocols=protocols)
    else:
        parked = c.join(instance=instance, protocols=protocols)
    c.advance(10_000)
    member_id = parked.answer.member_id
    assert c.sync(member_id, 1, {member_id: whole(c)}, instance=instance).answer.error_code == E.NONE
    return member_id


def have(c: ConsumerContext, answer: Any) -> Owned:
    partitions, _ = read_assignment(answer.assignment, c.topics)
    return {(topic_id, index) for topic_id, indexes in partitions.items() for index in indexes}


def test_a_consumer_member_makes_a_classic_group_a_consumer_group() -> None:
    c = context()
    old = classic(c)
    c.commit(5, member_id=old, generation=1)
    new = Consumer(c, "new", "t")
    assert (new.beat().error_code, new.epoch, new.told) == (E.NONE, 2, set())
    group = c.consumer_group()
    assert (group.classic_members, len(group.members), group.state) == (1, 2, ConsumerGroupState.RECONCILING)
    assert "g" not in c.classic_groups
    assert c.fetch()[0] == 5
    assert c.commit(6, member_id=old, generation=1) == E.NONE
    assert c.heartbeat(old, 1) == E.REBALANCE_IN_PROGRESS
    owned = {(t, index) for t, indexes in group.members[old].assigned.items() for index in indexes}
    rejoined = c.join(old, protocols={"range": subscription(owned)}).answer
    assert (rejoined.error_code, rejoined.generation_id) == (E.NONE, 1), "it gives up first"
    left = have(c, c.sync(old, 1).answer)
    assert len(left) == 2
    assert c.heartbeat(old, 1) == E.REBALANCE_IN_PROGRESS
    again = c.join(old, protocols={"range": subscription(left)}).answer
    assert again.generation_id == 2
    assert have(c, c.sync(old, 2).answer) == left
    assert c.heartbeat(old, 2) == E.NONE
    new.beat()
    assert len(new.told) == 2
    assert not new.told & left
    assert group.state is ConsumerGroupState.STABLE
    described = {m.member_id: m.member_type for m in c.describe_consumer("g").members}
    assert described == {old: 0, "new": 1}


def test_when_its_last_consumer_member_leaves_the_group_is_classic_again() -> None:
    c = context()
    old = classic(c)
    new = Consumer(c, "new", "t")
    new.beat()
    assert new.leave().error_code == E.NONE
    group = c.group()
    assert "g" not in c.consumer_groups
    assert (group.state, group.generation, group.protocol_name) == (PREPARING, 2, "range")
    assert [name for name, _ in group.members[old].protocols] == ["range", "roundrobin"], "all that it can speak"
    assert c.heartbeat(old, 2) == E.REBALANCE_IN_PROGRESS
    answer = c.join(old, protocols={"range": subscription()}).answer
    assert (answer.generation_id, answer.leader) == (3, old)
    assert c.sync(old, 3, {old: whole(c)}).answer.error_code == E.NONE
    assert c.restarted().group().state is STABLE


def test_a_group_that_has_just_become_a_classic_one_rebalances_after_a_crash_as_well() -> None:
    c = context()
    old = classic(c)
    new = Consumer(c, "new", "t")
    new.beat()
    new.leave()
    for _ in range(2):
        c = c.restarted()
        assert c.heartbeat(old, 2) == E.REBALANCE_IN_PROGRESS, "what the other had must be given to somebody"
    answer = c.join(old, protocols={"range": subscription()}).answer
    assert (answer.generation_id, answer.leader) == (3, old)
    assert c.sync(old, 3, {old: whole(c)}).answer.error_code == E.NONE
    c = c.restarted()
    assert (c.group().state, c.heartbeat(old, 3)) == (STABLE, E.NONE), "once it is over, it is"


def test_g1_what_a_classic_member_has_not_given_up_stays_its_own_there_and_back() -> None:
    c = context()
    old = classic(c)
    new = Consumer(c, "new", "t")
    new.beat()
    t = c.topics.id_of("t") or b""
    assert len(c.consumer_group().target[old][t]) == 2
    assert new.leave().error_code == E.NONE
    assert "g" in c.classic_groups
    again = Consumer(c, "again", "t")
    again.beat()
    assert again.told == set(), "the old member, which has heard of nothing, has all"
    assert len(c.consumer_group().members[old].assigned[t]) == 4


def test_a_session_that_ends_turns_the_group_back_as_well() -> None:
    c = context()
    old = classic(c)
    Consumer(c, "new", "t").beat()
    for _ in range(10):
        c.advance(4_600)
        c.heartbeat(old, 1)
    assert "g" in c.classic_groups
    assert c.group().members.keys() <= {old}


@pytest.mark.parametrize("policy", POLICIES)
def test_the_policy_says_which_ways_are_open(policy: str) -> None:
    c = context(POLICIES[policy])
    old = classic(c)
    answer = c.enter_consumer("new", "t")
    if not POLICIES[policy].upgrades:
        assert answer.error_code == E.GROUP_ID_NOT_FOUND
        assert "online upgrade is disabled" in str(answer.error_message)
        assert c.group().state is STABLE
        return
    assert answer.error_code == E.NONE
    c.beat("new", -1)
    assert ("g" in c.classic_groups) is POLICIES[policy].downgrades
    assert c.heartbeat(old, 2) in (E.REBALANCE_IN_PROGRESS, E.ILLEGAL_GENERATION)


def test_classic_members_of_a_consumer_group() -> None:
    for policy in MigrationPolicy:
        c = context(policy)
        new = Consumer(c, "new", "t")
        converge([new])
        first = c.join(protocols={"range": subscription()}).answer
        if policy is MigrationPolicy.DISABLED:
            assert (first.error_code, first.member_id) == (E.INCONSISTENT_GROUP_PROTOCOL, "")
            continue
        assert first.error_code == E.MEMBER_ID_REQUIRED, "the other policies are about conversions alone"
        joined = c.join(first.member_id, protocols={"range": subscription()}).answer
        assert (joined.error_code, joined.generation_id, joined.protocol_name) == (E.NONE, 3, "range")
        other = c.join(joined.member_id, protocols={"other": b"\0"}).answer
        assert (other.error_code, other.member_id) == (E.INCONSISTENT_GROUP_PROTOCOL, ""), "no error names the member"
        assert c.join(protocols={"other": subscription()}).answer.error_code == E.INCONSISTENT_GROUP_PROTOCOL
        assert c.join(protocol_type="connect").answer.error_code == E.INCONSISTENT_GROUP_PROTOCOL
        assert c.sync(joined.member_id, 7).answer.error_code == E.ILLEGAL_GENERATION
        assert c.sync("new", 3).answer.error_code == E.UNKNOWN_MEMBER_ID, "it does not speak this protocol"
        other = c.sync(joined.member_id, 3, protocol_name="other").answer
        assert other.error_code == E.INCONSISTENT_GROUP_PROTOCOL
        assert have(c, c.sync(joined.member_id, 3).answer) == set()
        left = c.leave((joined.member_id, None), ("nobody", None)).members
        assert [m.error_code for m in left] == [E.NONE, E.UNKNOWN_MEMBER_ID]


@pytest.mark.parametrize("phase", ["join", "sync"])
def test_g5_a_classic_member_that_does_not_go_on_is_removed(phase: str) -> None:
    c = context()
    new = Consumer(c, "new", "t")
    converge([new])
    first = c.join(protocols={"range": subscription()}, rebalance=20_000, session=300_000).answer.member_id
    c.join(first, protocols={"range": subscription()}, rebalance=20_000, session=300_000)
    if phase == "join":
        c.sync(first, 3)
        c.create("t", 6)
        converge([new], rounds=2)
        assert c.heartbeat(first, 3) == E.REBALANCE_IN_PROGRESS
    for _ in range(20):
        new.beat()
        new.settle()
        c.advance(1_100)
    assert c.consumer_group().members.keys() == {"new"}
    assert not c.consumer_group().joining


def test_g10_a_classic_member_is_told_of_a_rebalance_and_kept() -> None:
    c = context()
    old = classic(c)
    new = Consumer(c, "new", "t")
    new.beat()
    for _ in range(5):
        assert c.heartbeat(old, 1) == E.REBALANCE_IN_PROGRESS
        new.beat()
        c.advance(5_000)
    assert old in c.consumer_group().members


def test_parked_requests_of_a_group_that_is_upgraded_are_answered() -> None:
    c = context()
    old = classic(c)
    second, parked = c.enter(protocols={"range": subscription()})
    assert c.group().state is PREPARING
    c.enter_consumer("new", "t")
    assert parked.answer.error_code == E.REBALANCE_IN_PROGRESS
    assert c.consumer_group().members.keys() == {old, second, "new"}
    c = context()
    old = classic(c)
    second, _ = c.enter(protocols={"range": subscription()})
    c.join(old, protocols={"range": subscription()})
    waiting = c.sync(second, 2)
    assert c.group().state is COMPLETING
    c.enter_consumer("new", "t")
    assert waiting.answer.error_code == E.REBALANCE_IN_PROGRESS


def test_what_cannot_be_upgraded() -> None:
    c = context(consumer_max_size=1)
    c.stable(2)
    assert "maximum size" in str(c.enter_consumer("new", "t").error_message)
    c = context()
    c.enter(protocol_type="connect")
    assert "embedded protocol" in str(c.enter_consumer("new", "t").error_message)
    c = context()
    member_id = c.stable()[0]
    assert "malformed" in str(c.enter_consumer("new", "t").error_message), "its assignment is none"
    assert c.group().members.keys() == {member_id}
    c = context()
    member_id, _ = c.enter(protocols={"range": subscription()})
    c.advance(10_000)
    c.sync(member_id, 1, {member_id: whole(c)[:-4] + b"\0\0\0\1x"})
    assert "custom assignor" in str(c.enter_consumer("new", "t").error_message)


def assignment(c: ConsumerContext, *indexes: int, topic: str = "t") -> bytes:
    """Return an assignment as a faulty leader may write it."""
    name = topic.encode()
    body = len(indexes).to_bytes(4, "big") + b"".join(index.to_bytes(4, "big", signed=True) for index in indexes)
    return b"\0\1\0\0\0\1" + len(name).to_bytes(2, "big") + name + body + b"\xff\xff\xff\xff"


def test_a_partition_that_two_classic_members_have_keeps_the_group_from_an_upgrade() -> None:
    c = context()
    old = classic(c)
    second, _ = c.enter(protocols={"range": subscription()})
    c.join(old, protocols={"range": subscription()})
    waiting = c.sync(second, 2)
    c.sync(old, 2, {old: assignment(c, 0, 1, 2), second: assignment(c, 2, 3)})
    assert waiting.answer.error_code == E.NONE
    refused = c.enter_consumer("new", "t")
    assert refused.error_code == E.GROUP_ID_NOT_FOUND
    assert "more than one member" in str(refused.error_message)
    assert (c.group().state, c.heartbeat(old, 2), c.heartbeat(second, 2)) == (STABLE, E.NONE, E.NONE)
    assert "g" not in c.consumer_groups


def test_partitions_that_do_not_exist_are_nobodys_after_an_upgrade() -> None:
    c = context()
    old = classic(c)
    second, _ = c.enter(protocols={"range": subscription()})
    c.join(old, protocols={"range": subscription()})
    c.sync(second, 2)
    c.sync(old, 2, {old: assignment(c, 0, 1, 5, -1), second: assignment(c, 2, 3, 5, 2**31 - 1)})
    new = Consumer(c, "new", "t")
    new.beat()
    group = c.consumer_group()
    t = c.create("t", 8)
    for _ in range(8):
        for member_id in (old, second):
            epoch = group.members[member_id].member_epoch
            owned = {(topic, index) for topic, held in group.members[member_id].assigned.items() for index in held}
            epoch = c.join(member_id, protocols={"range": subscription(owned)}).answer.generation_id
            c.sync(member_id, epoch)
        converge([new], rounds=1)
    owners = sorted(index for member in group.members.values() for index in member.assigned[t])
    assert owners == list(range(8))


def test_a_consumer_member_may_come_before_the_first_generation() -> None:
    c = context()
    old, parked = c.enter(protocols={"range": subscription()})
    assert (c.group().state, c.group().generation) == (PREPARING, 0)
    new = Consumer(c, "new", "t")
    assert new.beat().error_code == E.NONE
    assert parked.answer.error_code == E.REBALANCE_IN_PROGRESS
    answer = c.join(old, protocols={"range": subscription()}).answer
    assert answer.error_code == E.NONE
    assert not have(c, c.sync(old, answer.generation_id).answer) & new.told


def test_a_member_that_makes_no_sense_as_a_classic_one_does_not_block_others() -> None:
    c = context()
    new = Consumer(c, "new", "t")
    converge([new])
    odd = {"range": subscription(), "roundrobin": b""}
    first = c.join(protocols=odd).answer.member_id
    assert c.join(first, protocols={"roundrobin": subscription(), "range": b""}).answer.error_code == E.NONE
    second = c.join(protocols=odd).answer.member_id
    assert c.join(second, protocols={"range": subscription(), "roundrobin": b""}).answer.error_code == E.NONE
    assert new.leave().error_code == E.NONE
    assert c.consumer_group().members.keys() == {first, second}


def test_an_upgrade_that_is_not_written_leaves_the_classic_group() -> None:
    c = context()
    old = classic(c)
    c.fail_with = E.NOT_ENOUGH_REPLICAS
    assert c.enter_consumer("new", "t").error_code == E.COORDINATOR_NOT_AVAILABLE
    c.fail_with = E.NONE
    assert c.heartbeat(old, 1) == E.NONE
    c.advance(10_001)
    assert not c.group().members, "its sessions still run"


@pytest.mark.parametrize("phase", ["join", "sync"])
def test_whoever_is_told_of_an_upgrade_that_is_not_written_has_a_session_again(phase: str) -> None:
    c = context()
    old = classic(c)
    other, parked = c.enter(protocols={"range": subscription()}, rebalance=300_000)
    epoch = 1
    if phase == "sync":
        c.join(old, protocols={"range": subscription()})
        parked, epoch = c.sync(other, 2), 2
    for _ in range(5):
        c.advance(4_000)
        c.heartbeat(old, epoch)
    assert parked.answer is None, "its session is over, and it lives by the request that is parked"
    c.fail_with = E.NOT_ENOUGH_REPLICAS
    assert c.enter_consumer("new", "t").error_code == E.COORDINATOR_NOT_AVAILABLE
    c.fail_with = E.NONE
    assert parked.answer.error_code == E.REBALANCE_IN_PROGRESS
    assert other in c.group().members
    for _ in range(5):
        c.advance(4_000)
        c.heartbeat(old, epoch)
    assert other not in c.group().members, "it was not heard of again"


def test_a_static_member_may_change_the_protocol() -> None:
    c = context()
    old = classic(c, instance="i")
    had = have(c, c.sync(old, 1, instance="i").answer)
    new = Consumer(c, "new", "t", instance_id="i")
    new.beat()
    assert (c.consumer_group().members.keys(), new.told) == ({"new"}, had)
    back = c.join(instance="i", protocols={"range": subscription()}).answer
    assert back.error_code == E.NONE
    group = c.group()
    assert (group.state, group.members.keys()) == (STABLE, {back.member_id})
    assert have(c, c.sync(back.member_id, back.generation_id, instance="i").answer) == had
    assert c.restarted().group().members.keys() == {back.member_id}


def test_groups_without_members_take_any_protocol() -> None:
    c = context()
    c.commit(3)
    a = Consumer(c, "a", "t")
    assert a.beat().error_code == E.NONE
    assert c.fetch()[0] == 3
    a.leave()
    assert c.join("nobody").answer.error_code == E.UNKNOWN_MEMBER_ID
    assert "g" in c.consumer_groups
    c.stable()
    assert "g" not in c.consumer_groups
    assert c.restarted().group().state is STABLE
    assert c.fetch()[0] == 3


def test_an_empty_group_whose_new_member_is_not_written_stays() -> None:
    c = context()
    a = Consumer(c, "a", "t")
    a.beat()
    a.leave()
    c.fail_with = E.NOT_ENOUGH_REPLICAS
    c.join(protocols={"range": subscription()})
    c.fail_with = E.NONE
    assert "g" not in c.classic_groups
    assert c.consumer_group().state is ConsumerGroupState.EMPTY


@pytest.mark.parametrize("refusal", ["pattern", "room"])
@pytest.mark.parametrize("phase", ["join", "sync"])
def test_a_consumer_member_that_is_refused_leaves_the_classic_group_as_it_was(refusal: str, phase: str) -> None:
    c = context(consumer_max_size=3 if refusal == "pattern" else 2)
    old = classic(c)
    second, parked = c.enter(protocols={"range": subscription()})
    if phase == "sync":
        c.join(old, protocols={"range": subscription()})
        parked = c.sync(second, 2)
    if refusal == "pattern":
        answer = c.enter_consumer("new", "t", subscribed_topic_regex="t[")
        assert answer.error_code == E.INVALID_REGULAR_EXPRESSION
    else:
        assert c.enter_consumer("new", "t").error_code == E.GROUP_MAX_SIZE_REACHED
    assert parked.answer is None
    assert "g" not in c.consumer_groups
    if phase == "join":
        c.join(old, protocols={"range": subscription()})
        assert (parked.answer.error_code, parked.answer.generation_id) == (E.NONE, 2)
    else:
        assert c.group().leader_id == old
        c.sync(old, 2, {})
        assert parked.answer.error_code == E.NONE


def test_an_empty_group_stays_when_the_join_to_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    c = context()
    a = Consumer(c, "a", "t")
    a.beat()
    a.leave()

    def broken(*_args: object) -> None:
        raise RuntimeError(ON_PURPOSE)

    with monkeypatch.context() as patch:
        patch.setattr(JoinGroups, "_persist_new", broken)
        assert c.join(protocols={"range": subscription()}).answer.error_code == E.UNKNOWN_SERVER_ERROR
    assert "g" not in c.classic_groups
    assert c.consumer_group().state is ConsumerGroupState.EMPTY
