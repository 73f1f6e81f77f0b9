"""The express path of a Produce does the same as produce.py, for any request."""

from __future__ import annotations

import asyncio
import errno
import random
from pathlib import Path
from types import SimpleNamespace

import pytest

from compat_tests.wire.exchanges.produce import batch
from kbroker.broker.node import BrokerNode
from kbroker.config.server_config import BrokerConfig
from kbroker.handlers import express_produce
from kbroker.handlers.registry import CloseConnection, RequestContext
from kbroker.log.segment.segment import Segment
from kbroker.network.dispatch import Dispatcher
from kbroker.protocol.compiler import encode
from kbroker.protocol.messages.connections import RequestHeader
from kbroker.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kbroker.protocol.records import build_batch
from tests.broker.in_effect import in_effect
from tests.tries import tries

TOPICS = ("first", "second", "a-longer-name")
NOW = 1_700_000_000_000
SEED = 20261122


class Clock:
    """A clock that stands still."""

    def now_ms(self):
        return NOW

    def monotonic_ms(self):
        return 0.0


class Side:
    """A broker, and the path of one connection through it."""

    def __init__(self, node, express):
        self.node = node
        self.dispatcher = Dispatcher()
        self.dispatcher._express = express
        self.context = RequestContext(node.services, "/127.0.0.1", "PLAINTEXT", ("", 0))
        for topic in TOPICS:
            node.controller.auto_create(topic)

    def ids(self):
        return {topic: self.node.controller.state.topics[topic].topic_id for topic in TOPICS}

    def ask(self, frame):
        out, spill = bytearray(), []
        try:
            work = self.dispatcher.run(self.context, memoryview(bytearray(frame)), out, spill)
        except CloseConnection:
            return "closed"
        assert work is None
        assert not spill
        for topic, topic_id in self.ids().items():
            out = out.replace(topic_id, topic.encode().ljust(16))
        return bytes(out)

    def logs(self):
        found = {}
        for topic in TOPICS:
            for index in range(2):
                partition = self.node.replicas.get((topic, index))
                log = partition.log
                found[topic, index] = (log.log_end_offset, log.high_watermark, Path(_file(log)).read_bytes())
        return found


def _file(log):
    return log.segments.active.path()


def some_batch(rng):
    records = bytearray(batch(rng.choice([1, 1, 1, 3, 40]), stamp=NOW))
    kind = rng.randrange(12)
    if kind == 0:
        records[rng.randrange(len(records))] ^= 1 << rng.randrange(8)
    elif kind == 1:
        records = records[: rng.randrange(len(records))]
    elif kind == 2:
        records += batch(1, stamp=NOW)
    elif kind == 3:
        records += bytes(rng.randrange(1, 70))
    return bytes(records)


def some_frame(rng, version, ids):
    """Return a request that mostly looks like a producer's.

    The header's correlation id and client id sometimes change.
    """
    topic = rng.choice(TOPICS) if rng.random() < 0.3 else "first"
    index = rng.choice([0, 0, 0, 1, 7])
    data = [PartitionProduceData(index, some_batch(rng) if rng.random() < 0.97 else None)]
    if rng.random() < 0.05:
        data.append(PartitionProduceData(1, some_batch(rng)))
    topic_id = ids[topic] if rng.random() < 0.97 else rng.randbytes(16)
    request = ProduceRequest(
        acks=rng.choice([-1, -1, -1, 1, 1, 0, 5]) if rng.random() < 0.3 else -1,
        timeout_ms=rng.choice([30_000, 30_000, 1]),
        topic_data=[TopicProduceData(name=topic, topic_id=topic_id, partition_data=data)],
    )
    header = RequestHeader(
        request_api_key=0, request_api_version=version, correlation_id=rng.randrange(2**31), client_id=rng.choice("ab")
    )
    frame = bytearray(encode(header, 2 if version >= 9 else 1) + encode(request, version))
    kind = rng.randrange(20)
    if kind == 0:
        frame += bytes(rng.randrange(1, 5))
    elif kind == 1:
        del frame[rng.randrange(len(frame)) :]
    elif kind == 2 and version >= 9:
        frame[-1:] = b"\1\7\2ab"  # an unknown tag
    elif kind == 3:
        # Topic ids are left out: those of the two brokers differ, and an unknown one is echoed.
        place, bit, start = rng.randrange(8, len(frame)), 1 << rng.randrange(8), frame.find(topic_id)
        if start < 0 or not start <= place < start + 16:
            frame[place] ^= bit
    return bytes(frame)


