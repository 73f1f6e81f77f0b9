"""`python -m benchmarks.storage`: what the log itself costs, without clients.

Recovery speed, a clean start with a large log, searches among a thousand segments, and thousands of idle partitions.
Prints a table and saves it under benchmarks/results/. Asserts nothing about time. Only kbroker is measured: the targets
are absolute.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from benchmarks.raw import connect, frame, percentile, pump
from benchmarks.subjects import memory_mb
from benchmarks.work import create
from compat_tests.harness.brokers import KBroker
from compat_tests.wire.client import WireClient
from kbroker.log.directories.log_directory import LogDirectory
from kbroker.log.log_config import LogConfig
from kbroker.log.partition_log import PartitionLog
from kbroker.log.recovery import LastStop
from kbroker.long_work import whole
from kbroker.protocol.compiler import encode
from kbroker.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kbroker.protocol.messages.groups import FindCoordinatorRequest
from kbroker.protocol.records import build_batch

RESULTS = Path(__file__).parent / "results"
NOW = 1_700_000_000_000
GB = 10**9
TOPIC_ID = uuid.UUID(int=11)

Line = tuple[str, str, str]


def filled(directory: Path, size: int, *, records: int, segment_bytes: int) -> PartitionLog:
    """Write about `size` bytes of batches of 100-byte values, with timestamps one second apart."""
    directory.mkdir(parents=True)
    config = LogConfig(segment_bytes=segment_bytes)
    log = PartitionLog(str(directory), "t", 0, config, now_ms=NOW, topic_id=TOPIC_ID)
    written, number = 0, 0
    while written < size:
        now = NOW + number * 1000
        batch = bytearray(build_batch([(now, None, b"x" * 100, ()) for _ in range(records)]))
        for _ in range(50):
            log.append_as_leader(batch[:8] + batch[8:], 0, now)
            written += len(batch)
        number += 1
    log.set_high_watermark(log.log_end_offset)
    return log


def recovery(directory: Path, size: int) -> list[Line]:
    """Open a log as after a crash, with nothing flushed."""
    log = filled(directory / "t-0", size, records=100, segment_bytes=1 << 30)
    config = log.config
    del log
    started, cpu = time.perf_counter(), time.process_time()
    log = PartitionLog(str(directory / "t-0"), "t", 0, config, now_ms=NOW, stop=LastStop(clean=False))
    seconds, used = time.perf_counter() - started, time.process_time() - cpu
    speed = log.size / seconds / 1e6
    return [(f"recovery of {log.size / GB:.1f} GB", f"{speed:,.0f} MB/s, {used:.1f} s CPU", ">= 400 MB/s on one core")]


def recovery_by_threads(directory: Path, size: int) -> list[Line]:
    """Recover four partitions one at a time, and two at a time."""
    for number in range(4):
        filled(directory / f"t-{number}", size // 4, records=100, segment_bytes=1 << 30)
    lines = []
    for threads in (1, 2):
        logs = LogDirectory(str(directory), node_id=1, cluster_id="c" * 22)
        logs.recovery_threads = threads
        started = time.perf_counter()
        logs.load(lambda _topic: LogConfig(), NOW)
        seconds = time.perf_counter() - started
        read = sum(log.size for log in logs.logs.values())
        logs.close(clean=False)
        for stale in ("recovery-point-offset-checkpoint", ".kafka_cleanshutdown"):
            (directory / stale).unlink(missing_ok=True)
        lines.append((f"recovery of 4 partitions, {threads} at a time", f"{read / seconds / 1e6:,.0f} MB/s", ""))
    return lines


def clean_start(directory: Path) -> list[Line]:
    """Start with 1 GB and with 100 GB of sealed segments, which are sparse files."""
    lines = []
    for count in (1, 100):
        broker = KBroker(directory / f"of-{count}")
        with broker:
            create(broker.bootstrap, "t")
        partition = broker.data_dir / "t-0"
        for path in partition.glob("0*"):
            path.unlink()
        for number in range(count):
            with open(partition / f"{number * 1_000_000:020d}.log", "wb") as file:
                file.truncate(1 << 30)
        (partition / f"{count * 1_000_000:020d}.log").touch()
        started = time.perf_counter()
        with broker:
            seconds = time.perf_counter() - started
        lines.append((f"clean start beside {count} GB", f"{seconds:.2f} s", "the same for both"))
    return lines


def finding(directory: Path) -> list[Line]:
    """Search for random offsets and times in a log of 1,000 segments."""
    log = filled(directory / "t-0", 1000 * 256 * 1024, records=20, segment_bytes=256 * 1024)
    rng = random.Random(1)
    end, last = log.log_end_offset, log.segments.active.max_timestamp
    calls: list[tuple[str, Callable[[], object]]] = [
        ("fetch at a random offset", lambda: log.read(rng.randrange(end), 1 << 20, end, min_one=True)),
        ("ListOffsets by a random time", lambda: whole(log.find_timestamp(rng.randint(NOW, last)))),
    ]
    lines = []
    for name, call in calls:
        log.segments.release_idle(force=True)
        taken = []
        for _ in range(5000):
            started = time.perf_counter()
            call()
            taken.append((time.perf_counter() - started) * 1e6)
        mean, p50, p99 = sum(taken) / len(taken), percentile(taken, 0.5), percentile(taken, 0.99)
        text = f"mean {mean:.0f} us, p50 {p50:.0f}, p99 {p99:.0f}"
        lines.append((f"{name}, {len(log.segments):,} segments", text, "<= 200 us"))
    return lines


def idle_partitions(directory: Path, count: int) -> list[Line]:
    """Start with thousands of idle partitions, after a clean stop."""
    broker = KBroker(directory)
    with broker:
        time.sleep(1)
        empty = memory_mb(broker.pid)
        create(broker.bootstrap, "idle", partitions=count)
    started = time.perf_counter()
    with broker:
        seconds = time.perf_counter() - started
        time.sleep(1)
        each = (memory_mb(broker.pid) - empty) * 1000 / count
        descriptors = len(os.listdir(f"/proc/{broker.pid}/fd"))
    return [
        (f"start with {count:,} idle partitions", f"{seconds:.2f} s", "< 5 s"),
        ("memory of an idle partition", f"{each:.1f} kB", "<= 8 kB"),
        (f"descriptors with {count:,} idle partitions", f"{descriptors}", ""),
    ]


def many_commits(directory: Path, commits: int) -> list[Line]:
    """Let one group commit offsets repeatedly.

    Return the size of the log that is left, and the time of the next start.
    """
    partitions = 100
    broker = KBroker(directory, {"offsets.topic.num.partitions": "1", "log.cleaner.backoff.ms": "1000"})
    with broker:
        create(broker.bootstrap, "t", partitions=partitions)
        _until_committed(broker.bootstrap, partitions)
        sock = connect(broker.bootstrap)
        request = frame(8, 8, True, encode(_commit(partitions), 8))
        started = time.perf_counter()
        pump(sock, [request], commits // partitions, 5)
        seconds = time.perf_counter() - started
        deadline = time.monotonic() + 120
        while (size := _size(broker.data_dir / "__consumer_offsets-0")) > 250e6 and time.monotonic() < deadline:
            time.sleep(1)
        sock.close()
    started = time.perf_counter()
    with broker:
        _until_committed(broker.bootstrap, partitions)
        ready = time.perf_counter() - started
    name = f"{commits:,} commits of a group"
    return [
        (name, f"{commits / seconds:,.0f}/s", ""),
        (f"log after {name}", f"{size / 1e6:,.0f} MB", "two segments of 100 MB, and little"),
        (f"start to the group's answer after {name}", f"{ready:.2f} s", ""),
    ]


def _commit(partitions: int) -> OffsetCommitRequest:
    wanted = [OffsetCommitRequestPartition(partition_index=i, committed_offset=1) for i in range(partitions)]
    topics = [OffsetCommitRequestTopic(name="t", partitions=wanted)]
    return OffsetCommitRequest(group_id="committer", topics=topics)


def _until_committed(address: str, partitions: int) -> None:
    """Commit as soon as the group's coordinator is there and has loaded the group."""
    deadline = time.monotonic() + 120
    with WireClient(address) as client:
        while time.monotonic() < deadline:
            if client.ask(FindCoordinatorRequest(key="committer"), 1).error_code == 0:
                answer = client.ask(_commit(partitions), 8)
                if {p.error_code for p in answer.topics[0].partitions} == {0}:
                    return
            time.sleep(0.01)
    raise SystemExit("the group could not commit")


