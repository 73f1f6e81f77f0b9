"""Numbered records are written to a topic while its disk has trouble, and read later."""

from __future__ import annotations

import time

from compat_tests.wire.client import WireClient
from compat_tests.wire.exchanges.produce import request as produce_request
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kbroker.protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from kbroker.protocol.records import build_batch, read_records

TOPIC = "t"
PARTITIONS = 3


def create(client: WireClient) -> None:
    """Create the topic."""
    topics = [CreatableTopic(TOPIC, PARTITIONS, 1)]
    assert client.ask(CreateTopicsRequest(topics=topics, timeout_ms=5000), 5).topics[0].error_code == 0


def produce(client: WireClient, partition: int, values: list[bytes]) -> int:
    """Produce one batch; return the error code."""
    # The records are not older: retention would delete them before a slow machine has read them.
    now = time.time_ns() // 1_000_000
    batch = build_batch([(now, None, value, ()) for value in values])
    answer = client.ask(produce_request(TOPIC, batch, partition=partition), 9)
    return int(answer.responses[0].partition_responses[0].error_code)


def read(client: WireClient, partition: int, topic: str = TOPIC) -> list[bytes]:
    """Return every value of a partition."""
    found: list[bytes] = []
    while True:
        wanted = FetchPartition(partition=partition, fetch_offset=len(found), partition_max_bytes=1 << 20)
        topics = [FetchTopic(topic=topic, partitions=[wanted])]
        answer = client.ask(FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, topics=topics), 11)
        data = answer.responses[0].partitions[0]
        assert data.error_code == 0, (topic, partition, data.error_code)
        if len(found) >= data.high_watermark:
            return found
        view = memoryview(data.records)
        while len(view) > 12 and len(view) >= (size := int.from_bytes(view[8:12]) + 12):
            batch = list(read_records(view[:size], max_bytes=1 << 24))
            found += [bytes(record.value) for record in batch if record.offset >= len(found)]
            view = view[size:]


class Writer:
    """Writes numbered records to all partitions in turn, and remembers the acknowledged ones."""

    def __init__(self) -> None:
        self.acknowledged: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self.refused = 0
        self.doubtful: set[bytes] = set()
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
                self.doubtful.update(values)

    def check(self, client: WireClient) -> int:
        for partition, expected in enumerate(self.acknowledged):
            assert read(client, partition) == expected
        return sum(map(len, self.acknowledged))

    def check_with_refused(self, client: WireClient) -> int:
        """Check that all acknowledged records are there in order, and besides them only refused records.

        A batch that was refused after it had reached the disk may be there: the producer received nothing but the
        error.
        """
        for partition, expected in enumerate(self.acknowledged):
            found = read(client, partition)
            assert [value for value in found if value not in self.doubtful] == expected
        return sum(map(len, self.acknowledged))
