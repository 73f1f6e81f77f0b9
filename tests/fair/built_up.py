"""Operations that are expensive because of earlier ones: a long log, many waiting clients, very many producers.

Owns these stories. Each is a generator of (broker, sizes) that yields the name of its next action, which is measured
until its next yield; under an empty name it only prepares. Every story has its own broker. Never judges:
test_built_up.py does, in short.

    python -m tests.fair.built_up [--kafka] [--only TEXT] [--segments N] [--partitions N] [--producers N]
"""

from __future__ import annotations

import argparse
import os
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from compat_tests.harness.brokers import BrokerProcess
from compat_tests.wire.client import WireClient
from kbroker.protocol.compiler import decode
from kbroker.protocol.messages.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalConfig,
    IncrementalResource,
)
from kbroker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kbroker.protocol.messages.logs import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kbroker.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from kbroker.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from kbroker.protocol.records import build_batch, compute_crc
from tests.fair.__main__ import Memory, Quiet, broker, told_by
from tests.fair.rows import framed

S = TypeVar("S")
LONG, WIDE, MANY = "fair-long-log", "fair-many-partitions", "fair-many-producers"
"""The topics, one for each story."""
WAITING: Final = 20
"""The number of connections with a waiting Fetch."""
PATIENCE_SECONDS: Final = 300.0
_PRODUCE, _FETCH = 9, 12
_WINDOW: Final = 100
"""Requests that are sent before the first of them is answered."""
_STEP_MS: Final = 10
_FIRST_ID: Final = 1_000_000
_PRODUCER_ID_AT, _CRC_AT = 43, 17
_SNAPSHOT_ENTRY_BYTES: Final = 42
_NEVER_ENOUGH: Final = 1 << 30


class Sizes(NamedTuple):
    """How much is built up, and the length of a story that has no end of its own."""

    segments: int = 12_000
    partitions: int = 5_000
    producers: int = 300_000
    seconds: float = 8.0
    rolls: int = 10


Story = Callable[[BrokerProcess, Sizes], Iterator[str]]


# -- what the stories do


def create(client: WireClient, name: str, partitions: int = 1, **configs: str) -> None:
    """Create the topic, and wait until all its partitions have their leaders."""
    wanted = [CreatableTopicConfig(key.replace("_", "."), value) for key, value in configs.items()]
    topic = CreatableTopic(name, partitions, 1, configs=wanted)
    client.start(CreateTopicsRequest(topics=[topic], timeout_ms=60_000), 7)
    assert isinstance(client.receive(PATIENCE_SECONDS), bytes)
    asked = [ListOffsetsPartition(n, timestamp=-1) for n in range(partitions)]
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name, asked)])

    def is_led() -> bool:
        topics = client.ask(request, 7).topics
        return not any(part.error_code for topic in topics for part in topic.partitions)

    wait_until(is_led, "the topic did not come to be")


def now_ms() -> int:
    return int(time.time() * 1000)


def a_batch(timestamp: int, producer_id: int = -1) -> bytes:
    known = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0} if producer_id >= 0 else {}
    return build_batch([(timestamp, None, b"x" * 10, ())], **known)


def produce(topic: str, index: int, batch: bytes) -> ProduceRequest:
    data = [PartitionProduceData(index, batch)]
    return ProduceRequest(acks=1, timeout_ms=30_000, topic_data=[TopicProduceData(topic, partition_data=data)])


def pipelined(client: WireClient, frames: Iterable[bytes]) -> None:
    """Send Produce requests, some hundred at a time; every request must succeed."""
    left = iter(frames)
    while window := list(islice(left, _WINDOW)):
        client.send_bytes(b"".join(window))
        for _ in window:
            _taken(client.receive(PATIENCE_SECONDS))


def _taken(raw: bytes | str) -> PartitionProduceResponse:
    assert isinstance(raw, bytes), raw
    answer: Any = decode(ProduceResponse, _PRODUCE, memoryview(raw)[5:])
    part: PartitionProduceResponse = answer.responses[0].partition_responses[0]
    assert part.error_code == 0, part
    return part