def _size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.glob("*.log"))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.storage", description=__doc__)
    parser.add_argument("--recovery-bytes", type=int, default=2 * GB)
    parser.add_argument("--partitions", type=int, default=5000)
    parser.add_argument("--commits", type=int, default=10_000_000)
    args = parser.parse_args()
    lines: list[Line] = []
    works: list[Callable[[Path], list[Line]]] = [
        lambda directory: recovery(directory, args.recovery_bytes),
        lambda directory: recovery_by_threads(directory, args.recovery_bytes),
        clean_start,
        finding,
        lambda directory: idle_partitions(directory, args.partitions),
        lambda directory: many_commits(directory, args.commits),
    ]
    for work in works:
        with tempfile.TemporaryDirectory(prefix="bench-") as directory:
            for line in work(Path(directory)):
                print(": ".join(line[:2]), flush=True)
                lines.append(line)
    stamp = time.strftime("%Y-%m-%d-%H%M", time.gmtime())
    text = [
        f"# The log itself, {stamp} UTC",
        "",
        "- command: `python -m benchmarks.storage`",
        f"- machine: {os.cpu_count()} cores, {platform.machine()}, Linux {platform.release()}; "
        f"Python {platform.python_version()}",
        "",
        "| work | measured | aim |",
        "|---|---|---|",
        *("| " + " | ".join(line) + " |" for line in lines),
        "",
    ]
    (RESULTS / f"{stamp}-storage.md").write_text("\n".join(text))


if __name__ == "__main__":
    main()
