"""Batches that are decompressed in slices: a change between two slices counts when the batch is appended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from types import CoroutineType
from typing import Any

import pytest

from kbroker.broker.node import BrokerNode
from kbroker.config.server_config import BrokerConfig
from kbroker.handlers.produce import produce
from kbroker.handlers.registry import CloseConnection, RequestContext
from kbroker.log import record_validation
from kbroker.log.append_info import COORDINATOR
from kbroker.long_work import whole
from kbroker.partition import Partition
from kbroker.protocol.compression import GZIP, ZSTD
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kbroker.protocol.records import parse_header, read_records
from tests.broker.in_effect import in_effect
from tests.log.bombs import numbered
from tests.log.builders import batch

NOW = int(time.time() * 1000)


@pytest.fixture(autouse=True)
def nothing_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_validation, "_AT_ONCE_SECONDS", 0)
    monkeypatch.setattr(record_validation, "_FEW", 0)


@asynccontextmanager
async def broker(directory: str, **defaults: str) -> AsyncIterator[tuple[BrokerNode, RequestContext]]:
    config = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": directory, "num.partitions": "3"}
    node = await BrokerNode.start(BrokerConfig(config | {k.replace("_", "."): v for k, v in defaults.items()}))
    try:
        node.controller.auto_create("t")
        await in_effect(node)
        context = RequestContext(node.services, "/127.0.0.1", "PLAINTEXT", ("", 0))
        context.version = 9
        yield node, context
    finally:
        await node.stop()


def request(*batches: bytes, acks: int = 1) -> ProduceRequest:
    parts = [PartitionProduceData(index=i, records=memoryview(bytearray(b))) for i, b in enumerate(batches)]
    return ProduceRequest(acks=acks, timeout_ms=1000, topic_data=[TopicProduceData(name="t", partition_data=parts)])


def codes(answer: Any) -> list[int]:
    return [part.error_code for topic in answer.responses for part in topic.partition_responses]


def run(tmp_path: Any, scenario: Callable[[BrokerNode, RequestContext], None], **defaults: str) -> None:
    async def main() -> None:
        async with broker(str(tmp_path), **defaults) as (node, context):
            scenario(node, context)

    asyncio.run(main())


def partition(node: BrokerNode, index: int = 0) -> Partition:
    found = node.services.replicas.get(("t", index))
    assert found is not None
    return found


def begun(ctx: RequestContext, asked: ProduceRequest, steps: int = 2) -> Any:
    """Return a request's work after some steps."""
    work: Any = produce(ctx, asked)
    assert isinstance(work, CoroutineType)
    for _ in range(steps):
        work.send(None)
    return work


def good(count: int = 3000, **kw: Any) -> bytes:
    return batch(count, timestamp=NOW, **kw)


def test_others_go_first_and_each_has_its_answer(tmp_path: Any) -> None:
    def scenario(node: BrokerNode, ctx: RequestContext) -> None:
        work = begun(ctx, request(good(), good(2, key=None), good(codec=ZSTD)))
        log = partition(node).log
        assert log.log_end_offset == 0
        log.append_as_leader(good(5), 0, NOW)
        answer = whole(work)
        assert codes(answer) == [0, ErrorCode.INVALID_RECORD, 0]
        parts = answer.responses[0].partition_responses
        assert [part.base_offset for part in parts] == [5, -1, 0]
        assert [error.batch_index for error in parts[1].record_errors] == [0, 1]
        assert [partition(node, i).log.log_end_offset for i in range(3)] == [3005, 0, 3000]
        assert partition(node).log.high_watermark == 3005

    run(tmp_path, scenario, log_cleanup_policy="compact")


def test_settings_of_the_append_count(tmp_path: Any) -> None:
    def scenario(node: BrokerNode, ctx: RequestContext) -> None:
        log = partition(node).log
        work = begun(ctx, request(good()))
        log.update_config(replace(log.config, max_message_bytes=1000))
        assert codes(whole(work)) == [ErrorCode.MESSAGE_TOO_LARGE]
        log.update_config(replace(log.config, max_message_bytes=1 << 20))
        work = begun(ctx, request(good()))
        log.update_config(replace(log.config, compression_type="gzip"))
        assert codes(whole(work)) == [0]
        assert parse_header(log.read(0, 1 << 20, 3000, min_one=True).view()).codec == GZIP

    run(tmp_path, scenario, log_cleanup_policy="compact")


def test_codec_and_time(tmp_path: Any) -> None:
    def scenario(node: BrokerNode, ctx: RequestContext) -> None:
        records = numbered(20_000, base_timestamp=NOW)
        answer = whole(begun(ctx, request(records)))
        log = partition(node).log
        view = log.read(0, 1 << 20, 20_000, min_one=True).view()
        header = parse_header(view)
        assert (header.codec, header.timestamp_type, header.record_count) == (GZIP, 1, 20_000)
        assert answer.responses[0].partition_responses[0].log_append_time_ms == header.max_timestamp >= NOW
        assert [r.key for r in read_records(view[: header.size], max_bytes=1 << 24)] == [b"k"] * 20_000

    run(tmp_path, scenario, compression_type="gzip", log_message_timestamp_type="LogAppendTime")


def test_a_topic_that_goes_meanwhile(tmp_path: Any) -> None:
    def scenario(node: BrokerNode, ctx: RequestContext) -> None:
        work = begun(ctx, request(good()))
        partition(node).leading = False
        assert codes(whole(work)) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]

    run(tmp_path, scenario, log_cleanup_policy="compact")


def test_without_an_answer(tmp_path: Any) -> None:
    def scenario(node: BrokerNode, ctx: RequestContext) -> None:
        assert whole(begun(ctx, request(good(), acks=0))) is None
        work = begun(ctx, request(good(key=None), good(), acks=0))
        with pytest.raises(CloseConnection):
            whole(work)
        assert [partition(node, i).log.log_end_offset for i in range(2)] == [3000, 3000]

    run(tmp_path, scenario, log_cleanup_policy="compact")


def test_sequences_are_checked_at_the_append(tmp_path: Any) -> None:
    def scenario(node: BrokerNode, ctx: RequestContext) -> None:
        producer = {"producer_id": 7, "producer_epoch": 0}
        first = good(base_sequence=0, **producer)
        assert codes(whole(begun(ctx, request(first)))) == [0]
        again = whole(begun(ctx, request(first)))
        assert (codes(again), again.responses[0].partition_responses[0].base_offset) == ([0], 0)
        gap = good(base_sequence=3001, **producer)
        assert codes(whole(begun(ctx, request(gap)))) == [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER]
        assert partition(node).log.log_end_offset == 3000

    run(tmp_path, scenario, log_cleanup_policy="compact")


@pytest.mark.long
def test_a_connection_that_ends_leaves_nothing_behind(tmp_path: Any) -> None:
    def scenario(node: BrokerNode, ctx: RequestContext) -> None:
        works = [begun(ctx, request(numbered(50_000, base_timestamp=NOW)), 1) for _ in range(12)]
        assert len(node.services.replicas.openings) == 12
        for work in works:
            work.close()
        assert len(node.services.replicas.openings) == 0
        assert partition(node).log.log_end_offset == 0

    run(tmp_path, scenario, log_cleanup_policy="compact")


def test_a_coordinators_batch_waits_for_nothing(tmp_path: Any) -> None:
    def scenario(node: BrokerNode, ctx: RequestContext) -> None:
        info = partition(node).append(good(), -1, NOW, COORDINATOR)
        assert info.last_offset == 2999

    run(tmp_path, scenario, compression_type="gzip")
