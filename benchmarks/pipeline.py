"""How fast a topic is archived and replayed, and what that costs the broker: kbroker and Apache Kafka alternate.

Fills a topic with events of about 300 bytes, archives it with `kbroker pipeline archive`, and replays the archive into
another topic of the same broker. The job is the same on both sides; the measured time is that of its steps, as it
prints them, without Spark's start. Prints a table and saves it under benchmarks/results/; asserts nothing about time.

    python -m benchmarks.pipeline [--events 5000000] [--rounds 1] [--only kbroker]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.raw import connect, produce_frame, pump
from benchmarks.subjects import SUBJECTS, cpu_seconds, running
from compat_tests.spark.session import connector_jars
from kbroker.admin.connection import Connection
from kbroker.pipeline.kafka.cluster import Cluster

RESULTS = Path(__file__).parent / "results"
TOPIC, COPY = "events", "copy"
PARTITIONS = 4
BYTES = 300
PER_BATCH = 50  # about the 16 kB of the Java producer
DEADLINE_S = 1800
FIGURES = {
    "archive_rows_per_s": "archive, rows/s",
    "archive_broker_cpu_s": "archive, broker's CPU s",
    "replay_rows_per_s": "replay at max, rows/s",
    "replay_broker_cpu_s": "replay, broker's CPU s",
}
AIMS = {"archive_rows_per_s": ">= 1x", "archive_broker_cpu_s": "<= 0.5x", "replay_rows_per_s": ">= 1x"}


def fill(address: str, events: int) -> int:
    """Produce the events, spread over the partitions; returns their number."""
    Cluster(Connection(address, {})).ensure_topic(TOPIC, PARTITIONS)
    each = events // PARTITIONS // PER_BATCH
    sock = connect(address)
    for partition in range(PARTITIONS):
        pump(sock, [produce_frame(TOPIC, partition, PER_BATCH, BYTES)], each, 5)
    sock.close()
    return each * PARTITIONS * PER_BATCH


def job(address: str, *arguments: str) -> float:
    """Run a verb; returns the seconds that its steps took, from the first printed begin of a step."""
    command = [sys.executable, "-m", "kbroker", "pipeline", *arguments, "--bootstrap", address]
    command += ["--jars", ",".join(connector_jars()), "--conf", "spark.driver.memory=2g"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        seconds = 0.0
        for line in process.stdout:
            step = json.loads(line)
            if step["rate"]:
                seconds += step["records"] / step["rate"]
        if process.wait(DEADLINE_S):
            raise SystemExit(f"{arguments[0]} ended with {process.returncode}")
    return seconds


def measure(name: str, events: int) -> dict[str, float]:
    """Run the complete measurement on one broker."""
    with running(name) as (broker, _), tempfile.TemporaryDirectory(prefix="bench-") as folder:
        records = fill(broker.bootstrap, events)
        found: dict[str, float] = {}
        places = ("--to", f"{folder}/archive", "--checkpoint", f"{folder}/checkpoint")
        verbs = {
            "archive": ("archive", "--topics", TOPIC, *places),
            "replay": ("replay", "--from", f"{folder}/archive", "--to-topic", COPY),
        }
        for verb, arguments in verbs.items():
            before = cpu_seconds(broker.pid)
            found[f"{verb}_rows_per_s"] = records / job(broker.bootstrap, *arguments)
            found[f"{verb}_broker_cpu_s"] = cpu_seconds(broker.pid) - before
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=1, help="alternating; medians are taken")
    parser.add_argument("--only", choices=sorted(SUBJECTS))
    args = parser.parse_args()
    names = [args.only] if args.only else list(SUBJECTS)
    samples: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for number in range(args.rounds):
        for name in names if number % 2 else reversed(names):
            samples[name].append(measure(name, args.events))
            print(f"round {number + 1}, {name}: {samples[name][-1]}", flush=True)
    results = {name: {key: median(s[key] for s in found) for key in FIGURES} for name, found in samples.items()}
    print(text := table(results, args))
    stamp = time.strftime("%Y-%m-%d-%H%M", time.gmtime())
    (RESULTS / f"{stamp}-pipeline.md").write_text(f"# The pipeline, {stamp} UTC\n\n{text}")


def table(results: dict[str, dict[str, float]], args: argparse.Namespace) -> str:
    """Return the table, with the command that made it and the targets."""
    lines = [
        f"- command: `python -m benchmarks.pipeline --events {args.events} --rounds {args.rounds}` (medians)",
        f"- machine: {os.cpu_count()} cores, {platform.machine()}, Linux {platform.release()}; Spark on it too; "
        f"Python {platform.python_version()}; Apache Kafka 4.4.0 (-Xmx1G, G1)",
        "",
        f"| | {' | '.join(results)} | kbroker / kafka | aim |",
        "|---|" + "---|" * (len(results) + 2),
    ]
    for key, what in FIGURES.items():
        values = " | ".join(f"{found[key]:,.1f}" for found in results.values())
        ratio = f"{results['kbroker'][key] / results['kafka'][key]:.2f}x" if len(results) > 1 else ""
        lines.append(f"| {what} | {values} | {ratio} | {AIMS.get(key, '')} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