def write(client: WireClient, topic: str, timestamp: int) -> int:
    """Write one record to partition 0; returns its offset."""
    client.start(produce(topic, 0, a_batch(timestamp)), _PRODUCE)
    return _taken(client.receive(PATIENCE_SECONDS)).base_offset


def wait_until(condition: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.02)


def appears(path: Path, seconds: float) -> bool:
    """Wait for a file for some time; return whether it is there."""
    until = time.monotonic() + seconds
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.02)
    return path.exists()


# -- the stories


def delete_records(running: BrokerProcess, sizes: Sizes) -> Iterator[str]:
    """Delete all records of a partition that has very many segments, and wait until the files are gone."""
    folder = running.data_dir / f"{LONG}-0"

    def logs() -> int:
        return sum(".log" in name for name in os.listdir(folder))

    with WireClient(running.bootstrap) as client:
        create(client, LONG, segment_ms="1")
        yield f"a partition gets {sizes.segments:,} segments"
        first = now_ms()
        stamps = range(first + _STEP_MS, first + _STEP_MS * (sizes.segments + 1), _STEP_MS)
        pipelined(client, (framed(produce(LONG, 0, a_batch(stamp)), _PRODUCE) for stamp in stamps))
        assert logs() >= sizes.segments, logs()
        yield f"DeleteRecords over {sizes.segments:,} segments"
        topic = DeleteRecordsTopic(LONG, [DeleteRecordsPartition(0, -1)])
        client.start(DeleteRecordsRequest(topics=[topic], timeout_ms=60_000), 2)
        assert isinstance(client.receive(PATIENCE_SECONDS), bytes)
        wait_until(lambda: logs() <= 2, "the files are still there")


class _Waiting:
    """Connections that each have a Fetch of all partitions; only partition 0 receives records."""

    def __init__(self, address: str, partitions: int, min_bytes: int) -> None:
        marker = 0x0123456789ABCDEF
        wanted = [FetchPartition(partition=n, partition_max_bytes=1 << 20) for n in range(partitions)]
        wanted[0].fetch_offset = marker
        request = FetchRequest(
            max_wait_ms=600_000, min_bytes=min_bytes, max_bytes=1 << 30, session_epoch=-1,
            topics=[FetchTopic(WIDE, partitions=wanted)],
        )  # fmt: skip
        frame = framed(request, _FETCH)
        place = frame.index(struct.pack(">q", marker))
        self._before, self._behind = frame[:place], frame[place + 8 :]
        self._clients = [WireClient(address) for _ in range(WAITING)]

    def ask(self, offset: int) -> None:
        """On each connection, fetch partition 0 from an offset on."""
        for client in self._clients:
            client.send_bytes(self._before + struct.pack(">q", offset) + self._behind)

    def take(self) -> None:
        """Read a response on each connection."""
        for client in self._clients:
            assert isinstance(client.receive(PATIENCE_SECONDS), bytes)

    def close(self) -> None:
        for client in self._clients:
            client.close()


def parked_fetches(running: BrokerProcess, sizes: Sizes) -> Iterator[str]:
    """Write to one of very many partitions that others wait for; first too little for them, then enough."""
    with WireClient(running.bootstrap) as client:
        create(client, WIDE, sizes.partitions)
        end = write(client, WIDE, now_ms()) + 1
        waiting = _Waiting(running.bootstrap, sizes.partitions, _NEVER_ENOUGH)
        yield f"{WAITING} Fetches of {sizes.partitions:,} partitions begin to wait"
        waiting.ask(end)
        time.sleep(sizes.seconds / 2)
        yield "a producer writes to one of the partitions, not enough"
        until = time.monotonic() + sizes.seconds
        while time.monotonic() < until:
            end = write(client, WIDE, now_ms()) + 1
        yield ""
        waiting.close()
        waiting = _Waiting(running.bootstrap, sizes.partitions, 1)
        waiting.ask(end)
        time.sleep(sizes.seconds / 4)
        yield "a producer writes to one, and all answers are taken"
        until = time.monotonic() + sizes.seconds
        while time.monotonic() < until:
            end = write(client, WIDE, now_ms()) + 1
            waiting.take()
            waiting.ask(end)
        yield ""
        waiting.close()


