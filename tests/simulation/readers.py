"""Readers of a simulated cluster, which judge the records as they read them: none twice, torn, or out of order."""

from __future__ import annotations

from typing import Any

from kbroker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from kbroker.protocol.records import iter_batches, read_marker, read_records
from tests.simulation.book import LOOSE, PAIRED, TOPIC, Client, E
from tests.simulation.violation import Violation


class Reader(Client):
    """Reads a partition from its start to the high watermark, and judges order and completeness meanwhile."""

    def __init__(self, *args: Any, topic: str, index: int, committed: bool = False) -> None:
        super().__init__(*args)
        self.topic, self.index, self.isolation = topic, index, int(committed)
        self.position = 0
        self.offsets: dict[str, list[int]] = {}
        """By producer: the offset of each of its records, whose numbers are 0, 1, 2, ..."""
        self.mark = -1

    async def work(self) -> None:
        while not self.book.finished:
            wanted = FetchPartition(partition=self.index, fetch_offset=self.position, partition_max_bytes=8192)
            request = FetchRequest(
                max_wait_ms=500,
                min_bytes=1,
                isolation_level=self.isolation,
                topics=[FetchTopic(topic=self.topic, partitions=[wanted])],
            )
            answer = await self.of_leader(self.topic, self.index, request, 12, FetchResponse)
            if answer is None:
                continue
            found = answer.responses[0].partitions[0]
            if found.error_code in (E.NOT_ENOUGH_REPLICAS, E.NOT_ENOUGH_REPLICAS_AFTER_APPEND):
                raise Violation(f"R5: a consumer is refused with {E(found.error_code).name}")
            if found.error_code:
                self.expect_again(found.error_code, f"Fetch of {self.topic}-{self.index} at {self.position}")
                await self.refresh(self.topic)
                continue
            self.mark = found.high_watermark
            if found.records:
                self.take(memoryview(found.records), found)
            await self.rest(0.05)

    def take(self, records: memoryview, found: Any) -> None:
        coming = sorted((each.first_offset, each.producer_id) for each in found.aborted_transactions or ())
        aborted: set[int] = set()
        for position, header in iter_batches(records):
            if header.last_offset < self.position:
                continue
            batch = records[position : position + header.size]
            while coming and coming[0][0] <= header.last_offset:
                aborted.add(coming.pop(0)[1])
            if header.is_control:
                marker = read_marker(batch)
                if marker is not None and not marker.commit:
                    aborted.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborted):
                for record in read_records(batch, max_bytes=1 << 20):
                    if record.offset >= self.position:
                        if self.topic != LOOSE:
                            self.book.judge.read(self.topic, self.index, record.offset)
                        self.hear(record.offset, bytes(record.value or b""))
            self.position = header.last_offset + 1
        if self.topic == TOPIC:
            self.book.read[self.index] = max(self.position, self.book.read.get(self.index, 0))

    def hear(self, offset: int, value: bytes) -> None:
        name, number = value.split(b":")[:2]
        offsets = self.offsets.setdefault(name.decode(), [])
        if int(number) != len(offsets):
            what = "twice, or out of order" if int(number) < len(offsets) else "and some before it are missing"
            raise Violation(f"{self.topic}-{self.index} at {offset}: {value[:30]!r} {what}")
        offsets.append(offset)
        self.book.counts["read"] += 1

    def missing(self) -> str:
        """Return what was acknowledged and has not been read; empty if nothing is missing."""
        for (topic, index, name), numbers in self.book.acked.items():
            if (topic, index) != (self.topic, self.index) or not numbers:
                continue
            offsets = self.offsets.get(name, [])
            for number, offset in numbers.items():
                if number >= len(offsets):
                    return f"{self.topic}-{index}: {name}:{number}, acknowledged at {offset}, is not there"
                if offset not in (-1, offsets[number]):
                    return f"{self.topic}-{index}: {name}:{number} is at {offsets[number]}, was told {offset}"
        return ""


class PairedReader(Reader):
    """Reads the committed records of the transactions."""

    def __init__(self, *args: Any, index: int) -> None:
        super().__init__(*args, topic=PAIRED, index=index, committed=True)
        self.numbers: list[int] = []

    def hear(self, offset: int, value: bytes) -> None:
        number = int(value)
        if self.numbers and number <= self.numbers[-1]:
            raise Violation(f"{PAIRED}-{self.index} at {offset}: transaction {number} after {self.numbers[-1]}")
        self.numbers.append(number)

    def missing(self) -> str:
        known = set(self.numbers)
        for number, outcome in self.book.transactions.items():
            if outcome != "unknown" and (number in known) != (outcome == "committed"):
                return f"{PAIRED}-{self.index}: transaction {number} was {outcome}, and is there: {number in known}"
        return ""


class LooseReader(Reader):
    """Reads a topic that may lose records: it starts over if the log is shorter, and checks for torn records."""

    def __init__(self, *args: Any, index: int) -> None:
        super().__init__(*args, topic=LOOSE, index=index)

    def expect_again(self, code: int, what: str) -> None:
        if code == E.OFFSET_OUT_OF_RANGE:
            self.position = 0
            self.book.counts["readers begun anew"] += 1
        else:
            super().expect_again(code, what)

    def hear(self, offset: int, value: bytes) -> None:
        if not value.isdigit():
            raise Violation(f"{self.topic}-{self.index} at {offset}: {value[:30]!r} was never produced")
        self.book.counts["read of what may be lost"] += 1
