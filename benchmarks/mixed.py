"""A quiet client beside busy ones: how long it waits for its responses. kbroker and Apache Kafka alternate.

The quiet client sends one small Produce every 2 ms. Beside it, all at the same time and as fast as they can: a producer
of 100 kB batches, a consumer of 1 MB responses, a producer of keyed records to a topic that is compacted all the time,
and a group that 200 members join again and again. Prints a table with ratios and saves it under benchmarks/results/;
asserts no times.

    python -m benchmarks.mixed [--rounds 3] [--seconds 15]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import subprocess
import sys
import time
import uuid
from pathlib import Path
from statistics import median

from benchmarks import subjects
from benchmarks.group_growth import Group, classic_member
from benchmarks.raw import Answers, connect, fetch_frame, last_offset, percentile, produce_frame, pump
from benchmarks.replay import wait_for_coordinators
from benchmarks.work import create, raw
from compat_tests.harness.brokers import BrokerProcess
from compat_tests.wire.client import WireClient
from kbroker.protocol.compiler import decode
from kbroker.protocol.messages.cluster import MetadataRequest, MetadataRequestTopic
from kbroker.protocol.messages.fetch import FetchResponse

RESULTS = Path(__file__).parent / "results"
PAUSE_S = 0.002
MEMBERS, PARTITIONS = 200, 1000
CLEANER = {"log.cleaner.backoff.ms": "200", "log.cleaner.min.cleanable.ratio": "0.01", "log.segment.bytes": "20000000"}

Figures = dict[str, float]


def quiet(address: str, seconds: float) -> Figures:
    """Send a small request now and then."""
    sock = connect(address)
    answers, request = Answers(sock), produce_frame("quiet", 0, 1, 100)
    waits = []
    until = time.perf_counter() + seconds
    while (started := time.perf_counter()) < until:
        sock.sendall(request)
        answers.one()
        waits.append(time.perf_counter() - started)
        time.sleep(PAUSE_S)
    shares = {"p50_ms": 0.5, "p99_ms": 0.99, "p999_ms": 0.999, "longest_ms": 1.0}
    return {name: percentile(waits, share) * 1e3 for name, share in shares.items()}


def produce(address: str, seconds: float) -> Figures:
    """Send 100 kB batches, 5 in flight."""
    sock, request, sent = connect(address), produce_frame("busy", 0, 100, 1000), 0
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pump(sock, [request], 200, 5)
        sent += 200
    return {"produced_mb_per_s": sent * 0.1 / seconds}


def consume(address: str, seconds: float) -> Figures:
    """Read 1 MB responses, 5 in flight, again and again."""
    sock, requests, offset = connect(address), [], 0
    for _ in range(32):
        sock.sendall(fetch_frame("full", 0, offset, 1 << 20))
        answer = decode(FetchResponse, 11, memoryview(Answers(sock).one())[4:])
        offset = last_offset(answer.responses[0].partitions[0].records)
        requests.append(fetch_frame("full", 0, offset, 1 << 20))
    received, until = 0, time.perf_counter() + seconds
    while time.perf_counter() < until:
        received += pump(sock, requests, 100, 5)[2]
    return {"consumed_mb_per_s": received / seconds / 1e6}


def keyed(address: str, seconds: float) -> Figures:
    """Send keyed records to a compacted topic, at most 5 MB/s, so that there is always something to compact."""
    from confluent_kafka import Producer

    producer, rng = Producer({"bootstrap.servers": address, "linger.ms": 5}), random.Random(1)
    sent, started = 0, time.perf_counter()
    while (now := time.perf_counter() - started) < seconds:
        if sent < now * 50_000:
            for _ in range(500):
                producer.produce("compacted", rng.randbytes(80), str(rng.randrange(100_000)))
            sent += 500
        producer.poll(0.005)
    producer.flush(30)
    return {"keyed_per_s": sent / seconds}


async def join(address: str, seconds: float) -> Figures:
    """Let 200 members join a group; once it is stable they vanish without LeaveGroup, and another group begins."""
    with WireClient(address) as client:
        topic_id = client.ask(MetadataRequest(topics=[MetadataRequestTopic(name="shared")]), 12).topics[0].topic_id
    groups, until = 0, time.perf_counter() + seconds
    while time.perf_counter() < until:
        group = Group(address, f"g-{uuid.uuid4().hex[:6]}", "shared", topic_id, PARTITIONS)
        for number in range(MEMBERS):
            group.join(classic_member, number)
        await group.stable(MEMBERS)
        await group.end()
        groups += 1
    return {"groups_joined": groups}


def act(part: str, address: str, seconds: float) -> Figures:
    if part == "join":
        return asyncio.run(join(address, seconds))
    return {"quiet": quiet, "produce": produce, "consume": consume, "keyed": keyed}[part](address, seconds)


def compacted_topic(address: str) -> None:
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    admin = AdminClient({"bootstrap.servers": address})
    config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.bytes": "20000000"}
    for future in admin.create_topics([NewTopic("compacted", 1, 1, config=config)]).values():
        future.result(30)


def measure(broker: BrokerProcess, seconds: float) -> Figures:
    """Run all parts at the same time; the busy ones begin before the quiet one and end after it."""
    address = broker.bootstrap
    create(address, "quiet", "busy", "full")
    create(address, "shared", partitions=PARTITIONS)
    compacted_topic(address)
    wait_for_coordinators(address)
    raw(broker, "produce", "full", records=100, size=1000, requests=1000)
    figures: Figures = {}
    cpu = subjects.cpu_seconds(broker.pid)
    busy = [_part(part, address, seconds + 6) for part in ("produce", "consume", "keyed", "join")]
    time.sleep(3)
    watched = _part("quiet", address, seconds)
    for process in (watched, *busy):
        out, _ = process.communicate(timeout=seconds + 200)
        if process.returncode:
            raise SystemExit(f"{process.args!r} failed")
        figures |= json.loads(out)
    figures["broker_cpu_s"] = subjects.cpu_seconds(broker.pid) - cpu
    figures["memory_mb"] = subjects.memory_mb(broker.pid)
    return figures


def _part(part: str, address: str, seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.mixed", "--part", part, "--at", address, "--seconds", str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def table(rounds: dict[str, list[Figures]]) -> list[str]:
    lines = ["| figure | kbroker | Apache Kafka 4.4.0 | ratio |", "|---|---|---|---|"]
    for figure in rounds["kbroker"][0]:
        ours, theirs = (median(each[figure] for each in rounds[name]) for name in ("kbroker", "kafka"))
        lines.append(f"| {figure} | {ours:,.2f} | {theirs:,.2f} | {ours / theirs if theirs else 0:.2f}x |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--at", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        print(json.dumps(act(args.part, args.at, args.seconds)))
        return
    subjects.SETTINGS |= CLEANER
    rounds: dict[str, list[Figures]] = {"kbroker": [], "kafka": []}
    for _ in range(args.rounds):
        for name, found in rounds.items():
            with subjects.running(name) as (broker, _seconds):
                found.append(measure(broker, args.seconds))
            print(f"{name:8}" + ", ".join(f"{k} {v:,.2f}" for k, v in found[-1].items()), flush=True)
    stamp = time.strftime("%Y-%m-%d-%H%M", time.gmtime())
    lines = [
        f"# A quiet client beside busy ones, {stamp} UTC",
        "",
        f"- command: `python -m benchmarks.mixed --rounds {args.rounds} --seconds {args.seconds:g}` (medians)",
        f"- machine: {os.cpu_count()} cores, {platform.machine()}, Linux {platform.release()}, all clients on it too; "
        f"Python {platform.python_version()}",
        "",
        *table(rounds),
        "",
    ]
    print("\n".join(lines))
    (RESULTS / f"{stamp}-mixed.md").write_text("\n".join(lines))


if __name__ == "__main__":
    main()
