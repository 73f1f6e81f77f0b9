"""Everything that a broker answers about the data of a partition, as plain values.

Owns the questions. Never compares: the caller asks two brokers that serve the same files the same questions, and
compares the answers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, Final

from compat_tests.clients.common import wait_for
from compat_tests.wire.client import WireClient
from kbroker.protocol.messages.cluster import MetadataRequest
from kbroker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kbroker.protocol.messages.logs import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from kbroker.protocol.messages.transactions import DescribeProducersRequest, TopicRequest
from kbroker.protocol.records import iter_batches, read_marker

LATEST: Final = -1
# By ListOffsets version: -4 and -5 are of tiered storage (KIP-405, KIP-1005), -6 is KIP-1023.
_SPECIAL: Final = {-1: 8, -2: 8, -3: 8, -4: 8, -5: 9, -6: 11}
_LISTED: Final = 14
"""The number of offsets to fetch from, besides those before and after the beginning of every batch."""

Answers = dict[str, Any]


def questions(bootstrap: str, topic: str, partition: int = 0) -> tuple[list[int], list[int]]:
    """Return offsets to fetch from and timestamps to look for, taken from what a broker serves."""
    with WireClient(bootstrap) as client:
        offsets: set[int] = set()
        timestamps: set[int] = set()
        position = offset_at(client, topic, partition, -2)
        end = offset_at(client, topic, partition, LATEST)
        offsets |= {position, end, position + 1, end - 1}
        while position < end:
            got = _fetch(client, topic, partition, position, 1 << 20, 0)
            headers = [header for _, header in iter_batches(bytes(got.records or b""))]
            assert headers, f"nothing at {position} of {topic}-{partition}, which ends at {end}"
            for header in headers:
                offsets |= {header.base_offset, header.base_offset + header.last_offset_delta // 2}
                timestamps |= {header.base_timestamp, header.max_timestamp, header.max_timestamp + 1}
            position = headers[-1].last_offset + 1
        first = offset_at(client, topic, partition, -2)
        return _some(offsets, first, end), _some(timestamps, 0, 1 << 62)


def _some(values: Iterable[int], low: int, high: int) -> list[int]:
    """Return at most `count` of the values, evenly spread, always with the first and the last."""
    ordered = sorted(value for value in values if low <= value <= high)
    step = max(1, len(ordered) // _LISTED)
    return sorted({*ordered[::step], *ordered[:3], *ordered[-3:]})


def offset_at(client: WireClient, topic: str, partition: int, timestamp: int) -> int:
    return int(_list(client, topic, partition, timestamp, 5).offset)


def _list(client: WireClient, topic: str, partition: int, timestamp: int, version: int, isolation: int = 0) -> Any:
    asked = ListOffsetsPartition(partition, timestamp=timestamp)
    request = ListOffsetsRequest(
        replica_id=-1, isolation_level=isolation, topics=[ListOffsetsTopic(topic, [asked])], timeout_ms=10000
    )
    return client.ask(request, version).topics[0].partitions[0]


def _fetch(client: WireClient, topic: str, partition: int, offset: int, size: int, isolation: int) -> Any:
    asked = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=size)
    request = FetchRequest(
        max_wait_ms=0, min_bytes=0, isolation_level=isolation, topics=[FetchTopic(topic=topic, partitions=[asked])]
    )
    return client.ask(request, 12).responses[0].partitions[0]


def settled(bootstrap: str) -> None:
    """Wait until a broker knows a controller: a client that connects earlier may wait for long."""
    with WireClient(bootstrap) as client:
        wait_for("a controller", lambda: _led(client.ask(MetadataRequest(topics=[]), 8)))


def _led(cluster: Any) -> bool:
    return bool(cluster.brokers) and cluster.controller_id >= 0


def ready(bootstrap: str, topics: Iterable[str]) -> None:
    """Wait until a broker serves partition 0 of each topic."""
    with WireClient(bootstrap) as client:
        for topic in topics:

            def serves(topic: str = topic) -> bool:
                # With ZooKeeper, a leader begins to serve some APIs before others.
                begin = _list(client, topic, 0, -2, 5)
                return bool(begin.error_code == 0 == _fetch(client, topic, 0, begin.offset, 1, 0).error_code)

            wait_for(f"{topic} to be served", serves)


def ask_all(
    bootstrap: str, topic: str, offsets: list[int], timestamps: list[int], epochs: list[int], special: int
) -> Answers:
    """Ask every question about partition 0; `special` is the newest ListOffsets version that both sides serve."""
    found: Answers = {}
    with WireClient(bootstrap) as client:
        for isolation in (0, 1):
            for size in (700, 5000, 1 << 20):
                for offset in offsets:
                    got = _fetch(client, topic, 0, offset, size, isolation)
                    found[f"fetch {offset} {size} isolation {isolation}"] = _fetched(got)
            for timestamp in [each for each, version in _SPECIAL.items() if version <= special] + timestamps:
                version = max(_SPECIAL.get(timestamp, 8), 8)
                got = _list(client, topic, 0, timestamp, version, isolation)
                answer = [got.error_code, got.timestamp, got.offset, got.leader_epoch]
                if timestamp == LATEST:
                    answer.pop()  # the epoch of the current leader
                found[f"list {timestamp} isolation {isolation}"] = answer
        for epoch in epochs:
            asked = OffsetForLeaderTopic(topic, [OffsetForLeaderPartition(0, leader_epoch=epoch)])
            ended = client.ask(OffsetForLeaderEpochRequest(topics=[asked]), 4).topics[0].partitions[0]
            found[f"end of epoch {epoch}"] = [ended.error_code, ended.leader_epoch, ended.end_offset]
        request = DescribeProducersRequest(topics=[TopicRequest(topic, [0])])
        producers = client.ask(request, 0).topics[0].partitions[0]
        found["producers"] = [
            producers.error_code,
            sorted(
                [p.producer_id, p.producer_epoch, p.last_sequence, p.last_timestamp, p.coordinator_epoch,
                 p.current_txn_start_offset]
                for p in producers.active_producers
            ),
        ]  # fmt: skip
    return found


def _fetched(got: Any) -> list[Any]:
    records = bytes(got.records or b"")
    aborted = [[each.producer_id, each.first_offset] for each in got.aborted_transactions or []]
    return [
        got.error_code,
        got.high_watermark,
        got.last_stable_offset,
        got.log_start_offset,
        len(records),
        hashlib.sha256(records).hexdigest()[:16],
        _visible(records, aborted),
        aborted,
    ]


def _visible(records: bytes, aborted: list[list[int]]) -> list[int]:
    """Return the base offsets of the batches that a read_committed consumer takes from a response."""
    ahead = sorted(aborted, key=lambda each: each[1])
    dropped: set[int] = set()
    found = []
    for position, header in iter_batches(records):
        while ahead and ahead[0][1] <= header.last_offset:
            dropped.add(ahead.pop(0)[0])
        if header.is_control:
            marker = read_marker(records[position : position + header.size])
            if marker is not None and not marker.commit:
                dropped.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in dropped):
            found.append(header.base_offset)
    return found


def differing(theirs: Answers, ours: Answers, *, recovered: bool) -> list[str]:
    """Return the questions that were answered differently, with both answers.

    A response may list more aborted transactions than necessary: which ones depends on the positions of the index
    entries. Recovery puts these elsewhere than appending does, in Kafka as here. So after a recovery, only the records
    that a consumer sees are compared.
    """
    found = []
    for key, expected in theirs.items():
        answer = ours.get(key)
        same = expected[:-1] == answer[:-1] if recovered and key.startswith("fetch") and answer else expected == answer
        if not same:
            found.append(f"{key}: {expected} -> {answer}")
    return found
