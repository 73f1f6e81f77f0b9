"""Offsets and administration of consumer groups: epochs of commits and fetches, deletion, expiry, listing."""

from __future__ import annotations

import pytest

from kbroker.group_coordinator.commit_building import NO_BOUND, build_commit_in_transaction
from kbroker.group_coordinator.config import GroupConfig
from kbroker.long_work import whole
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.group_offsets import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequestGroup,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.group_coordinator.consumer_context import EAGER, Consumer, ConsumerContext, converge, topic_id

E = ErrorCode
DAY_MS = 24 * 3_600_000


def context(config: GroupConfig = EAGER) -> ConsumerContext:
    c = ConsumerContext(config)
    c.create("t", 2)
    return c


def commit(c: ConsumerContext, offset: int, member_id: str, epoch: int, partition: int = 0, version: int = 9) -> E:
    return c.commit(
        offset, member_id=member_id, generation=epoch, partition=partition, topic_id=topic_id("t"), version=version
    )


def test_g2_a_commit_counts_only_from_a_member_in_its_epoch() -> None:
    c = context()
    assert commit(c, 1, "a", 2) == E.GROUP_ID_NOT_FOUND
    assert commit(c, 1, "a", 2, version=8) == E.ILLEGAL_GENERATION
    c.enter_consumer("a", "t")
    assert commit(c, 5, "a", 2) == E.NONE
    assert commit(c, 6, "a", 2, version=8) == E.UNSUPPORTED_VERSION
    assert commit(c, 6, "a", 3) == E.STALE_MEMBER_EPOCH
    assert commit(c, 6, "a", 1) == E.STALE_MEMBER_EPOCH
    assert commit(c, 6, "b", 2) == E.UNKNOWN_MEMBER_ID
    assert c.commit(6) == E.UNKNOWN_MEMBER_ID
    c.beat("a", -1)
    assert commit(c, 6, "a", 2) == E.UNKNOWN_MEMBER_ID
    assert c.fetch()[0] == 5
    assert c.commit(7) == E.NONE, "nobody is in the group: anybody may"


def commit_in_transaction(
    c: ConsumerContext, member_id: str, epoch: int, partition: int = 0, topic: str = "t", version: int = 5
) -> E:
    asked = TxnOffsetCommitRequestPartition(partition, 9, committed_metadata="")
    request = TxnOffsetCommitRequest(
        group_id="g",
        producer_id=7,
        producer_epoch=0,
        generation_id_or_member_epoch=epoch,
        member_id=member_id,
        topics=[TxnOffsetCommitRequestTopic(topic, topic_id(topic), partitions=[asked])],
    )
    try:
        commit = whole(build_commit_in_transaction(request, c.now, c.config.offset_metadata_max_bytes, NO_BOUND))
        outcome = c.shard.commits.commit_in_transaction(request, version, None, commit)
    except ApiError as error:
        return error.code
    return E(outcome.reply.topics[0].partitions[0].error_code)


def shared_by_two() -> tuple[ConsumerContext, Consumer, Consumer, int, int]:
    """Return a group of two members in epoch 3, the partition that the first kept, and the one that the second got."""
    c = context()
    a, b = Consumer(c, "a", "t"), Consumer(c, "b", "t")
    converge([a])
    converge([a, b])
    ((_, kept),) = a.owned
    ((_, new),) = b.owned
    return c, a, b, kept, new


def test_g2_a_commit_in_a_transaction_counts_only_from_a_member_in_its_epoch() -> None:
    c, *_, kept, new = shared_by_two()
    assert commit_in_transaction(c, "a", 3, kept) == E.NONE
    assert commit_in_transaction(c, "a", 2, kept) == E.NONE, "a has had it since epoch 2"
    assert commit_in_transaction(c, "a", 2, new) == E.ILLEGAL_GENERATION
    assert commit_in_transaction(c, "a", 2, kept, topic="none") == E.ILLEGAL_GENERATION
    assert commit_in_transaction(c, "a", 4, kept) == E.ILLEGAL_GENERATION
    assert commit_in_transaction(c, "a", 4, kept, version=6) == E.STALE_MEMBER_EPOCH
    assert commit_in_transaction(c, "a", 2, new, version=6) == E.STALE_MEMBER_EPOCH
    assert commit_in_transaction(c, "c", 3, kept) == E.UNKNOWN_MEMBER_ID
    assert commit_in_transaction(c, "", -1, kept) == E.NONE, "before KIP-447 producers name no member"


def test_g2_an_epoch_that_the_member_has_left_is_good_for_what_it_had_by_then() -> None:
    c, a, b, kept, new = shared_by_two()
    assert a.epoch == b.epoch == 3
    assert commit(c, 5, "a", 2, partition=kept) == E.NONE, "a has had it since epoch 2"
    assert commit(c, 6, "a", 2, partition=new) == E.STALE_MEMBER_EPOCH
    assert commit(c, 7, "b", 2, partition=new) == E.STALE_MEMBER_EPOCH
    c = c.restarted()
    assert commit(c, 8, "a", 2, partition=kept) == E.NONE
    assert commit(c, 9, "b", 2, partition=new) == E.STALE_MEMBER_EPOCH


