"""Fetch with and without sessions, ListOffsets, OffsetForLeaderEpoch."""

from __future__ import annotations

from typing import Any

from compat_tests.wire.exchanges import sequence, versions
from compat_tests.wire.exchanges.produce import STAMP, batch, put
from compat_tests.wire.session import Wire
from kbroker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from kbroker.protocol.messages.logs import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)


def part(offset: int, partition: int = 0, max_bytes: int = 1 << 20, **fields: Any) -> FetchPartition:
    return FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes, **fields)


def request(topics: list[FetchTopic], **fields: Any) -> FetchRequest:
    defaults = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20}
    return FetchRequest(topics=topics, **{**defaults, **fields})


def named(wire: Wire, v: int, name: str, *parts: FetchPartition) -> FetchTopic:
    if v < 13:
        return FetchTopic(topic=name, partitions=list(parts))
    topic_id = bytes(range(16)) if name.startswith("no-such") else wire.topic_id(name)
    return FetchTopic(topic_id=topic_id, partitions=list(parts))


@sequence
def fetch_versions(wire: Wire) -> None:
    name = wire.topic("t", 2)
    for i in range(4):
        put(wire, name, batch(5, stamp=STAMP + i * 1000, codec=i))
    put(wire, name, batch(2), 1)
    size = len(batch(5))
    for v in versions(FetchRequest):

        def ask(label: str, *topics: FetchTopic, **fields: Any) -> None:
            wire.ask(label, request(list(topics), **fields), v)  # noqa: B023

        def t(*parts: FetchPartition, of: str = name) -> FetchTopic:
            return named(wire, v, of, *parts)  # noqa: B023

        ask("from 0", t(part(0)))
        ask("from the middle of a batch", t(part(7)))
        ask("at the end", t(part(20)))
        ask("past the end", t(part(21)))
        ask("negative", t(part(-1)))
        ask("huge", t(part(2**60)))
        ask("two partitions", t(part(0), part(0, 1)))
        ask("first batch larger than asked", t(part(0, max_bytes=1)))
        ask("zero bytes", t(part(0, max_bytes=0)))
        ask("two, little room", t(part(0, max_bytes=1), part(0, 1, max_bytes=1)))
        ask("max bytes 1", t(part(0), part(0, 1)), max_bytes=1)
        ask("a batch and a bit", t(part(0, max_bytes=size + 10)))
        ask("read committed", t(part(0)), isolation_level=1)
        ask("unknown partition", t(part(0, 9)))
        ask("unknown topic", t(part(0), of="no-such-topic"))
        ask("known and unknown", t(part(0), part(0, 9)))
        ask("no topics")
        ask("same twice", t(part(0), part(5)))
        if v >= 9:
            ask("leader epoch 0", t(part(0, current_leader_epoch=0)))
            ask("leader epoch 5", t(part(0, current_leader_epoch=5)))
            ask("leader epoch -5", t(part(0, current_leader_epoch=-5)))
        if v >= 12:
            ask("last epoch 0", t(part(5, last_fetched_epoch=0)))
            ask("last epoch 0 past the end", t(part(25, last_fetched_epoch=0)))
            ask("last epoch 7", t(part(5, last_fetched_epoch=7)))
        if v >= 7:
            ask("unknown session", t(part(0)), session_id=12345, session_epoch=1)
            ask("negative session", t(part(0)), session_id=-5, session_epoch=3)
            ask("close an unknown session", t(part(0)), session_id=77, session_epoch=-1)


@sequence
def fetch_waits(wire: Wire) -> None:
    name = wire.topic("t")
    client = wire.client()
    client.start(request([named(wire, 11, name, part(0))], max_wait_ms=20000), 11)
    put(wire, name, batch(1))
    wire.finish("woken by a record", client, 11)
    client.start(request([named(wire, 11, name, part(1))], max_wait_ms=200), 11)
    wire.finish("after max wait", client, 11)
    client.start(request([named(wire, 11, name, part(1))], max_wait_ms=20000, min_bytes=150), 11)
    put(wire, name, batch(1))
    put(wire, name, batch(1))
    wire.finish("min bytes", client, 11)


