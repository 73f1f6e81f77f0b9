"""What a broker promises an idempotent producer, judged by the batches of a partition.

A producer's records are numbered by its id, its epoch, and a sequence. Within an epoch the broker appends each sequence
once and in order; it cannot do more. A client that begins a new epoch renumbers what was not acknowledged, even if it
was appended without the client's knowledge. librdkafka does so for all partitions when one of them has answered
OUT_OF_ORDER_SEQUENCE_NUMBER (rd_kafka_idemp_drain_epoch_bump), as happens with several requests in flight of which the
first was refused, for example because of too few replicas. Such records appear twice, in two epochs; on Apache Kafka as
well (compat_tests/clients/test_librdkafka_epochs.py).

Owns the reading of batches through Fetch, and the judgement. Never asks what the client received.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from compat_tests.wire.client import WireClient
from kbroker.protocol.messages.cluster import MetadataRequest, MetadataRequestTopic
from kbroker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kbroker.protocol.records import iter_batches, read_records

_VERSION = 11
_BYTES = 8 << 20


@dataclass(frozen=True)
class Batch:
    """One batch of a producer; `numbers` are the values of its records."""

    producer_id: int
    epoch: int
    sequence: int
    offset: int
    numbers: tuple[int, ...]


@dataclass
class Judged:
    """The offset of each number, and how many numbers the producer has sent in two epochs."""

    places: dict[int, list[int]]
    twice: int
    epochs: int


def judge(batches: list[Batch], where: str = "") -> Judged:
    """Raise AssertionError if a broker has duplicated, omitted or reordered what it received."""
    places: dict[int, list[int]] = defaultdict(list)
    epochs: dict[int, int] = {}
    next_sequence: dict[tuple[int, int], int] = {}
    last_number: dict[tuple[int, int], int] = {}
    end = 0
    for batch in batches:
        told = f"{where} at {batch.offset}: {batch}"
        assert batch.offset == end, f"{told} after {end}"
        end = batch.offset + len(batch.numbers)
        key = batch.producer_id, batch.epoch
        assert batch.epoch >= epochs.get(batch.producer_id, 0), f"{told}: of an epoch that is over"
        epochs[batch.producer_id] = batch.epoch
        assert batch.sequence == next_sequence.get(key, 0), f"{told}: {next_sequence.get(key, 0)} is next"
        next_sequence[key] = batch.sequence + len(batch.numbers)
        for offset, number in enumerate(batch.numbers, batch.offset):
            assert number > last_number.get(key, -1), f"{told}: {number} after {last_number.get(key, -1)}"
            last_number[key] = number
            places[number].append(offset)
    twice = sum(len(each) > 1 for each in places.values())
    return Judged(dict(places), twice, len(next_sequence))


def read_batches(servers: str, topic: str, index: int, patience_s: float) -> list[Batch]:
    """Read a partition from its leader to its high watermark."""
    deadline = time.monotonic() + patience_s
    while True:
        address = _leader(servers, topic, index)
        if address is not None:
            return list(_batches(address, topic, index))
        assert time.monotonic() < deadline, f"{topic}-{index} has no leader"
        time.sleep(0.1)


def _leader(servers: str, topic: str, index: int) -> str | None:
    with WireClient(servers.partition(",")[0]) as client:
        asked = MetadataRequest([MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
        answer = client.ask(asked, 9)
    addresses = {each.node_id: f"{each.host}:{each.port}" for each in answer.brokers}
    leaders = [each.leader_id for each in answer.topics[0].partitions if each.partition_index == index]
    return addresses.get(leaders[0]) if leaders else None


def _batches(address: str, topic: str, index: int) -> Iterator[Batch]:
    offset = 0
    with WireClient(address) as client:
        while True:
            wanted = FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=_BYTES)
            request = FetchRequest(max_bytes=_BYTES, topics=[FetchTopic(topic, partitions=[wanted])])
            (found,) = client.ask(request, _VERSION).responses[0].partitions
            assert not found.error_code, f"{topic}-{index} from {offset}: error {found.error_code}"
            for position, header in iter_batches(found.records or b""):
                data = memoryview(found.records)[position : position + header.size]
                numbers = tuple(int(each.value or b"") for each in read_records(data, max_bytes=_BYTES))
                yield Batch(
                    header.producer_id, header.producer_epoch, header.base_sequence, header.base_offset, numbers
                )
                offset = header.last_offset + 1
            if offset >= found.high_watermark:
                return
