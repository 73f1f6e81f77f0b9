"""S11: a real disk, small, that clients fill while they produce. Nothing is lost, nothing half stays, no SIGBUS.

The disk is a tmpfs of a few megabytes, which needs the right to mount one; without it the test is skipped by name.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from compat_tests.harness.brokers import BrokerFailed, KBroker
from compat_tests.wire.client import WireClient
from compat_tests.wire.exchanges.produce import request as produce_request
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kbroker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kbroker.protocol.records import build_batch, read_records

TOPIC = "t"
PARTITIONS = 3
DISK_BYTES = 24 << 20
FILLER_BYTES = 8 << 20
SETTINGS = {"log.segment.bytes": str(1 << 20), "log.index.interval.bytes": "0"}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    where = tmp_path / "disk"
    where.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(where)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("may not mount a tmpfs here")
    try:
        yield where
    finally:
        subprocess.run(["umount", str(where)], check=True)


def produce(client: WireClient, partition: int, values: list[bytes]) -> int:
    """Produce one batch; return the error code."""
    batch = build_batch([(1_700_000_000_000, None, value, ()) for value in values])
    answer = client.ask(produce_request(TOPIC, batch, partition=partition), 9)
    return int(answer.responses[0].partition_responses[0].error_code)


def read(client: WireClient, partition: int) -> list[bytes]:
    """Return every value of a partition."""
    found: list[bytes] = []
    while True:
        wanted = FetchPartition(partition=partition, fetch_offset=len(found), partition_max_bytes=1 << 20)
        topics = [FetchTopic(topic=TOPIC, partitions=[wanted])]
        answer = client.ask(FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, topics=topics), 11)
        data = answer.responses[0].partitions[0]
        assert data.error_code == 0
        if len(found) >= data.high_watermark:
            return found
        view = memoryview(data.records)
        while len(view) > 12 and len(view) >= (size := int.from_bytes(view[8:12]) + 12):
            batch = list(read_records(view[:size], max_bytes=1 << 24))
            found += [bytes(record.value) for record in batch if record.offset >= len(found)]
            view = view[size:]


class Writer:
    """Numbered records to all partitions in turn; what was acknowledged is remembered."""

    def __init__(self) -> None:
        self.acknowledged: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self.refused = 0
        self._next = 0

    def write(self, client: WireClient, attempts: int, size: int) -> None:
        for _ in range(attempts):
            partition = self._next % PARTITIONS
            values = [f"{self._next}-{i}".encode().ljust(size, b".") for i in range(10)]
            self._next += 1
            code = produce(client, partition, values)
            if code == 0:
                self.acknowledged[partition] += values
            else:
                assert code == ErrorCode.KAFKA_STORAGE_ERROR, code
                self.refused += 1

    def write_until_refused(self, client: WireClient) -> None:
        before = self.refused
        while self.refused < before + 20:
            self.write(client, PARTITIONS, 8_000)
        self.write(client, 200, 100)  # smaller ones may still find room, and must not follow a half one

    def check(self, client: WireClient) -> int:
        for partition, expected in enumerate(self.acknowledged):
            assert read(client, partition) == expected
        return sum(map(len, self.acknowledged))


def start_or_say_why(broker: KBroker, writer: Writer) -> None:
    """Start on a full disk: what a start must write finds room and everything is served, or one line says why not."""
    refusal = ""
    try:
        broker.start()
    except BrokerFailed as failure:
        refusal = str(failure)
    if refusal:
        assert "No space left" in refusal
        assert "Traceback" not in refusal
        return
    with WireClient(broker.bootstrap) as client:
        writer.check(client)
    broker.stop()


def test_a_disk_that_fills_up_and_has_room_again(small_disk: Path, tmp_path: Path) -> None:
    filler = small_disk / "filler"
    filler.write_bytes(os.urandom(FILLER_BYTES))
    writer = Writer()
    broker = KBroker(tmp_path / "broker", SETTINGS)
    broker.data_dir = small_disk / "data"
    with broker:
        with WireClient(broker.bootstrap) as client:
            topics = [CreatableTopic(TOPIC, PARTITIONS, 1)]
            assert client.ask(CreateTopicsRequest(topics=topics, timeout_ms=5000), 5).topics[0].error_code == 0
            writer.write_until_refused(client)
            full = writer.check(client)
            assert full > 0
        assert broker.stop() == 0, broker.log_tail()
        start_or_say_why(broker, writer)
        filler.unlink()
        broker.start()
        with WireClient(broker.bootstrap) as client:
            assert writer.check(client) == full
            filler.write_bytes(os.urandom(FILLER_BYTES))
            writer.write_until_refused(client)
            before, refused = writer.check(client), writer.refused
            filler.unlink()
            writer.write(client, 300, 800)
            assert writer.refused == refused, "there is room, and nobody had to restart anything"
            assert writer.check(client) == before + 3000
        broker.kill()
        broker.start()
        with WireClient(broker.bootstrap) as client:
            after = writer.check(client)
    print(f"{writer.refused} batches refused, {after} records acknowledged, {after} readable")
