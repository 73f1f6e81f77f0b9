"""Schedule topics on one broker: a burst that is due within one second, many pending records, and a start with them.

First, records that are due in an hour are written: the broker's memory and its next start are measured with and without
them. Then all records of a burst become due within one second, while a quiet client produces every few ms: the table
says how late the last one is, and how long the quiet client waits. This is repeated for each number of targets, which
the records take in turn, and with keys. Prints tables and saves them; asserts no times.

    python -m benchmarks.schedules [--pending 1000000] [--burst 500000] [--targets 1 10 100]
"""

from __future__ import annotations

import argparse
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.ratios import save
from benchmarks.subjects import cpu_seconds
from compat_tests.harness.brokers import KBroker
from compat_tests.wire.client import WireClient
from kbroker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kbroker.protocol.messages.logs import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kbroker.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kbroker.protocol.messages.topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from kbroker.protocol.records import build_batch, iter_batches

SOURCE, QUIET = "later", "quiet"
SCHEDULED = {"schedule.enable": "true", "message.timestamp.type": "LogAppendTime"}
AT_ONCE, SIZE, PARTITIONS = 500, 100, 3
QUIET_PAUSE_S = 0.005
LEAD_S = 5.0
PATIENCE_S = 600.0


def create(client: WireClient, topic: str, partitions: int, configs: dict[str, str]) -> None:
    wanted = CreatableTopic(topic, partitions, 1, [], [CreatableTopicConfig(*each) for each in configs.items()])
    (answer,) = client.ask(CreateTopicsRequest([wanted], 20_000), 5).topics
    assert not answer.error_code, answer


def produce(client: WireClient, topic: str, batch: bytes) -> None:
    data = TopicProduceData(topic, partition_data=[PartitionProduceData(0, batch)])
    (answer,) = client.ask(ProduceRequest(None, -1, 20_000, [data]), 9).responses
    assert not answer.partition_responses[0].error_code, answer


