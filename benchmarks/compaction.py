"""How fast a partition is compacted, and how that affects produce requests: kbroker and Apache Kafka alternate.

Fills a topic with 100-byte records, of which one in ten has its own key. Then it starts the cleaner and waits until the
closed segments are clean, according to the broker's own `cleaner-offset-checkpoint`. Before and meanwhile, a connection
produces single records to another topic, one at a time. Prints a table and saves it under benchmarks/results/; asserts
nothing about time.

    python -m benchmarks.compaction [--megabytes 1000] [--batch 150] [--rounds 2] [--only kbroker]
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import struct
import tempfile
import threading
import time
from pathlib import Path
from statistics import median

from benchmarks.raw import PRODUCE_VERSION, Answers, connect, frame, percentile, produce_frame, pump
from benchmarks.subjects import SETTINGS, SUBJECTS
from compat_tests.harness.brokers import BrokerProcess
from kbroker.protocol.compiler import encode
from kbroker.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kbroker.protocol.records import build_batch, compute_crc

RESULTS = Path(__file__).parent / "results"
TOPIC, PROBE = "compacted", "probe"
SEGMENT_BYTES = 100 << 20
RECORD_BYTES = 100
KEYS_SHARE = 10
VALUE = bytes(80)
PLACE = b"0123456789"  # without the key, which always has the same number of digits
DEADLINE_S = 1800


def fill(broker: BrokerProcess, megabytes: int, per_batch: int) -> None:
    """Produce the records in batches of `per_batch`, with random keys."""
    records = megabytes * 1_000_000 // RECORD_BYTES
    keys = max(records // KEYS_SHARE, 1)
    seed = 20260
    print(f"  {records} records, {keys} keys, seed {seed}", flush=True)
    choose = random.Random(seed).randrange
    now = int(time.time() * 1000)
    template = build_batch([(now, PLACE, VALUE, ()) for _ in range(per_batch)])
    places = []
    place = template.find(PLACE)
    while place >= 0:
        places.append(place)
        place = template.find(PLACE, place + len(PLACE))
    sock = connect(broker.bootstrap)
    left = records // per_batch
    while left > 0:
        requests = []
        for _ in range(min(left, 64)):
            batch = bytearray(template)
            for place in places:
                batch[place : place + len(PLACE)] = b"%010d" % choose(keys)
            struct.pack_into(">I", batch, 17, compute_crc(batch))
            requests.append(_request(batch))
        left -= len(requests)
        pump(sock, requests, len(requests), 5)
    sock.close()


def _request(batch: bytearray) -> bytes:
    data = TopicProduceData(
        name=TOPIC, partition_data=[PartitionProduceData(index=0, records=memoryview(bytes(batch)))]
    )
    return frame(
        0, PRODUCE_VERSION, True, encode(ProduceRequest(acks=-1, timeout_ms=30000, topic_data=[data]), PRODUCE_VERSION)
    )


class Probe:
    """A thread that produces single records, one at a time, and keeps the latency of each."""

    def __init__(self, address: str) -> None:
        self._sock = connect(address)
        self._request = produce_frame(PROBE, 0, 1, RECORD_BYTES)
        self._sock.sendall(self._request)
        Answers(self._sock).one()

    def during(self, done: threading.Event) -> list[float]:
        """Return the latencies in s of the records until `done` is set."""
        latencies: list[float] = []
        while not done.is_set():
            latencies += pump(self._sock, [self._request], 50, 1)[1]
        return latencies

    def close(self) -> None:
        self._sock.close()


def prepare(address: str) -> None:
    """Create the topics; the cleaner does not touch the compacted one before `release`."""
    from kafka.admin import KafkaAdminClient, NewTopic

    configs = {
        "cleanup.policy": "compact",
        "segment.bytes": str(SEGMENT_BYTES),
        "min.cleanable.dirty.ratio": "1",
        "file.delete.delay.ms": "1000",
    }
    admin = KafkaAdminClient(bootstrap_servers=address)
    compacted = NewTopic(TOPIC, num_partitions=1, replication_factor=1, topic_configs=configs)
    admin.create_topics([compacted, NewTopic(PROBE, num_partitions=1, replication_factor=1)])
    admin.wait_for_topics([TOPIC, PROBE])
    admin.close()


def release(address: str) -> None:
    """Allow the cleaner to compact the topic."""
    from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

    entry = ConfigEntry("min.cleanable.dirty.ratio", "0.01", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, TOPIC, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": address})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(30)


def closed_segments(broker: BrokerProcess) -> tuple[int, int]:
    """Return (base offset of the active segment, bytes of the other segments)."""
    files = sorted((broker.data_dir / f"{TOPIC}-0").glob("*.log"))
    return int(files[-1].stem), sum(file.stat().st_size for file in files[:-1])


def cleaned_to(broker: BrokerProcess) -> int:
    """Return the offset up to which the topic is clean, according to the checkpoint."""
    try:
        lines = (broker.data_dir / "cleaner-offset-checkpoint").read_text().splitlines()
    except FileNotFoundError:
        return 0
    return next((int(line.split()[2]) for line in lines[2:] if line.startswith(f"{TOPIC} 0 ")), 0)


def measure(name: str, megabytes: int, per_batch: int) -> dict[str, float]:
    """Run the complete measurement on one broker."""
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        broker = SUBJECTS[name](Path(directory), SETTINGS | {"log.cleaner.backoff.ms": "100"})
        with broker:
            prepare(broker.bootstrap)
            fill(broker, megabytes, per_batch)
            probe = Probe(broker.bootstrap)
            before = _probed_for(probe, 5.0)
            goal, size = closed_segments(broker)
            if not size:
                raise SystemExit(f"nothing to compact: use more than {SEGMENT_BYTES >> 20} megabytes")
            seconds, during = _compact(broker, probe, goal)
            probe.close()
            left = closed_segments(broker)[1]
    return {
        "bytes": size,
        "left": left,
        "seconds": seconds,
        "mb_per_s": size / seconds / 1e6,
        "p99_before_us": percentile(before, 0.99) * 1e6,
        "p99_during_us": percentile(during, 0.99) * 1e6,
    }


def _probed_for(probe: Probe, seconds: float) -> list[float]:
    done = threading.Event()
    timer = threading.Timer(seconds, done.set)
    timer.start()
    return probe.during(done)


def _compact(broker: BrokerProcess, probe: Probe, goal: int) -> tuple[float, list[float]]:
    done = threading.Event()
    latencies: list[float] = []
    thread = threading.Thread(target=lambda: latencies.extend(probe.during(done)))
    started = time.perf_counter()
    release(broker.bootstrap)
    thread.start()
    try:
        while cleaned_to(broker) < goal:
            if time.perf_counter() - started > DEADLINE_S:
                raise SystemExit(f"{broker.name} had not compacted up to {goal} after {DEADLINE_S} s")
            time.sleep(0.02)
        seconds = time.perf_counter() - started
    finally:
        done.set()
        thread.join()
    return seconds, latencies


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=150, help="records a batch; 150 are the Java producer's 16 kB")
    parser.add_argument("--rounds", type=int, default=2, help="alternating; medians are taken")
    parser.add_argument("--only", choices=sorted(SUBJECTS))
    args = parser.parse_args()
    names = [args.only] if args.only else list(SUBJECTS)
    samples: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for number in range(args.rounds):
        for name in names if number % 2 else reversed(names):
            print(f"round {number + 1}, {name}:", flush=True)
            samples[name].append(measure(name, args.megabytes, args.batch))
            print("  " + ", ".join(f"{figure} {value:,.1f}" for figure, value in samples[name][-1].items()), flush=True)
    results = {name: {key: median(s[key] for s in found) for key in found[0]} for name, found in samples.items()}
    print(text := table(results, args))
    stamp = time.strftime("%Y-%m-%d-%H%M", time.gmtime())
    (RESULTS / f"{stamp}-compaction.md").write_text(f"# Compaction, {stamp} UTC\n\n{text}")


def table(results: dict[str, dict[str, float]], args: argparse.Namespace) -> str:
    """Return the table, with the command that made it and the targets."""
    names = list(results)
    command = (
        f"python -m benchmarks.compaction --megabytes {args.megabytes} --batch {args.batch} --rounds {args.rounds}"
    )
    lines = [
        f"- command: `{command}` (medians, brokers in turn)",
        f"- machine: {os.cpu_count()} cores, {platform.machine()}, Linux {platform.release()}; "
        f"Python {platform.python_version()}; Apache Kafka 4.4.0 (-Xmx1G, G1)",
        "",
        f"| | {' | '.join(names)} |",
        "|---|" + "---|" * len(names),
    ]
    figures = next(iter(results.values()))
    lines += [f"| {key} | " + " | ".join(f"{results[name][key]:,.1f}" for name in names) + " |" for key in figures]
    lines.append("")
    for name in names:
        grown = results[name]["p99_during_us"] / results[name]["p99_before_us"]
        lines.append(f"- p99 of a produce request during compaction / before, {name}: {grown:.2f}x (aim: <= 2x)")
    if len(names) > 1:
        ratio = results["kbroker"]["mb_per_s"] / results["kafka"]["mb_per_s"]
        lines.append(f"- speed, kbroker / kafka: {ratio:.2f}x (aim: >= 1x)")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