@sequence
def fetch_sessions(wire: Wire) -> None:
    a, b = wire.topic("a", 2), wire.topic("b")
    put(wire, a, batch(3))
    for v in (7, 11, 12, 13, 17, 18):

        def ask(label: str, topics: list[FetchTopic], **fields: Any) -> Any:
            return wire.ask(label, request(topics, **fields), v)  # noqa: B023

        def ta(*parts: FetchPartition) -> FetchTopic:
            return named(wire, v, a, *parts)  # noqa: B023

        def forget(name: str, *partitions: int) -> list[ForgottenTopic]:
            if v < 13:  # noqa: B023
                return [ForgottenTopic(topic=name, partitions=list(partitions))]
            return [ForgottenTopic(topic_id=wire.topic_id(name), partitions=list(partitions))]

        full = [ta(part(0), part(0, 1)), named(wire, v, b, part(0))]
        sid = ask("full", full, session_epoch=0).session_id
        ask("nothing new", [], session_id=sid, session_epoch=1)
        end = wire.quiet(latest(a), 5).topics[0].partitions[0].offset
        ask("moved on", [ta(part(end))], session_id=sid, session_epoch=2)
        ask("still nothing", [], session_id=sid, session_epoch=3)
        put(wire, a, batch(2))
        ask("news", [], session_id=sid, session_epoch=4)
        ask("wrong epoch", [], session_id=sid, session_epoch=9)
        ask("an error", [ta(part(9999, 1))], session_id=sid, session_epoch=5)
        ask("the error again", [], session_id=sid, session_epoch=6)
        ask("mended", [ta(part(0, 1))], session_id=sid, session_epoch=7)
        ask("one forgotten", [], session_id=sid, session_epoch=8, forgotten_topics_data=forget(a, 0))
        ask("unknown topic added", [named(wire, v, "no-such-topic", part(0))], session_id=sid, session_epoch=9)
        ask("all forgotten", [], session_id=sid, session_epoch=10, forgotten_topics_data=[*forget(a, 1), *forget(b, 0)])
        ask("closed", [], session_id=sid, session_epoch=-1)
        ask("gone", [], session_id=sid, session_epoch=11)
        ask("sessionless", full, session_epoch=-1)
    sid = wire.quiet(request([named(wire, 12, a, part(0))], session_epoch=0), 12).session_id
    wire.ask("names, then ids", request([], session_id=sid, session_epoch=1), 13)


def latest(name: str) -> ListOffsetsRequest:
    return ListOffsetsRequest(topics=[ListOffsetsTopic(name, [ListOffsetsPartition(0, timestamp=-1)])])


TIMES = {
    "zero": 0,
    "first": STAMP,
    "inside": STAMP + 2,
    "between": STAMP + 500,
    "second batch": STAMP + 1000,
    "last": STAMP + 3004,
    "after": STAMP + 3005,
}


@sequence
def list_offsets(wire: Wire) -> None:
    name, empty = wire.topic("t"), wire.topic("empty")
    for i in range(4):
        put(wire, name, batch(5, stamp=STAMP + i * 1000))
    put(wire, name, batch(1, stamp=STAMP - 5000))
    for v in versions(ListOffsetsRequest):

        def ask(label: str, timestamp: int, of: str = name, partition: int = 0, **fields: Any) -> None:
            p = ListOffsetsPartition(partition, timestamp=timestamp, **fields)
            wire.ask(label, ListOffsetsRequest(topics=[ListOffsetsTopic(of, [p])]), v)  # noqa: B023

        for special in range(-1, -9, -1):
            ask(f"special {special}", special)
        ask("latest of nothing", -1, empty)
        ask("earliest of nothing", -2, empty)
        ask("max timestamp of nothing", -3, empty)
        ask("any time of nothing", 5, empty)
        for label, stamp in TIMES.items():
            ask(label, stamp)
        ask("unknown partition", -1, partition=9)
        ask("unknown topic", -1, "no-such-topic")
        if v >= 4:
            ask("leader epoch 0", -1, current_leader_epoch=0)
            ask("leader epoch 3", -1, current_leader_epoch=3)
            ask("leader epoch -5", -1, current_leader_epoch=-5)
        twice = ListOffsetsTopic(name, [ListOffsetsPartition(0, timestamp=-1), ListOffsetsPartition(0, timestamp=-2)])
        wire.ask("twice", ListOffsetsRequest(topics=[twice]), v)
        if v >= 2:
            committed = ListOffsetsRequest(
                isolation_level=1, topics=[ListOffsetsTopic(name, [ListOffsetsPartition(0, timestamp=-1)])]
            )
            wire.ask("committed", committed, v)
        wire.ask("none", ListOffsetsRequest(), v)
    stamped = wire.topic("stamped", message_timestamp_type="LogAppendTime")
    put(wire, stamped, batch(3))
    p = ListOffsetsTopic(stamped, [ListOffsetsPartition(0, timestamp=-3)])
    wire.ask("max timestamp, append time", ListOffsetsRequest(topics=[p]), 7)


@sequence
def offset_for_leader_epoch(wire: Wire) -> None:
    name = wire.topic("t")
    put(wire, name, batch(3))
    for v in versions(OffsetForLeaderEpochRequest):
        for label, topic, partition, current, epoch in [
            ("epoch 0", name, 0, -1, 0),
            ("epoch 5", name, 0, -1, 5),
            ("epoch -1", name, 0, -1, -1),
            ("current 0", name, 0, 0, 0),
            ("current 9", name, 0, 9, 0),
            ("current -5", name, 0, -5, 0),
            ("unknown partition", name, 3, -1, 0),
            ("unknown topic", "no-such-topic", 0, -1, 0),
        ]:
            p = OffsetForLeaderPartition(partition=partition, current_leader_epoch=current, leader_epoch=epoch)
            request = OffsetForLeaderEpochRequest(replica_id=-1, topics=[OffsetForLeaderTopic(topic, [p])])
            wire.ask(label, request, v)