def schedule(
    client: WireClient, count: int, first_ms: int, over_ms: int, targets: int, *, keyed: bool = False
) -> float:
    """Write records that are due within `over_ms` after a time; return how many s it took."""
    began = time.monotonic()
    for start in range(0, count, AT_ONCE):
        records = []
        for number in range(start, min(start + AT_ONCE, count)):
            due = b"%d" % (first_ms + number * over_ms // count)
            headers = (("x-deliver-at", due), ("x-deliver-to", b"now%d" % (number % targets)))
            records.append((0, b"%d" % number if keyed else None, b"x" * SIZE, headers))
        produce(client, SOURCE, build_batch(records))
    return time.monotonic() - began


def ends(client: WireClient, topics: list[str], count: int) -> list[list[int]]:
    """Return the ends of the partitions of some topics."""
    places = [ListOffsetsPartition(each, -1, -1) for each in range(count)]
    wanted = [ListOffsetsTopic(topic, places) for topic in topics]
    found = {
        answer.name: {each.partition_index: each.offset for each in answer.partitions}
        for answer in client.ask(ListOffsetsRequest(-1, 0, wanted), 7).topics
    }
    return [[found[topic][each] for each in range(count)] for topic in topics]


def last_time(client: WireClient, topic: str, partition: int, end: int) -> int:
    """Return the timestamp of the last record of a partition."""
    wanted = FetchPartition(partition=partition, fetch_offset=end - 1, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, topics=[FetchTopic(topic=topic, partitions=[wanted])]
    )
    (data,) = client.ask(request, 12).responses[0].partitions
    return max(header.max_timestamp for _, header in iter_batches(memoryview(data.records)))


class Quiet(threading.Thread):
    """A client that produces one record every few ms, and notes how long it waits."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self._address = address
        self.over = threading.Event()
        self.waits: list[float] = []

    def run(self) -> None:
        batch = build_batch([(0, None, b"x", ())])
        with WireClient(self._address) as client:
            while not self.over.wait(QUIET_PAUSE_S):
                began = time.perf_counter()
                produce(client, QUIET, batch)
                self.waits.append((time.perf_counter() - began) * 1000)


def memory_mb(pid: int) -> float:
    text = Path(f"/proc/{pid}/status").read_text()
    (line,) = [each for each in text.splitlines() if each.startswith("VmRSS")]
    return int(line.split()[1]) / 1024


def started(broker: KBroker) -> float:
    """Start a broker; return how many s it took."""
    began = time.monotonic()
    broker.start()
    return time.monotonic() - began


def burst(broker: KBroker, client: WireClient, count: int, targets: int, pace_us: int, *, keyed: bool) -> str:
    """Let a burst become due; return a line of the table."""
    names = [f"now{each}" for each in range(targets)]

    def delivered() -> int:
        return sum(map(sum, ends(client, names, PARTITIONS)))

    want = delivered() + count
    first_ms = int((time.time() + LEAD_S + count * pace_us / 1e6) * 1000)
    schedule(client, count, first_ms, 1000, targets, keyed=keyed)
    if time.time() > first_ms / 1000:
        print("the burst was due before it was written")
    time.sleep(max(first_ms / 1000 - time.time() - 1, 0))
    quiet = Quiet(broker.bootstrap)
    quiet.start()
    cpu = cpu_seconds(broker.pid)
    deadline = time.monotonic() + PATIENCE_S
    while delivered() < want:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    cpu = cpu_seconds(broker.pid) - cpu
    quiet.over.set()
    quiet.join()
    last = 0
    for name, found in zip(names, ends(client, names, PARTITIONS), strict=True):
        for partition, end in enumerate(found):
            if end:
                last = max(last, last_time(client, name, partition, end))
    waits = sorted(quiet.waits)
    p50, p99 = (waits[min(int(len(waits) * share), len(waits) - 1)] for share in (0.5, 0.99))
    late_s, each_us = (last - first_ms - 1000) / 1000, cpu / count * 1e6
    return (
        f"| {targets}{', with keys' if keyed else ''} | {late_s:.2f} s | {each_us:.1f} us "
        f"| {p50:.1f} ms | {p99:.1f} ms | {waits[-1]:.1f} ms |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pending", type=int, default=1_000_000)
    parser.add_argument("--burst", type=int, default=500_000)
    parser.add_argument("--targets", type=int, nargs="+", default=[1, 10, 100])
    parser.add_argument("--pace-us", type=int, default=200, help="at most so long takes the writing of a record")
    options = parser.parse_args()
    lines = ["| what | measured |", "|---|---|"]
    most = max(options.targets)
    with TemporaryDirectory() as folder:
        broker = KBroker(Path(folder))
        broker.start()
        with WireClient(broker.bootstrap) as client:
            create(client, QUIET, 1, {})
            create(client, SOURCE, 1, SCHEDULED)
            for number in range(most):
                create(client, f"now{number}", PARTITIONS, {})
            schedule(client, AT_ONCE, int(time.time() * 1000), 1, 1)
            time.sleep(1)
        broker.stop()
        empty_s = started(broker)
        time.sleep(2)
        empty_mb = memory_mb(broker.pid)
        if options.pending:
            with WireClient(broker.bootstrap) as client:
                cpu = cpu_seconds(broker.pid)
                took = schedule(client, options.pending, int(time.time() * 1000) + 3_600_000, 1000_000, 1)
                time.sleep(5)
                cpu = cpu_seconds(broker.pid) - cpu
            each_us = cpu / options.pending * 1e6
            lines.append(f"| {options.pending:,} records written | {took:.1f} s, {each_us:.1f} us of CPU each |")
            lines.append(f"| memory with them | {memory_mb(broker.pid) - empty_mb:+.1f} MB |")
            broker.stop()
            full_s = started(broker)
            lines.append(f"| start with them | {full_s:.2f} s, without them {empty_s:.2f} s |")
            time.sleep(2)
            lines.append(f"| memory after this start | {memory_mb(broker.pid) - empty_mb:+.1f} MB |")
        lines += ["", f"A burst of {options.burst:,} records that are due within 1 s:", ""]
        lines.append("| targets | the last record is late by | CPU of each | quiet client: p50 | p99 | longest |")
        lines.append("|---|---|---|---|---|---|")
        with WireClient(broker.bootstrap) as client:
            for targets, keyed in [*((each, False) for each in options.targets), (options.targets[0], True)]:
                lines.append(burst(broker, client, options.burst, targets, options.pace_us, keyed=keyed))
                print(lines[-1])
        log = broker.log_tail(1000)
        lines += ["", *[each for each in log.splitlines() if "event loop" in each][-3:]]
        broker.stop()
    save("schedules", "Schedule topics", "schedules", lines)


if __name__ == "__main__":
    main()
