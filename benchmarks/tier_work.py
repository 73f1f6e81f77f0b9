"""The pieces of work of `benchmarks.tiers`: requests to a broker with tiered storage, and reads of its store.

Owns the requests, the quiet client, the reader, and the records about segments that no object has. Never compares and
never prints.
"""

from __future__ import annotations

import os
import random
import shutil
import threading
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from benchmarks.raw import (
    FETCH_VERSION,
    PRODUCE_VERSION,
    Answers,
    connect,
    fetch_frame,
    frame,
    last_offset,
    produce_frame,
    pump,
)
from benchmarks.subjects import cpu_seconds, memory_mb
from compat_tests.harness.brokers import BrokerProcess, KBroker
from compat_tests.wire.client import WireClient
from kbroker.cluster_state import REMOTE_LOG_METADATA_TOPIC
from kbroker.protocol.compiler import decode, encode
from kbroker.protocol.messages.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalConfig,
    IncrementalResource,
)
from kbroker.protocol.messages.fetch import FetchResponse, PartitionData
from kbroker.protocol.messages.logs import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kbroker.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from kbroker.protocol.messages.topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from kbroker.protocol.records import build_batch, iter_batches
from kbroker.protocol.wire import uuid_text
from kbroker.remote.metadata_records import encode_record, metadata_partition, segment_record, update_record
from kbroker.remote.object_format import Layout, Part, parse_object_name
from kbroker.remote.segment import RemoteSegment, SegmentState
from kbroker.remote.store_address import open_obstore
from kbroker.tiers.chunk_cache import CHUNK_BYTES
from kbroker.tiers.metadata import PARTITIONS as METADATA_PARTITIONS

LATEST, EARLIEST_LOCAL, LATEST_TIERED = -1, -4, -5
TIERED: Final = {"remote.storage.enable": "true"}
QUIET: Final = "quiet"
MANY, MANY_PARTITIONS = "many", 50
QUICK: Final = {"log.retention.check.interval.ms": "1000", "log.segment.delete.delay.ms": "100"}
IN_FLIGHT: Final = 5
RECORDS_A_BATCH, RECORD_BYTES = 500, 1000
BATCH_BYTES: Final = RECORDS_A_BATCH * RECORD_BYTES
ANSWER_BYTES: Final = 1 << 20
QUIET_PAUSE_S: Final = 0.01
PATIENCE_S: Final = 1800.0
_NEVER: Final = {"retention.ms": "-1", "retention.bytes": "-1"}
_FAKE_SEGMENT_BYTES: Final = 64 << 20


def store_settings(store: Path) -> dict[str, str]:
    """Return the settings of a broker that has a directory as its store."""
    return {"remote.log.storage.system.enable": "true", "remote.storage.url": f"file://{store}"}


def create(client: WireClient, topic: str, configs: Mapping[str, str], partitions: int = 1) -> bytes:
    """Create a topic; return its id."""
    wanted = CreatableTopic(topic, partitions, 1, [], [CreatableTopicConfig(*each) for each in configs.items()])
    (answer,) = client.ask(CreateTopicsRequest([wanted], 20_000), 7).topics
    assert not answer.error_code, answer
    return bytes(answer.topic_id)


def configure(client: WireClient, topic: str, configs: Mapping[str, str]) -> None:
    """Set configs of a topic."""
    resource = IncrementalResource(2, topic, [IncrementalConfig(name, 0, value) for name, value in configs.items()])
    (answer,) = client.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1).responses
    assert not answer.error_code, answer


def offsets(client: WireClient, topic: str, which: int, partitions: int = 1) -> list[int] | None:
    """Return an offset of each partition; None if the broker does not know one of them yet."""
    wanted = ListOffsetsTopic(topic, [ListOffsetsPartition(each, -1, which) for each in range(partitions)])
    (answer,) = client.ask(ListOffsetsRequest(-1, 0, [wanted], timeout_ms=5000), 11).topics
    if any(each.error_code for each in answer.partitions):
        return None
    return [each.offset for each in sorted(answer.partitions, key=lambda each: int(each.partition_index))]


