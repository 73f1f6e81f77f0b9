"""A broker with very many segments and few descriptors: it starts, serves, compacts, and stays within its limit.

    python -m tests.crash.many_segments --segments 100000 --partitions 10 --limit 1024

Clients can create any number of segments with segment.ms=1. The limit (RLIMIT_NOFILE, hard and soft) is set before the
broker's process begins. The broker is killed after the writes, so that it starts without a marker of a clean shutdown,
and later stopped cleanly. Each time, every partition is read near its beginning, in its middle and at its end, and
written to. In the end the topic is compacted.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import tempfile
import threading
import time
from pathlib import Path

from compat_tests.harness.brokers import KBroker
from compat_tests.wire.client import WireClient
from kbroker.protocol.messages.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalConfig,
    IncrementalResource,
)
from kbroker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kbroker.protocol.messages.groups import HeartbeatRequest
from kbroker.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kbroker.protocol.messages.topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from kbroker.protocol.records import build_batch, read_records
from tests.crash.long_form import say

TOPIC = "many"
KEYS = 7
PATIENCE_S = 1800.0
_STEP_MS = 10
_COMPACT = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "segment.ms": "600000",
    "file.delete.delay.ms": "100",
}


class _Limited(KBroker):
    """A broker with a descriptor limit, and the most descriptors that it has had open."""

    def __init__(self, directory: Path, limit: int) -> None:
        super().__init__(directory, {"log.cleaner.backoff.ms": "200", "log.cleaner.threads": "1"})
        self._limit = limit
        self.peak = 0
        self.memory = 0.0
        self._watched = threading.Event()
        self._watch: threading.Thread | None = None

    def _command(self) -> list[str]:
        return ["sh", "-c", 'ulimit -n "$0"; exec "$@"', str(self._limit), *super()._command()]

    def begin(self) -> float:
        """Start; returns the seconds until the broker answers."""
        self.peak, self.memory = 0, 0.0
        began = time.monotonic()
        self.launch()
        self._watched.clear()
        self._watch = threading.Thread(target=self._look, args=(self.pid,))
        self._watch.start()
        while not self._ready():
            assert self.running, self.log_tail()
            assert time.monotonic() - began < PATIENCE_S, self.log_tail()
            time.sleep(0.02)
        return time.monotonic() - began

    def _look(self, pid: int) -> None:
        while not self._watched.wait(0.02):
            with contextlib.suppress(OSError):
                self.peak = max(self.peak, len(os.listdir(f"/proc/{pid}/fd")))
            with contextlib.suppress(OSError, StopIteration):
                status = Path(f"/proc/{pid}/status").read_text().splitlines()
                self.memory = int(next(line for line in status if line.startswith("VmHWM")).split()[1]) / 1024

    def end(self, *, clean: bool) -> float:
        """Stop or kill; returns the seconds that it took."""
        began = time.monotonic()
        if clean:
            assert self._process is not None
            self._process.terminate()
            assert self._process.wait(PATIENCE_S) == 0, self.log_tail()
        self.kill()
        self._watched.set()
        if self._watch is not None:
            self._watch.join()
        return time.monotonic() - began

    def told(self) -> str:
        return f"{self.peak} descriptors and {self.memory:.0f} MB at most"


class _QuietClient:
    """Sends a cheap request repeatedly, and records the longest wait."""

    def __init__(self, address: str) -> None:
        self._client = WireClient(address)
        self._ended = threading.Event()
        self.longest = 0.0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        request = HeartbeatRequest(group_id="none", generation_id=1, member_id="none")
        while not self._ended.wait(0.005):
            began = time.monotonic()
            self._client.ask(request, 3)
            self.longest = max(self.longest, time.monotonic() - began)

    def end(self) -> float:
        """Return the longest wait in ms."""
        self._ended.set()
        self._thread.join()
        self._client.close()
        return self.longest * 1000


class ManySegments:
    """One directory, one broker, and a number of segments; `figures` has a line for each step."""

    def __init__(self, directory: Path, segments: int, partitions: int, limit: int) -> None:
        self.broker = _Limited(directory, limit)
        self.limit = limit
        self.partitions = partitions
        self.each = segments // partitions
        self.written = 0
        self.figures: list[str] = []
        self._stamp = (int(time.time()) - 3600) * 1000

    def run(self) -> None:
        """Run all steps; raises AssertionError if something is wrong."""
        self.broker.begin()
        self._fill()
        self._end(clean=False)
        self._begin("after a kill")
        self._use()
        self._end(clean=True)
        self._begin("after a clean stop")
        self._use()
        self._compact()
        self._end(clean=True)

    # -- steps

    def _fill(self) -> None:
        began = time.monotonic()
        with WireClient(self.broker.bootstrap) as client:
            configs = [CreatableTopicConfig("segment.ms", "1")]
            topic = CreatableTopic(TOPIC, self.partitions, 1, configs=configs)
            answer = client.ask(CreateTopicsRequest(topics=[topic], timeout_ms=30_000), 5)
            assert answer.topics[0].error_code == 0, answer
            for _ in range(self.each):
                self._write(client)
        seconds = time.monotonic() - began
        count = self._segments()
        assert count >= self.each * self.partitions, f"{count} segments"
        self._note(f"{count} segments in {self.partitions} partitions written in {seconds:.1f} s: {self.broker.told()}")

    def _write(self, client: WireClient) -> None:
        key = b"key-%d" % (self.written % KEYS)
        records = build_batch([(self._stamp + _STEP_MS * self.written, key, b"value-%d" % self.written, ())])
        parts = [PartitionProduceData(index=p, records=records) for p in range(self.partitions)]
        data = [TopicProduceData(name=TOPIC, partition_data=parts)]
        answer = client.ask(ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=data), 9)
        for part in answer.responses[0].partition_responses:
            assert (part.error_code, part.base_offset) == (0, self.written), part
        self.written += 1

    def _use(self) -> None:
        began = time.monotonic()
        with WireClient(self.broker.bootstrap) as client:
            for offset in (0, self.written // 2, self.written - 1):
                for partition in range(self.partitions):
                    self._read(client, partition, offset, offset)
            for _ in range(10):
                self._write(client)
            for partition in range(self.partitions):
                self._read(client, partition, self.written - 1, self.written - 1)
        self._note(f"  read and written in {time.monotonic() - began:.2f} s: {self.broker.told()}")

    def _read(self, client: WireClient, partition: int, offset: int, number: int) -> None:
        wanted = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20)
        topics = [FetchTopic(topic=TOPIC, partitions=[wanted])]
        request = FetchRequest(max_wait_ms=100, min_bytes=1, max_bytes=1 << 20, topics=topics)
        part = client.ask(request, 11).responses[0].partitions[0]
        assert part.error_code == 0, part
        record = next(iter(read_records(part.records, max_bytes=1 << 20)))
        assert (record.offset, record.value) == (number, b"value-%d" % number), record

    def _compact(self) -> None:
        """Compact until little more than one value of each key is left."""
        began = time.monotonic()
        quiet = _QuietClient(self.broker.bootstrap)
        with WireClient(self.broker.bootstrap) as client:
            changes = [IncrementalConfig(name, 0, value) for name, value in _COMPACT.items()]
            resource = IncrementalResource(2, TOPIC, changes)
            answer = client.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1)
            assert answer.responses[0].error_code == 0, answer
            left = self._segments()
            while left > self.partitions * (3 + self.each // 50):
                assert time.monotonic() - began < PATIENCE_S, f"{left} segments left"
                time.sleep(0.2)
                left = self._segments()
            for partition in range(self.partitions):
                self._read(client, partition, self.written - 1, self.written - 1)
        seconds = time.monotonic() - began
        self._note(
            f"compacted to {left} segments in {seconds:.1f} s: {self.broker.told()}; "
            f"another client waited {quiet.end():.0f} ms at most"
        )

    # -- the broker

    def _begin(self, when: str) -> None:
        seconds = self.broker.begin()
        self._note(f"start {when}: {seconds:.1f} s, {self.broker.told()}")

    def _end(self, *, clean: bool) -> None:
        assert self.broker.peak < self.limit, self.broker.told()
        seconds = self.broker.end(clean=clean)
        if clean:
            self._note(f"clean stop: {seconds:.1f} s")

    def _segments(self) -> int:
        folders = [self.broker.data_dir / f"{TOPIC}-{p}" for p in range(self.partitions)]
        return sum(name.endswith(".log") for folder in folders for name in os.listdir(folder))

    def _note(self, line: str) -> None:
        say(line)
        self.figures.append(line.strip())


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--segments", type=int, default=100_000)
    parser.add_argument("--partitions", type=int, default=10)
    parser.add_argument("--limit", type=int, default=1024)
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="kbroker-segments-"))
    say(f"data in {folder}")
    work = ManySegments(folder, args.segments, args.partitions, args.limit)
    try:
        work.run()
    finally:
        work.broker.end(clean=False)
    shutil.rmtree(folder)


if __name__ == "__main__":
    _main()