def plain_frame(records):
    plain = [PartitionProduceData(0, records)]
    request = ProduceRequest(acks=-1, timeout_ms=1, topic_data=[TopicProduceData(name="first", partition_data=plain)])
    header = RequestHeader(request_api_key=0, request_api_version=9, correlation_id=1, client_id="c")
    return encode(header, 2) + encode(request, 9)


@pytest.fixture
def disk(monkeypatch):
    """A disk that accepts no batch while its `full` is true."""
    state = SimpleNamespace(full=False)
    append = Segment.append

    def failing(*arguments):
        if state.full:
            raise OSError(errno.ENOSPC, "full")
        append(*arguments)

    monkeypatch.setattr(Segment, "append", failing)
    return state


async def two_sides(tmp_path, story, **more):
    nodes = []
    try:
        for name in ("express", "reference"):
            config = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path / name), "num.partitions": "2"}
            config |= {key.replace("_", "."): value for key, value in more.items()}
            nodes.append(await BrokerNode.start(BrokerConfig(config), Clock()))
        sides = Side(nodes[0], True), Side(nodes[1], False)
        for node in nodes:
            await in_effect(node)
        await story(*sides)
    finally:
        for node in nodes:
            await node.stop()


@pytest.mark.parametrize("version", range(3, 14))
def test_any_request_is_answered_the_same(tmp_path, version, monkeypatch):
    rng = random.Random(SEED + version)
    print(f"seed {SEED + version}")
    by_express = 0
    answer = express_produce.KnownRequests.answer

    def counted(*arguments):
        nonlocal by_express
        done = answer(*arguments)
        by_express += done
        return done

    monkeypatch.setattr(express_produce.KnownRequests, "answer", counted)

    async def story(express, reference):
        for number in range(tries(1500)):
            state = rng.getstate()
            frame = some_frame(rng, version, express.ids())
            rng.setstate(state)
            other = some_frame(rng, version, reference.ids())
            assert express.ask(frame) == reference.ask(other), f"request {number}"
        assert express.logs() == reference.logs()

    asyncio.run(two_sides(tmp_path, story))
    assert by_express > tries(150)


def test_a_partition_that_is_not_the_one_it_was_is_looked_up(tmp_path):
    async def story(express, reference):
        frame = plain_frame(batch(1, stamp=NOW))
        for side in (express, reference):
            side.ask(frame)
            side.ask(frame)
        for side in (express, reference):
            side.node.controller.delete_topics(["first"])
            side.node.controller.auto_create("first")
            await in_effect(side.node)
        assert express.ask(frame) == reference.ask(frame)
        assert express.logs() == reference.logs()

    asyncio.run(two_sides(tmp_path, story))


def test_a_disk_that_takes_nothing_for_a_while(tmp_path, disk):
    """At that time the log has already written its offset into the batch; the next attempt must not see it."""

    async def story(express, reference):
        frame = plain_frame(batch(1, stamp=NOW))
        for disk.full in (False, False, True, True, False, False):
            assert express.ask(frame) == reference.ask(frame)
        assert express.logs() == reference.logs()

    asyncio.run(two_sides(tmp_path, story))


def test_a_batch_that_is_refused_with_our_time_on_it(tmp_path, disk):
    """The log stamps a batch before it notices an out-of-order sequence, or a full disk."""

    def frame(sequence):
        records = build_batch([(NOW, None, b"v", ())], producer_id=7, producer_epoch=0, base_sequence=sequence)
        return plain_frame(records)

    async def story(express, reference):
        for sequence, disk.full in ((0, False), (1, False), (9, False), (2, True), (2, False), (3, False)):
            assert express.ask(frame(sequence)) == reference.ask(frame(sequence)), sequence
        assert express.logs() == reference.logs()
        assert express.logs()["first", 0][0] == 4

    asyncio.run(two_sides(tmp_path, story, log_message_timestamp_type="LogAppendTime"))