def producer_ids(running: BrokerProcess, sizes: Sizes) -> Iterator[str]:
    """Roll a partition with very many producers; each roll takes a snapshot of them."""
    stamp = now_ms()

    def first_batches() -> Iterator[bytes]:
        batch = a_batch(stamp, _FIRST_ID)
        frame = framed(produce(MANY, 0, batch), _PRODUCE)
        place = frame.index(batch)
        before, behind, made = frame[:place], frame[place + len(batch) :], bytearray(batch)
        for producer in range(_FIRST_ID, _FIRST_ID + sizes.producers):
            struct.pack_into(">q", made, _PRODUCER_ID_AT, producer)
            struct.pack_into(">I", made, _CRC_AT, compute_crc(made))
            yield before + made + behind

    with WireClient(running.bootstrap) as client:
        create(client, MANY)
        yield f"{sizes.producers:,} producers write a batch each"
        pipelined(client, first_batches())
        yield ""
        resource = IncrementalResource(2, MANY, [IncrementalConfig("segment.ms", 0, "1")])
        answer = client.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1)
        assert answer.responses[0].error_code == 0, answer
        yield f"{sizes.rolls} rolls, each with a snapshot of {sizes.producers:,} producers"
        until, rolls = time.monotonic() + PATIENCE_SECONDS, 0
        for second in count(1):
            rolled = write(client, MANY, stamp + 1_000 * second)
            path = running.data_dir / f"{MANY}-0" / f"{rolled:020}.snapshot"
            if not rolls and not appears(path, 2.0):  # Kafka confirms changed configs before its logs know them
                assert time.monotonic() < until, "nothing is rolled"
                continue
            wait_until(path.exists, f"no {path}")
            assert path.stat().st_size >= sizes.producers * _SNAPSHOT_ENTRY_BYTES, path.stat().st_size
            rolls += 1
            if rolls == sizes.rolls:
                break


STORIES: dict[str, Story] = {
    "DeleteRecords": delete_records,
    "parked Fetches": parked_fetches,
    "producer ids": producer_ids,
}


# -- measuring


@dataclass(frozen=True, slots=True)
class Measured:
    """The cost of a part of a story for others: waits in ms, growth in MB."""

    name: str
    longest: float
    middle: float
    grown: float
    seconds: float

    def __str__(self) -> str:
        return f"{self.name:58} {self.longest:9.1f} ms {self.middle:5.2f} ms {self.grown:5.0f} MB {self.seconds:7.2f} s"


def measure(running: BrokerProcess, story: Callable[[BrokerProcess, S], Iterator[str]], sizes: S) -> Iterator[Measured]:
    """Run a story, and yield the cost of each part for the quiet client and the broker's memory."""
    memory = Memory(running.pid)
    quiet = Quiet(running.bootstrap)
    parts = story(running, sizes)
    try:
        name = next(parts, None)
        while name is not None:
            before = memory.forget_peak()
            quiet.begin()
            began = time.perf_counter()
            following = next(parts, None)
            seconds = time.perf_counter() - began
            told = quiet.end()
            if name:
                waits = [told.get(which, float("inf")) * 1000 for which in ("longest", "middle")]
                yield Measured(name, *waits, memory.peak() - before, seconds)
            name = following
    finally:
        quiet.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fair.built_up", description=__doc__)
    parser.add_argument("--kafka", action="store_true", help="measure Apache Kafka instead")
    parser.add_argument("--only", default="", help=f"stories whose name has this text: {', '.join(STORIES)}")
    for name, default in Sizes._field_defaults.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    options = parser.parse_args()
    sizes = Sizes(*(getattr(options, name) for name in Sizes._fields))
    print(f"{'story':58} {'longest wait':>12} {'middle':>8} {'memory':>8} {'took':>9}")
    for name, story in STORIES.items():
        if options.only in name:
            with broker(options.kafka) as running:
                for measured in measure(running, story, sizes):
                    print(measured, flush=True)
                    for line in told_by(running):
                        print(f"{'':4}{line}", flush=True)


if __name__ == "__main__":
    main()