def await_offsets(client: WireClient, topic: str, which: int, wanted: int | None, partitions: int = 1) -> None:
    """Wait until an offset of each partition is known, and is the wanted one."""
    until = time.monotonic() + PATIENCE_S
    while (found := offsets(client, topic, which, partitions)) is None or (
        wanted is not None and any(each != wanted for each in found)
    ):
        assert time.monotonic() < until, f"{topic}: offset {which} is {found}, not {wanted}"
        time.sleep(0.05)


def fill(address: str, topic: str, size: int) -> None:
    """Produce about `size` bytes of records of 1 kB, in batches of 500 kB."""
    with connect(address) as sock:
        request = produce_frame(topic, 0, RECORDS_A_BATCH, RECORD_BYTES)
        pump(sock, [request], max(size // BATCH_BYTES, IN_FLIGHT), IN_FLIGHT)


def segment_files(directory: Path) -> dict[int, int]:
    """Return the sizes of a partition's segments on the disk, by their base offsets."""
    return {int(each.stem): each.stat().st_size for each in sorted(directory.glob("*.log"))}


class Cpu(NamedTuple):
    """CPU seconds of a process, and those of its first thread, which has the event loop."""

    total: float
    loop: float

    @classmethod
    def of(cls, pid: int) -> Cpu:
        """Return the times of a process so far."""
        loop = next(each for each in psutil.Process(pid).threads() if each.id == pid)
        return cls(cpu_seconds(pid), float(loop.user_time + loop.system_time))

    def since(self, before: Cpu) -> Cpu:
        """Return the times since an earlier moment."""
        return Cpu(self.total - before.total, self.loop - before.loop)


def be_quiet(address: str, over: threading.Event, waits: list[float]) -> None:
    """Produce a record every 10 ms and fetch it; append for each one the ms from its due time to its arrival."""
    with connect(address) as sock:
        answers, record = Answers(sock), produce_frame(QUIET, 0, 1, 100)
        due = time.perf_counter()
        while not over.is_set():
            sock.sendall(record)
            produced = decode(ProduceResponse, PRODUCE_VERSION, memoryview(answers.one())[5:])
            (place,) = produced.responses[0].partition_responses
            assert not place.error_code, place
            sock.sendall(fetch_frame(QUIET, 0, place.base_offset, 1 << 16))
            fetched = decode(FetchResponse, FETCH_VERSION, memoryview(answers.one())[4:])
            assert fetched.responses[0].partitions[0].records, fetched
            now = time.perf_counter()
            waits.append((now - due) * 1e3)
            due += QUIET_PAUSE_S
            time.sleep(max(due - now, 0))


class Reader:
    """Fetches a topic in answers of 1 MB, one request at a time."""

    def __init__(self, address: str, topic: str) -> None:
        self._sock = connect(address)
        self._topic = topic
        self._buffer = memoryview(bytearray(2 * ANSWER_BYTES))

    def read(self, begin: int, end: int) -> tuple[int, float]:
        """Read the records of a range of offsets; return the bytes of their batches, and the seconds."""
        received, started = 0, time.perf_counter()
        while begin < end:
            data = self.answer(begin)
            for _, header in iter_batches(data.records):
                if header.last_offset >= begin:
                    received += header.size
                    begin = header.last_offset + 1
            assert time.perf_counter() - started < PATIENCE_S, f"{self._topic} has no records at {begin}"
        return received, time.perf_counter() - started

    def answer(self, offset: int) -> PartitionData:
        """Return an answer, which is valid until the next one."""
        self._sock.sendall(fetch_frame(self._topic, 0, offset, ANSWER_BYTES))
        size = int.from_bytes(self._received(4), "big")
        answer = decode(FetchResponse, FETCH_VERSION, self._received(size)[4:])
        data: PartitionData = answer.responses[0].partitions[0]
        assert not data.error_code, data.error_code
        return data

    def _received(self, size: int) -> memoryview:
        got = 0
        while got < size:
            step = self._sock.recv_into(self._buffer[got:size])
            if not step:
                raise ConnectionError("the broker closed the connection")
            got += step
        return self._buffer[:size]

    def close(self) -> None:
        self._sock.close()


class Objects:
    """The objects of a topic in a directory, read with obstore as the broker does: in pieces as long as its chunks."""

    def __init__(self, store: Path) -> None:
        self._root = store
        self._store = open_obstore("file", f"file://{store}", {})
        self._paths: dict[int, Path] = {}
        for path in store.rglob("*"):
            name = parse_object_name(str(path.relative_to(store))) if path.is_file() else None
            if name is not None:
                self._paths[name.base_offset] = path

    @property
    def bases(self) -> list[int]:
        """The base offsets of the segments."""
        return sorted(self._paths)

    def read(self, base: int) -> tuple[int, float]:
        """Read an object, one piece after another; return its bytes, and the seconds."""
        import obstore

        path = self._paths[base]
        name, size, got = str(path.relative_to(self._root)), path.stat().st_size, 0
        started = time.perf_counter()
        for start in range(0, size, CHUNK_BYTES):
            length = min(CHUNK_BYTES, size - start)
            got += len(obstore.get_range(self._store, name, start=start, length=length))
        return got, time.perf_counter() - started

    def forget_pages(self, base: int) -> None:
        """Let the kernel drop an object from its page cache."""
        file = os.open(self._paths[base], os.O_RDONLY)
        try:
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)


def on_disk(directory: Path) -> int:
    """Return the bytes that the files of a directory occupy, without those that vanish meanwhile."""
    found = 0
    for each in directory.iterdir():
        try:
            found += each.stat().st_blocks * 512
        except FileNotFoundError:
            continue
    return found


# -- requests in turn


class Slice(NamedTuple):
    """A short piece of work: its requests per second, and the broker's CPU seconds."""

    rate: float
    cpu: float


def in_turn(
    broker: BrokerProcess, frames: dict[str, list[bytes]], requests: int, slices: int
) -> dict[str, list[Slice]]:
    """Send the requests of each topic in slices, the topics in any order; the first slices count for nothing."""
    found: dict[str, list[Slice]] = {topic: [] for topic in frames}
    socks, chance = {topic: connect(broker.bootstrap) for topic in frames}, random.Random(1)
    for number in range(slices + 1):
        for topic in chance.sample(sorted(frames), len(frames)):
            before = cpu_seconds(broker.pid)
            seconds, _, _ = pump(socks[topic], frames[topic], requests, IN_FLIGHT)
            if number:
                found[topic].append(Slice(requests / seconds, cpu_seconds(broker.pid) - before))
    for sock in socks.values():
        sock.close()
    return found


def fetches(address: str, topic: str) -> list[bytes]:
    """Return Fetch requests for the first 64 MB of a topic, or for less in a smaller one."""
    reader, offset, found = Reader(address, topic), 0, []
    for _ in range(64):
        data = reader.answer(offset)
        if len(data.records) < ANSWER_BYTES * 0.9:
            break
        found.append(fetch_frame(topic, 0, offset, ANSWER_BYTES))
        offset = last_offset(data.records)
    reader.close()
    assert found, f"{topic} has less than 1 MB"
    return found


# -- records about segments whose objects do not exist


def produce(client: WireClient, topic: str, partition: int, batch: bytes) -> None:
    data = TopicProduceData(topic, partition_data=[PartitionProduceData(partition, batch)])
    (answer,) = client.ask(ProduceRequest(None, -1, 20_000, [data]), 9).responses
    assert not answer.partition_responses[0].error_code, answer


def record_segments(address: str, topic: str, topic_id: bytes, partition: int, count: int) -> None:
    """Write what a broker writes about `count` copied segments: two records for each, each in a batch of its own.

    Each segment has one offset.
    """
    place = metadata_partition(topic_id, partition, METADATA_PARTITIONS)
    key = f"{uuid_text(topic_id)}-{partition}".encode()
    requests = []
    for start in range(count):
        for value in _values(topic, topic_id, partition, start):
            batch = build_batch([(int(time.time() * 1000), key, value, ())])
            data = TopicProduceData(REMOTE_LOG_METADATA_TOPIC, partition_data=[PartitionProduceData(place, batch)])
            requests.append(frame(0, PRODUCE_VERSION, True, encode(ProduceRequest(None, -1, 30_000, [data]), 9)))
    with connect(address) as sock:
        pump(sock, requests, len(requests), IN_FLIGHT)


def _values(topic: str, topic_id: bytes, partition: int, offset: int) -> tuple[bytes, bytes]:
    """Return the values of the records that begin and end a copy."""
    now_ms, segment_id = int(time.time() * 1000), uuid.uuid4().bytes
    begun = RemoteSegment(
        id=segment_id,
        start_offset=offset,
        end_offset=offset,
        max_timestamp_ms=now_ms,
        event_timestamp_ms=now_ms,
        broker_id=1,
        size=_FAKE_SEGMENT_BYTES,
        epochs=((0, offset),),
        no_aborted_transactions=True,
    )
    lengths = tuple(_FAKE_SEGMENT_BYTES if part is Part.LOG else 0 for part in Part)
    footer = Layout(segment_id, lengths, (0,) * len(Part)).footer()
    done = begun.updated(SegmentState.COPY_SEGMENT_FINISHED, 1, now_ms, footer)
    return (
        encode_record(segment_record(topic, topic_id, partition, begun)),
        encode_record(update_record(topic, topic_id, partition, done)),
    )


class Start(NamedTuple):
    """What a start took: seconds until the first answer and until all remote segments are known, and MB."""

    ready: float
    known: float
    memory: float


def filled_with_segments(broker: KBroker, other: KBroker, each: int) -> int:
    """Fill the directory of a broker with records about segments, and that of another one without them.

    In the first one the records of these segments have left the local disk. Return the number of records in
    `__remote_log_metadata`.
    """
    settled, interval = broker.settings, "remote.log.manager.task.interval.ms"
    # The first round of each partition must be the last one: a round removes the remains of copies without an end.
    broker.settings = {**settled, interval: "3600000"}
    with broker, WireClient(broker.bootstrap) as client:
        topic_id = create(client, MANY, {**TIERED, **_NEVER}, MANY_PARTITIONS)
        batch = build_batch([(int(time.time() * 1000), None, b"", ())] * each)
        for partition in range(MANY_PARTITIONS):
            produce(client, MANY, partition, batch)
        await_offsets(client, MANY, LATEST_TIERED, -1, MANY_PARTITIONS)
    shutil.copytree(broker.data_dir, other.data_dir)
    with broker, WireClient(broker.bootstrap) as client:
        await_offsets(client, MANY, LATEST_TIERED, -1, MANY_PARTITIONS)
        for partition in range(MANY_PARTITIONS):
            record_segments(broker.bootstrap, MANY, topic_id, partition, each)
    broker.settings = {**settled, **QUICK, interval: "100"}
    with broker, WireClient(broker.bootstrap) as client:
        await_offsets(client, MANY, LATEST_TIERED, each - 1, MANY_PARTITIONS)
        written = _leave_disk(client, each)
    broker.settings = settled
    assert written == 2 * each * MANY_PARTITIONS, written
    return written


def _leave_disk(client: WireClient, each: int) -> int:
    """Let all but the last record of each partition leave the local disk; return the number of records about segments.

    Another record closes the local segment, and retention removes it.
    """
    configure(client, MANY, {"segment.ms": "1"})
    batch = build_batch([(int(time.time() * 1000), None, b"", ())])
    for partition in range(MANY_PARTITIONS):
        produce(client, MANY, partition, batch)
    configure(client, MANY, {"segment.ms": str(7 * 86_400_000), "local.retention.bytes": "1"})
    await_offsets(client, MANY, EARLIEST_LOCAL, each, MANY_PARTITIONS)
    configure(client, MANY, {"local.retention.bytes": "-2"})
    return sum(offsets(client, REMOTE_LOG_METADATA_TOPIC, LATEST, METADATA_PARTITIONS) or [])


def started(broker: KBroker, copied_to: int) -> Start:
    """Start a broker and stop it; `copied_to` is the last remote offset of each partition."""
    began = time.perf_counter()
    with broker, WireClient(broker.bootstrap) as client:
        await_offsets(client, MANY, LATEST, None, MANY_PARTITIONS)
        ready = time.perf_counter() - began
        await_offsets(client, MANY, LATEST_TIERED, copied_to, MANY_PARTITIONS)
        return Start(ready, time.perf_counter() - began, memory_mb(broker.pid))
