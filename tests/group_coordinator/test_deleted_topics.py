"""The offsets of deleted topics: they are removed a few at a time, and nobody sees them meanwhile."""

from __future__ import annotations

from kbroker.group_coordinator.offset_removal import AT_ONCE
from kbroker.group_coordinator.records import offsets as offset_records
from kbroker.group_coordinator.shard import GroupShard
from kbroker.long_work import whole
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.coordinator_records import OffsetCommitValue
from kbroker.protocol.messages.group_offsets import OffsetFetchRequestGroup
from kbroker.protocol.records import iter_batches
from tests.group_coordinator.context import TOPIC_ID, Context

E = ErrorCode
COUNT = 3 * AT_ONCE
NEW_ID = b"n" * 16


def replay(c: Context, offset: int, partition: int, *, producer_id: int = -1, topic_id: bytes = TOPIC_ID) -> None:
    value = OffsetCommitValue(offset=offset, commit_timestamp=c.now, topic_id=topic_id)
    c.shard.replay(offset, producer_id, *offset_records.offset_commit("g", "t", partition, value))


def context() -> Context:
    c = Context()
    c.commit(1, topic="u")
    for partition in range(COUNT):
        replay(c, partition, partition)
    return c


def begin(c: Context) -> None:
    c.ask(lambda shard, _now: shard.on_topics_deleted({"t": TOPIC_ID}))


def listed(c: Context) -> list[str]:
    answer = whole(c.shard.offsets.fetch(OffsetFetchRequestGroup(group_id="g", topics=None), require_stable=False))
    return [topic.name for topic in answer.topics]


def test_they_go_some_at_a_time() -> None:
    c = context()
    begin(c)
    assert len(c.log) == 1 + AT_ONCE
    c.advance(0)
    assert len(c.log) == 1 + COUNT
    batches = [header.record_count for batch in c.writer.batches for _, header in iter_batches(batch)]
    assert batches == [1, AT_ONCE, AT_ONCE, AT_ONCE]
    assert not c.shard.offsets._deleted
    assert list(c.shard.offsets._stored["g"]) == ["u"]


def test_nobody_sees_them_meanwhile() -> None:
    c = context()
    begin(c)
    assert c.fetch(partition=COUNT - 1) == (-1, E.NONE)
    assert listed(c) == ["u"]


def test_what_a_new_topic_of_that_name_is_given_meanwhile_stays() -> None:
    c = context()
    replay(c, 2 * COUNT, 0, producer_id=9)
    begin(c)
    replay(c, 3 * COUNT, COUNT - 1, topic_id=NEW_ID)
    replay(c, 3 * COUNT + 1, COUNT - 2, producer_id=10, topic_id=bytes(16))
    c.shard.replay_end_transaction(9, committed=True)
    c.shard.replay_end_transaction(10, committed=True)
    for _ in range(COUNT):
        c.advance(0)
    assert not c.shard.offsets._deleted
    assert [c.fetch(partition=i)[0] for i in (0, COUNT - 2, COUNT - 1)] == [-1, 3 * COUNT + 1, 3 * COUNT]
    assert set(c.shard.offsets._stored["g"]["t"]) == {COUNT - 2, COUNT - 1}


def test_an_offset_of_a_transaction_that_ends_meanwhile_goes_as_well() -> None:
    c = context()
    for partition in range(COUNT):
        replay(c, COUNT + partition, partition, producer_id=9, topic_id=bytes(16))
    begin(c)
    c.shard.replay_end_transaction(9, committed=True)
    for _ in range(COUNT):
        c.advance(0)
    assert list(c.shard.offsets._stored["g"]) == ["u"]


def test_topics_deleted_one_after_the_other_wait_for_their_turn() -> None:
    c = context()

    def delete_both(shard: GroupShard, _now: int) -> object:
        out = shard.on_topics_deleted({"t": TOPIC_ID})
        assert not shard.on_topics_deleted({"u": TOPIC_ID}).records
        return out

    c.ask(delete_both)
    for _ in range(COUNT):
        c.advance(0)
    assert not c.shard.offsets._stored
