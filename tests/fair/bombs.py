"""Batches that decompress to much more than their size, sent on every path on which a broker opens one.

Owns the paths, the full-sized bombs, and the figures of a quiet client beside them and of the broker's memory.
tests/log/bombs.py makes the batches themselves. Never judges: test_bombs.py does, in short.

    python -m tests.fair.bombs [--kafka] [PART OF A ROW'S NAME]
"""

from __future__ import annotations

import argparse
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

import psutil

from compat_tests.harness.brokers import ApacheKafka, BrokerProcess, KBroker
from compat_tests.harness.parts import fetch
from compat_tests.wire.client import WireClient
from kbroker.protocol.compression import CODEC_NAMES, GZIP, LZ4, NONE, SNAPPY, ZSTD
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.connections import ApiVersionsRequest
from kbroker.protocol.messages.logs import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kbroker.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kbroker.protocol.messages.topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from kbroker.protocol.records import compute_crc
from tests.log import bombs

_PARTITIONS = 64
_TOGETHER = ("1 M records, zstd", "a zstd window of 128 MB", "a value of 20 MB, snappy")
PRODUCE_VERSION, LIST_OFFSETS_VERSION = 9, 7
_NOW: Final = int(time.time() * 1000)
_AHEAD: Final = _NOW + 10 * 24 * 3_600_000
_DEADLINE_SECONDS = 600
_LED_SECONDS = 30
"""Seconds until a new partition has its leader, in Apache Kafka."""
_MB: Final = 1 << 20
_HELD: Final = "the event loop was held for"

WAYS: Final = {
    "timestamps ahead": {},
    "compacted": {"cleanup.policy": "compact"},
    "full validation": {},
    "to gzip": {"compression.type": "gzip", "record.validation": "header"},
    "to zstd": {"compression.type": "zstd", "record.validation": "header"},
    "to none": {"compression.type": "uncompressed"},
    "search by time": {"record.validation": "header"},
}
"""The topics and their configs; each opens a batch for another reason."""


@dataclass(frozen=True)
class Shape:
    """A bomb in its full size, with timestamps from `base` on."""

    name: str
    make: Callable[[int], bytes]


def shapes() -> Iterator[Shape]:
    """Yield the bombs: each fits into a request of 1 MiB, the most that producers send by default."""
    for codec in (GZIP, SNAPPY, LZ4, ZSTD):
        name, size = CODEC_NAMES[codec], (20 if codec == SNAPPY else 95) * _MB
        yield Shape(f"1 M records, {name}", partial(bombs.minimal, 1_000_000, codec))
        yield Shape(f"a value of {size // _MB} MB, {name}", partial(_stamped, bombs.one_record, size, codec))
    yield Shape("1 M records in order, zstd", partial(bombs.numbered, 1_000_000, ZSTD, b"k"))
    yield Shape("1 M records without keys, zstd", partial(bombs.numbered, 1_000_000, ZSTD, None))
    yield Shape("14.9 M records, zstd", partial(bombs.minimal, 14_900_000, ZSTD))
    yield Shape("140,000 records, none", partial(bombs.minimal, 140_000, NONE))
    yield Shape("450,000 headers, none", partial(_stamped, bombs.many_headers, 450_000, NONE))
    yield Shape("1 M headers, zstd", partial(_stamped, bombs.many_headers, 1_000_000, ZSTD))
    yield Shape("40 M headers, zstd", partial(_stamped, bombs.many_headers, 40_000_000, ZSTD))
    yield Shape("a count of 2^31-1", partial(_stamped, bombs.sealed, bombs.MINIMAL * 1_000_000, 2**31 - 1, ZSTD))
    yield Shape("50,000 gzip members", partial(_stamped, bombs.gzip_members, 50_000))
    yield Shape("100,000 zstd frames", partial(_stamped, bombs.zstd_frames, 100_000))
    yield Shape("300,000 zstd blocks", partial(_stamped, bombs.zstd_blocks, 300_000))
    yield Shape("a zstd window of 2 GB", partial(_stamped, bombs.zstd_window, 31, 64 * _MB))
    yield Shape("a zstd window of 128 MB", partial(_stamped, bombs.zstd_value, 27, 95 * _MB))
    yield Shape("lz4 blocks of 4 MB", partial(_stamped, bombs.lz4_block_sizes, 7 * _MB))
    yield Shape("30,000 lz4 frames", partial(_stamped, bombs.lz4_frames, 30_000))
    yield Shape("200,000 snappy blocks", partial(_stamped, bombs.snappy_blocks, 170_000))
    yield Shape("one snappy block of 7 MB", partial(_stamped, bombs.snappy_raw, 7 * _MB))
    yield Shape("a snappy block that claims 4 GB", partial(stamped, bombs.SNAPPY_CLAIM))


def _stamped(*call: Any) -> bytes:
    """Return the result of a function for all arguments except the last, which is the time."""
    make, *arguments, base = call
    return stamped(make(*arguments), base)


def stamped(batch: bytes, base: int, largest: int | None = None) -> bytes:
    """Return the batch with other timestamps in its header, and a valid CRC."""
    changed = bytearray(batch)
    struct.pack_into(">qq", changed, 27, base, base if largest is None else largest)
    struct.pack_into(">I", changed, 17, compute_crc(changed))
    return bytes(changed)


