"""Committed offsets: commit, fetch, delete, expiry, and transactional offsets."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.coordination.shard import Outcome
from kbroker.group_coordinator import offset_removal
from kbroker.group_coordinator.config import GroupConfig
from kbroker.group_coordinator.groups.classic_group import CONSUMER
from kbroker.group_coordinator.groups.store import Group
from kbroker.group_coordinator.offset_removal import Expiration
from kbroker.group_coordinator.records import offsets as offset_records
from kbroker.group_coordinator.shard import GroupShard
from kbroker.long_work import whole
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.coordinator_records import OffsetCommitValue
from kbroker.protocol.messages.group_offsets import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequestGroup,
)
from tests.coordination.still import ON_PURPOSE
from tests.group_coordinator.context import TOPIC_ID, Context

NONE = ErrorCode.NONE
DAY_MS = 86_400_000


def delete(c: Context, topic: str = "t", *partitions: int, group: str = "g") -> list[int]:
    asked = [OffsetDeleteRequestPartition(partition_index=p) for p in partitions or (0,)]
    request = OffsetDeleteRequest(group_id=group, topics=[OffsetDeleteRequestTopic(name=topic, partitions=asked)])
    answer = c.ask(lambda shard, _now: shard.offsets.delete(request))
    if isinstance(answer, ErrorCode):
        raise ApiError(answer)
    return [p.error_code for p in answer.topics[0].partitions]


def transactional(c: Context, producer_id: int, offset: int, record_offset: int) -> None:
    record = offset_records.offset_commit("g", "t", 0, OffsetCommitValue(offset=offset, commit_timestamp=c.now))
    c.shard.replay(record_offset, producer_id, *record)


def test_a_simple_group() -> None:
    """Commits without membership create a group that is Empty and has no protocol type."""
    c = Context()
    assert c.fetch() == (-1, NONE), "an unknown group has no offsets, which is no error"
    assert c.commit(7, metadata=None) is NONE
    assert c.fetch() == (7, NONE)
    described = c.describe("g", 6)
    assert (described.group_state, described.protocol_type, described.members) == ("Empty", "", [])
    assert (c.group().is_empty, c.group().protocol_type, c.group().pending_joins) == (True, None, set())


def test_commit_with_a_generation_to_nobody() -> None:
    """G2: a commit with a generation is refused if the group does not exist, or has no members."""
    c = Context()
    assert c.commit(1, generation=0, member_id="m", version=8) is ErrorCode.ILLEGAL_GENERATION
    assert c.commit(1, generation=0, member_id="m", version=9) is ErrorCode.GROUP_ID_NOT_FOUND
    c.commit(1)
    assert c.commit(2, generation=0, member_id="m") is ErrorCode.UNKNOWN_MEMBER_ID
    assert c.fetch() == (1, NONE)


def test_the_bytes_of_a_commit() -> None:
    c = Context()
    c.commit(0x1122, metadata="m", partition=3)
    key, value = c.log[0]
    assert key == b"\0\1" + b"\0\1g" + b"\0\1t" + b"\0\0\0\3"
    timestamp = c.now.to_bytes(8, "big")
    body = (0x1122).to_bytes(8, "big") + b"\xff\xff\xff\xff" + b"\2m" + timestamp
    assert value == b"\0\4" + body + b"\1\0\x10" + TOPIC_ID
    c.commit(1, retention=5, version=4)
    assert c.log[1].value == b"\0\1" + (1).to_bytes(8, "big") + b"\0\0" + timestamp + (c.now + 5).to_bytes(8, "big")


def test_the_longest_retention_overflows_as_in_kafka() -> None:
    c = Context()
    assert c.commit(1, retention=2**63 - 1, version=4) is NONE
    assert c.log[0].value is not None
    assert int.from_bytes(c.log[0].value[-8:], "big", signed=True) == c.now - 2**63 - 1


def test_metadata_too_large() -> None:
    c = Context(GroupConfig(offset_metadata_max_bytes=4))
    too_large = ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert [c.commit(1, metadata=m) for m in ("abcd", "abcde", "üüüü", "😀😀", "😀😀😀")] == [
        NONE, too_large, NONE, NONE, too_large,
    ]  # fmt: skip


def test_a_failed_commit_changes_nothing() -> None:
    c = Context()
    c.commit(1)
    c.fail_with = ErrorCode.NOT_ENOUGH_REPLICAS
    assert c.commit(2) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert c.commit(2, group="other") is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert c.fetch() == (1, NONE)
    assert set(c.classic_groups) == {"g"}


def test_fetching_all_and_by_id() -> None:
    c = Context()
    c.commit(1)
    c.commit(2, partition=4)
    c.commit(3, topic="u", topic_id=bytes(16))
    everything = whole(c.shard.offsets.fetch(OffsetFetchRequestGroup(group_id="g", topics=None), False))
    found = {(t.name, p.partition_index): p.committed_offset for t in everything.topics for p in t.partitions}
    assert found == {("t", 0): 1, ("t", 4): 2, ("u", 0): 3}
    assert c.fetch(topic_id=TOPIC_ID) == (1, NONE)
    assert c.fetch(topic_id=b"\1" * 16) == (-1, NONE), "of another topic of that name"
    assert c.fetch(topic="u", topic_id=TOPIC_ID) == (3, NONE), "nobody knows of which"
    assert whole(c.shard.offsets.fetch(OffsetFetchRequestGroup(group_id="none", topics=None), False)).topics == []


def test_replay_equals_what_was_decided() -> None:
    """G3: a replay of the log gives the state that was decided."""
    c = Context()
    (member,) = c.stable()
    for i in range(5):
        c.commit(i, member_id=member, generation=1, partition=i)
    delete(c, "other", 3)
    moved = c.restarted()
    assert [moved.fetch(partition=i) for i in range(5)] == [(i, NONE) for i in range(5)]
    assert moved.heartbeat(member, 1) is NONE
    assert moved.group().subscribed_topics == {"t"}


def test_offset_delete() -> None:
    c = Context()
    (member,) = c.stable()
    c.commit(1, member_id=member, generation=1)
    c.commit(2, member_id=member, generation=1, topic="u")
    assert delete(c, "t") == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC]
    assert delete(c, "u", 0, 1) == [NONE, NONE]
    assert c.log[-1].value is None
    assert (c.fetch(), c.fetch(topic="u")) == ((1, NONE), (-1, NONE))
    with pytest.raises(ApiError) as failure:
        delete(c, group="none")
    assert failure.value.code is ErrorCode.GROUP_ID_NOT_FOUND
    c.enter(group="k", protocol_type="connect")
    with pytest.raises(ApiError) as failure:
        delete(c, group="k")
    assert failure.value.code is ErrorCode.NON_EMPTY_GROUP


def test_delete_groups() -> None:
    c = Context()
    (member,) = c.stable()
    c.commit(1, member_id=member, generation=1)
    c.commit(1, group="simple")
    deleted = c.ask(lambda shard, _now: shard.delete_groups(["g", "simple", "none"]))
    assert [r.error_code for r in deleted] == [ErrorCode.NON_EMPTY_GROUP, NONE, ErrorCode.GROUP_ID_NOT_FOUND]
    assert set(c.classic_groups) == {"g"}
    assert c.fetch(group="simple") == (-1, NONE)
    assert set(c.restarted().classic_groups) == {"g"}


def test_offsets_of_a_group_with_members_do_not_expire() -> None:
    """G8: offsets of a group with members do not expire."""
    c = Context()
    (member,) = c.stable(session=1_800_000)
    c.commit(1, member_id=member, generation=1)
    c.commit(2, member_id=member, generation=1, topic="left")
    for _ in range(8 * 48):
        c.advance(1_800_000 // 2)
        c.heartbeat(member, 1)
        c.advance(1_800_000 // 2)
        c.heartbeat(member, 1)
    assert c.fetch() == (1, NONE)
    assert c.fetch(topic="left") == (-1, NONE), "it no longer consumes that topic"


def test_offsets_expire_when_a_group_has_been_empty() -> None:
    """G8, KIP-211: the retention counts from when the group became empty, not from the commit."""
    c = Context()
    (member,) = c.stable(session=1_800_000)
    c.commit(1, member_id=member, generation=1)
    c.advance(0)
    c.leave((member, None))
    c.advance(7 * DAY_MS - 1)
    assert c.fetch() == (1, NONE)
    c.advance(600_001)
    assert c.fetch() == (-1, NONE)
    assert "g" not in c.classic_groups, "an empty group without offsets goes too"
    assert not c.restarted().classic_groups


def test_offsets_of_a_simple_group_expire_one_by_one() -> None:
    """G8: offsets of a simple group expire one at a time."""
    c = Context()
    c.commit(1)
    c.advance(3 * DAY_MS)
    c.commit(2, partition=1)
    c.commit(3, partition=2, retention=DAY_MS, version=4)
    c.advance(DAY_MS + 600_000)
    assert [c.fetch(partition=i)[0] for i in range(3)] == [1, 2, -1]
    c.advance(3 * DAY_MS)
    assert [c.fetch(partition=i)[0] for i in range(3)] == [-1, 2, -1]
    assert "g" in c.classic_groups
    c.advance(3 * DAY_MS)
    assert "g" not in c.classic_groups


def test_a_deleted_topic_takes_its_offsets_along() -> None:
    c = Context()
    c.commit(1)
    c.commit(2, partition=1, topic_id=b"\1" * 16)
    c.commit(3, partition=2, topic_id=bytes(16))
    c.commit(4, topic="u")

    def delete(shard: GroupShard, _now: int) -> Outcome:
        outcome = shard.on_topics_deleted({"t": TOPIC_ID, "v": TOPIC_ID})
        assert not outcome.atomic
        return outcome

    c.ask(delete)
    assert [c.fetch(partition=i)[0] for i in range(3)] == [-1, 2, -1]
    assert c.fetch(topic="u") == (4, NONE)


def test_offsets_of_a_transaction() -> None:
    """G9: invisible until the commit; UNSTABLE_OFFSET_COMMIT for clients that require stable offsets."""
    c = Context()
    c.commit(1)
    transactional(c, 9, 5, 100)
    assert c.fetch() == (1, NONE)
    assert c.fetch(stable=True) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    assert c.fetch(stable=True, partition=1) == (-1, NONE)
    c.shard.replay_end_transaction(9, committed=True)
    assert c.fetch(stable=True) == (5, NONE)
    transactional(c, 9, 6, 101)
    c.shard.replay_end_transaction(9, committed=False)
    assert c.fetch(stable=True) == (5, NONE)
    c.shard.replay_end_transaction(9, committed=True)


def test_the_later_record_wins_over_the_later_end() -> None:
    """G4, KAFKA-5247: a plain commit written after a transactional one is newer, whenever the transaction ends."""
    c = Context()
    transactional(c, 9, 5, 100)
    c.shard.replay(101, -1, *offset_records.offset_commit("g", "t", 0, OffsetCommitValue(offset=6)))
    c.shard.replay_end_transaction(9, committed=True)
    assert c.fetch() == (6, NONE)


def test_a_tombstone_takes_pending_offsets_along() -> None:
    c = Context()
    c.commit(1)
    transactional(c, 9, 5, 100)
    transactional(c, 10, 6, 101)
    c.advance(8 * DAY_MS)
    assert c.fetch() == (1, NONE), "pending offsets keep it from expiring"
    c.group().protocol_type = "other"
    assert delete(c) == [NONE]
    assert c.fetch(stable=True) == (-1, NONE)
    c.shard.replay_end_transaction(9, committed=True)
    c.shard.replay_end_transaction(10, committed=True)
    assert c.fetch() == (-1, NONE)
    transactional(c, 9, 5, 102)
    c.ask(lambda shard, _now: shard.delete_groups(["g"]))
    c.shard.replay_end_transaction(9, committed=True)
    assert c.fetch() == (-1, NONE)


def test_old_records_are_read() -> None:
    c = Context()
    name = b"\0\1g\0\1t\0\0\0\0"
    at = c.now.to_bytes(8, "big")
    c.shard.replay(0, -1, b"\0\0" + name, b"\0\0" + (1).to_bytes(8, "big") + b"\0\0" + at)
    assert c.fetch() == (1, NONE)
    c.shard.replay(0, -1, b"\0\0" + name, None)
    assert c.fetch() == (-1, NONE)
    for version, tail in ((0, b""), (1, at), (2, b"")):
        c.shard.replay(0, -1, b"\0\1" + name, version.to_bytes(2, "big") + (9).to_bytes(8, "big") + b"\0\0" + at + tail)
        assert c.fetch() == (9, NONE)


def test_unknown_records_are_ignored(caplog: pytest.LogCaptureFixture) -> None:
    c = Context()
    for kind in (98, 99, 98, 97):
        c.shard.replay(0, -1, kind.to_bytes(2, "big") + b"\0\1g", b"\0\0\0\0\0\1")
    assert not c.classic_groups
    assert len([r for r in caplog.records if "are ignored" in r.message]) == 3


def test_describe_and_list() -> None:
    c = Context()
    (member,) = c.stable(client_id="me")
    c.commit(1, group="simple")
    described = c.describe("g", 5)
    assert (described.group_state, described.protocol_type, described.protocol_data) == ("Stable", CONSUMER, "range")
    assert [(m.member_id, m.client_id, m.client_host, m.member_assignment) for m in described.members] == [
        (member, "me", "/127.0.0.1", b"p0")
    ]
    assert described.members[0].member_metadata
    c.enter()
    described = c.describe("g", 5)
    assert (described.group_state, described.protocol_data) == ("PreparingRebalance", "")
    assert [m.member_metadata for m in described.members] == [b"", b""]
    gone = [c.describe("none", version) for version in (5, 6)]
    assert [(g.group_state, g.error_code, g.error_message) for g in gone] == [
        ("Dead", NONE, None),
        ("Dead", ErrorCode.GROUP_ID_NOT_FOUND, "Group none not found."),
    ]

    def listed(*states: str, types: tuple[str, ...] = ()) -> list[str]:
        return [g.group_id for g in c.list(states, types)]

    assert listed() == ["g", "simple"]
    assert listed("preparingREBALANCE ") == ["g"]
    assert listed("Empty", "Stable") == ["simple"]
    assert listed("nonsense") == []
    assert listed(types=("Classic",)) == ["g", "simple"]
    assert listed(types=("consumer", "share")) == []
    assert c.list([], [])[1].group_type == "classic"


def test_expiry_is_cut_by_time_and_goes_on_behind_a_group_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    c = Context(GroupConfig(offsets_retention_ms=1_000, offsets_retention_check_interval_ms=60_000))
    for number in range(10):
        c.commit(5, group=f"g{number}")
    expired = Expiration._expired

    def failing(self: Expiration, group: Group, now_ms: int) -> Any:
        if group.group_id == "g5":
            raise RuntimeError(ON_PURPOSE)
        return expired(self, group, now_ms)

    def slice_of_work() -> int:
        before = len(c.classic_groups)
        assert c.fire(("expire",))
        return before - len(c.classic_groups)

    c.now += 2_000
    monkeypatch.setattr(offset_removal, "SLICE_SECONDS", 1.0)
    c.step_s = 0.5
    with monkeypatch.context() as patch:
        patch.setattr(Expiration, "_expired", failing)
        assert [slice_of_work() for _ in range(6)] == [2, 2, 0, 2, 2, 1]
    assert c.classic_groups.keys() == {"g5"}
    c.advance(60_000)
    assert not c.classic_groups


def test_offsets_of_a_new_group_that_was_committed_late_are_seen() -> None:
    c = Context()
    c.lag = True
    member_id, _ = c.enter()
    assert c.commit(7, member_id=member_id, generation=0) == NONE
    c.catch_up(ErrorCode.REQUEST_TIMED_OUT)
    assert c.fetch() == (7, NONE)
    assert c.restarted().fetch() == (7, NONE)