def test_fetches_are_held_against_the_epoch_where_one_is_given() -> None:
    c = context()
    c.enter_consumer("a", "t")
    commit(c, 5, "a", 2)

    def fetch(member_id: str | None, epoch: int) -> None:
        request = OffsetFetchRequestGroup(group_id="g", member_id=member_id, member_epoch=epoch)
        whole(c.shard.offsets.fetch(request, False))

    fetch("a", 2)
    fetch(None, -1)
    for member_id, epoch, code in (
        ("a", 1, E.STALE_MEMBER_EPOCH), ("a", 3, E.STALE_MEMBER_EPOCH), ("b", 2, E.UNKNOWN_MEMBER_ID),
    ):  # fmt: skip
        with pytest.raises(ApiError) as caught:
            fetch(member_id, epoch)
        assert caught.value.code == code


def test_g3_g4_what_was_committed_is_there_after_the_coordinator_has_moved() -> None:
    c = context()
    c.enter_consumer("a", "t")
    for offset in range(10):
        assert commit(c, offset, "a", 2) == E.NONE
        assert c.restarted().fetch() == (offset, E.NONE)


def delete(c: ConsumerContext, topic: str) -> E:
    request = OffsetDeleteRequest(
        group_id="g", topics=[OffsetDeleteRequestTopic(topic, [OffsetDeleteRequestPartition(0)])]
    )
    answer = c.ask(lambda shard, _now: shard.offsets.delete(request))
    return E(answer.topics[0].partitions[0].error_code)


def test_offsets_of_a_consumed_topic_cannot_be_deleted() -> None:
    c = context()
    c.enter_consumer("a", "t")
    commit(c, 5, "a", 2)
    assert delete(c, "t") == E.GROUP_SUBSCRIBED_TO_TOPIC
    c.beat("a", 2, owned=set(), subscribed_topic_names=[])
    assert delete(c, "t") == E.NONE
    assert c.fetch()[0] == -1


def test_g8_offsets_of_consumed_topics_do_not_expire() -> None:
    c = context(GroupConfig(consumer_assignment_interval_ms=0, offsets_retention_ms=DAY_MS))
    a = Consumer(c, "a", "t")
    a.beat()
    commit(c, 5, "a", 2)
    for _ in range(2 * 24 * 60 * 2):
        c.advance(30_000)
        a.beat()
    assert c.fetch()[0] == 5
    a.leave()
    c.advance(11 * 60_000)
    assert c.fetch()[0] == -1, "they count from the commit, not from when the group became empty"
    assert "g" not in c.consumer_groups
    assert not c.restarted().consumer_groups


def test_groups_are_deleted_once_they_are_empty() -> None:
    c = context()
    a = Consumer(c, "a", "t")
    a.beat()
    commit(c, 5, "a", 2)
    deleted = c.ask(lambda shard, _now: shard.delete_groups(["g"]))
    assert deleted[0].error_code == E.NON_EMPTY_GROUP
    a.leave()
    deleted = c.ask(lambda shard, _now: shard.delete_groups(["g"]))
    assert deleted[0].error_code == E.NONE
    assert not c.consumer_groups
    assert c.fetch()[0] == -1
    assert not c.restarted().consumer_groups


def test_describe_and_list() -> None:
    c = context()
    c.enter_consumer("a", "t", instance_id="i", rack_id="r", client_id="me")
    c.commit(1, group="simple")
    described = c.describe_consumer("g")
    assert (described.group_state, described.group_epoch, described.assignment_epoch) == ("Stable", 2, 2)
    (member,) = described.members
    assert (member.member_id, member.instance_id, member.rack_id, member.client_id) == ("a", "i", "r", "me")
    assert member.subscribed_topic_names == ["t"]
    assert [(t.topic_name, t.partitions) for t in member.assignment.topic_partitions] == [("t", [0, 1])]
    assert member.assignment == member.target_assignment
    assert c.describe_consumer("none").error_code == E.GROUP_ID_NOT_FOUND
    assert c.describe_consumer("simple").error_message == "Group simple is not a consumer group."
    assert c.describe("g", 5).error_code == E.NONE
    assert c.describe("g", 6).error_message == "Group g is not a classic group."

    def listed(states: list[str], types: list[str]) -> dict[str, str]:
        return {group.group_id: group.group_type for group in c.list(states, types)}

    assert listed([], []) == {"g": "consumer", "simple": "classic"}
    assert listed(["stable"], []) == listed([], ["Consumer"]) == {"g": "consumer"}
    assert listed(["Empty"], ["classic"]) == {"simple": "classic"}
    assert listed([], ["share"]) == {}
