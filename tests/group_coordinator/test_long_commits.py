"""Commits of many partitions: encoded ahead and in pieces, they apply to all partitions or none, as short ones do."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from kbroker.coordination.encoding import EncodedRecords, record_batch
from kbroker.coordination.shard import CoordinatorRecord, InTransaction
from kbroker.group_coordinator.commit_building import (
    FEW_RECORDS,
    NO_BOUND,
    build_commit,
    build_commit_in_transaction,
)
from kbroker.handlers.offset_commit import offset_commit
from kbroker.long_work import whole
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.fair.gaps import Counter, run
from tests.fair.long_requests import TOPIC
from tests.fair.test_long_requests import world
from tests.group_coordinator.context import TOPIC_ID, Context
from tests.group_coordinator.test_handlers import GONE_ID, PARTITION, Node, codes

E = ErrorCode
COUNT = 3 * FEW_RECORDS
LIMIT = 4096


def long_commit(count: int = COUNT, retention: int = -1, **options: Any) -> OffsetCommitRequest:
    partitions = [OffsetCommitRequestPartition(i % (count - 1), i, i % 7 - 1, "m" * (i % 3)) for i in range(count)]
    topics = [OffsetCommitRequestTopic("t", TOPIC_ID, partitions), OffsetCommitRequestTopic("u", TOPIC_ID, partitions)]
    return OffsetCommitRequest(group_id="g", topics=topics, retention_time_ms=retention, **options)


def long_transaction(topic: str = "t", count: int = COUNT) -> TxnOffsetCommitRequest:
    partitions = [TxnOffsetCommitRequestPartition(i, i + 5, -1, None) for i in range(count)]
    topics = [TxnOffsetCommitRequestTopic(topic, TOPIC_ID, partitions=partitions)]
    return TxnOffsetCommitRequest(group_id="g", producer_id=9, producer_epoch=1, topics=topics)


def commit(c: Context, request: OffsetCommitRequest, most_bytes: int = NO_BOUND) -> Any:
    built = whole(build_commit(request, c.now, LIMIT, most_bytes))
    return c.ask(lambda shard, _now: shard.commits.commit(request, 9, built))


def state(c: Context) -> tuple[Any, ...]:
    offsets = c.shard.offsets
    return (
        repr(offsets._stored),
        repr(offsets._pending),
        offsets._open,
        offsets._groups_by_topic,
        list(c.classic_groups),
    )


@pytest.mark.parametrize("retention", [-1, 1000])
def test_the_log_tells_the_same_as_the_memory(retention: int) -> None:
    c = Context()
    answer = commit(c, long_commit(retention=retention))
    assert {p.error_code for topic in answer.topics for p in topic.partitions} == {0}
    assert len(c.log) == 2 * COUNT
    assert len(c.writer.batches) == 1
    assert c.fetch(partition=0) == (COUNT - 1, E.NONE), "the last one counts"
    assert state(c) == state(c.restarted())


def test_a_transaction_has_them_pending() -> None:
    c = Context()
    request = long_transaction()
    built = whole(build_commit_in_transaction(request, c.now, LIMIT, NO_BOUND))
    c.ask(lambda shard, _now: shard.commits.commit_in_transaction(request, 6, None, built))
    assert c.fetch(partition=1, stable=True) == (-1, E.UNSTABLE_OFFSET_COMMIT)
    replayed = Context()
    for offset, record in enumerate(c.log):
        replayed.shard.replay(offset, 9, *record)
    assert state(c) == state(replayed)
    c.shard.replay_end_transaction(9, committed=True)
    assert c.fetch(partition=1, stable=True) == (6, E.NONE)


@pytest.mark.parametrize("producer", [None, InTransaction(9, 1, None)])
def test_the_bytes_are_those_of_a_batch_that_is_encoded_at_once(producer: InTransaction | None) -> None:
    records = [CoordinatorRecord(b"k" * i, None if i % 5 == 0 else b"v" * i) for i in range(200)]
    encoded = EncodedRecords()
    for record in records:
        encoded.add(record)
    assert encoded.batch(3, producer, 77) == record_batch(records, 3, producer, 77)


def test_what_cannot_be_written_has_changed_nothing() -> None:
    c = Context()
    c.commit(1)
    before = state(c)
    c.fail_with = E.NOT_ENOUGH_REPLICAS
    assert commit(c, long_commit()) == E.COORDINATOR_NOT_AVAILABLE
    c.fail_with = E.NONE
    assert commit(c, long_commit(), 41 * COUNT) == E.UNKNOWN_SERVER_ERROR
    assert commit(c, long_commit(generation_id_or_member_epoch=1, member_id="m")) == E.UNKNOWN_MEMBER_ID
    assert state(c) == before == state(c.restarted())


def test_metadata_that_are_too_long_are_refused_by_partition() -> None:
    c = Context()
    request = long_commit()
    request.topics[0].partitions[3:4] = [OffsetCommitRequestPartition(3, 1, -1, "m" * (LIMIT + 1))]
    answer = commit(c, request)
    wrong = {(topic.name, p.partition_index): p.error_code for topic in answer.topics for p in topic.partitions}
    assert [key for key, code in wrong.items() if code] == [("t", 3), ("u", 3)]
    assert len(c.log) == 2 * COUNT - 2


def test_of_a_topic_that_is_deleted_meanwhile_nothing_is_kept() -> None:
    node = Node()
    request = OffsetCommitRequest(group_id="g")
    request.topics = [
        OffsetCommitRequestTopic(name, partitions=[OffsetCommitRequestPartition(0, 5)]) for name in ("t", "gone")
    ]
    gone = type(node.controller.state.topics["t"])("gone", GONE_ID, (PARTITION,))
    node.controller.state = node.controller.state.with_topic(gone)
    node.context.version = 9
    work = offset_commit(node.context, request)
    for _ in range(5):
        work.send(None)
    node.controller.state = node.controller.state.without_topics(["gone"])
    assert codes(whole(work)) == {("gone", 0): E.UNKNOWN_TOPIC_OR_PARTITION, ("t", 0): E.NONE}
    shards = [shard for _, shard in node.groups._runtime.shards() if shard is not None]
    assert [topic for shard in shards for topic in shard.offsets._groups_by_topic] == ["t"]


@pytest.mark.long
def test_what_is_decided_at_one_go_is_short(tmp_path: Path) -> None:
    """Building, encoding and re-reading records is done in pieces; the rest takes little time for each partition."""
    count = 2_000
    plain = OffsetCommitRequest(group_id="g")
    plain.topics = [OffsetCommitRequestTopic(TOPIC, partitions=[OffsetCommitRequestPartition(0, 5)] * count)]

    async def scenario() -> None:
        async with world(tmp_path) as (context, _):
            await run(context, plain, 9)
            done = await run(context, plain, 9, Counter)
            assert {p.error_code for p in done.answer.topics[0].partitions} == {0}
            assert done.longest < 100 * count, f"{done.longest / count:.0f} steps a partition"

    asyncio.run(scenario())