class Quiet(threading.Thread):
    """A client that sends a cheap request repeatedly and records its waits; and the broker's memory."""

    def __init__(self, broker: BrokerProcess) -> None:
        super().__init__(daemon=True)
        self._client = WireClient(broker.bootstrap, "quiet")
        self._process = psutil.Process(broker.pid)
        self._ended = threading.Event()
        self.longest = 0.0
        self.largest = 0

    def __enter__(self) -> Self:
        self.before = self._process.memory_info().rss
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()
        self._client.close()

    def run(self) -> None:
        while not self._ended.wait(0.002):
            asked = time.perf_counter()
            self._client.ask(ApiVersionsRequest("quiet", "1"), 3)
            self.longest = max(self.longest, time.perf_counter() - asked)
            self.largest = max(self.largest, self._process.memory_info().rss)

    @property
    def grown(self) -> int:
        """Return the largest growth of the broker, in bytes."""
        return max(self.largest - self.before, 0)


class Patient(WireClient):
    """A patient client: a bomb may take its time, as long as others do not notice it."""

    def receive(self, timeout: float = _DEADLINE_SECONDS) -> bytes | str:
        return super().receive(timeout)


def create_topics(broker: BrokerProcess) -> None:
    """Create a topic for each path; configs that Apache Kafka does not have are left out there."""
    ours = isinstance(broker, KBroker)
    topics = []
    for way, configs in WAYS.items():
        pairs = [CreatableTopicConfig(*pair) for pair in configs.items() if ours or pair[0] != "record.validation"]
        topics.append(CreatableTopic(topic_name(way), _PARTITIONS, 1, [], pairs))
    with WireClient(broker.bootstrap) as connection:
        answer = connection.ask(CreateTopicsRequest(topics=topics, timeout_ms=30_000), 5)
        assert [topic.error_code for topic in answer.topics] == [0] * len(topics), answer


def topic_name(way: str) -> str:
    return way.replace(" ", "-")


def send(broker: BrokerProcess, way: str, batch: bytes, partition: int = 0) -> int:
    """Let the broker open a batch; returns the error code of the response."""
    topic = topic_name(way)
    with Patient(broker.bootstrap, "bomber") as connection:
        data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=partition, records=batch)])
        request = ProduceRequest(acks=1, timeout_ms=5000, topic_data=[data])
        code: int = ErrorCode.NOT_LEADER_OR_FOLLOWER
        deadline = time.monotonic() + _LED_SECONDS
        while code == ErrorCode.NOT_LEADER_OR_FOLLOWER and time.monotonic() < deadline:
            answer = connection.ask(request, PRODUCE_VERSION)
            code = answer.responses[0].partition_responses[0].error_code
        if way == "search by time" and not code:
            wanted = ListOffsetsTopic(topic, [ListOffsetsPartition(partition, timestamp=_NOW - 1000)])
            found: Any = connection.ask(ListOffsetsRequest(topics=[wanted]), LIST_OFFSETS_VERSION)
            code = found.topics[0].partitions[0].error_code
    return code


def for_way(way: str, shape: Shape) -> bytes:
    """Return a shape's batch in the form that a path opens."""
    if way == "timestamps ahead":
        return shape.make(_AHEAD)
    batch = shape.make(_NOW - 3_600_000)
    # The header claims a timestamp that no record has, so the search must read all of them.
    return stamped(batch, _NOW - 3_600_000, _NOW) if way == "search by time" else batch


def together(broker: BrokerProcess, way: str, batch: bytes, count: int, partition: int = 0) -> list[int]:
    """Send a batch on several connections in parallel; returns the error codes."""
    codes: list[int] = []
    threads = [threading.Thread(target=lambda: codes.append(send(broker, way, batch, partition))) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return codes


def started(directory: Path, kafka: bool) -> BrokerProcess:
    """Return a broker that is started when it is entered."""
    return ApacheKafka(fetch("kafka"), directory, {}) if kafka else KBroker(directory, {})


def main() -> None:
    """Print a line for each row: bytes sent, the answer, seconds, the quiet client's longest wait, the broker's own
    lines that its loop was held for longer than 50 ms, and the growth.
    """
    rows = [(f"{way}: {shape.name}", way, shape, 1) for shape in shapes() for way in WAYS]
    for way in ("timestamps ahead", "to gzip"):
        rows += [(f"{way}, 50 at once: {s.name}", way, s, 50) for s in shapes() if s.name in _TOGETHER]
    parser = argparse.ArgumentParser(prog="python -m tests.fair.bombs", description=__doc__)
    parser.add_argument("--kafka", action="store_true", help="beside Apache Kafka instead")
    parser.add_argument("wanted", nargs="?", default="", help="part of a row's name")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, started(Path(directory), args.kafka) as broker:
        create_topics(broker)
        worst, most = 0.0, 0
        for number, (name, way, shape, count) in enumerate(rows):
            if args.wanted not in name:
                continue
            batch = for_way(way, shape)
            held = broker.log_file.read_text().count(_HELD)
            begun = time.perf_counter()
            with Quiet(broker) as quiet:
                codes = set(together(broker, way, batch, count, number % _PARTITIONS))
            seconds = time.perf_counter() - begun
            worst, most = max(worst, quiet.longest), max(most, quiet.grown)
            told = f"{len(batch):9,} B  codes {codes}  {seconds:7.2f} s"
            held = broker.log_file.read_text().count(_HELD) - held
            wait = f"wait {quiet.longest * 1000:7.1f} ms  held {held}"
            print(f"{name:60} {told}  {wait}  +{quiet.grown / _MB:6.1f} MB", flush=True)
        print(f"longest wait {worst * 1000:.1f} ms, most memory +{most / _MB:.1f} MB")


if __name__ == "__main__":
    main()
