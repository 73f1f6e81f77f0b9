"""`python -m benchmarks`: the measured claims; kbroker and Apache Kafka alternate with the same work in one run.

Prints a table with ratios and saves it under benchmarks/results/. `--rounds N` alternates N times and takes medians;
`--quick` shrinks the work; `--only WORD` runs the rows whose name contains it. `--beside DIR` uses another checkout of
kbroker, which has its environment in DIR/.venv, instead of Apache Kafka. Asserts nothing about time.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import bare_sendfile, work
from benchmarks.subjects import cpu_seconds, memory_mb, running, sink

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Row:
    """One line of the table: a figure of some work, and the target for the ratio kbroker/Kafka (None: no target)."""

    name: str
    figure: str
    unit: str
    target: float | None = None
    at_least: bool = True


ROWS = [
    Row("raw produce 1000 x 100 B", "messages_per_s", "msg/s", 2.5),
    Row("raw produce 1000 x 100 B", "cpu_s_per_gb", "CPU s/GB", 0.5, False),
    Row("raw produce 100 x 1 kB", "mb_per_s", "MB/s", 2.0),
    Row("raw produce 100 x 1 kB", "cpu_s_per_gb", "CPU s/GB", 0.5, False),
    Row("raw produce 1 record, 32 in flight", "requests_per_s", "req/s", 6.0),
    Row("raw produce 1 record, 32 in flight", "cpu_s_per_gb", "CPU s/GB", 0.5, False),
    Row("raw produce 1 record, 1 in flight", "p50_us", "p50 us", 1.0, False),
    Row("raw produce 1 record, 1 in flight", "p99_us", "p99 us", 1.0, False),
    Row("small produce, 1 connection, 1 in flight", "p50_us", "p50 us", 0.9, False),
    Row("small produce, 1 connection, 1 in flight", "p99_us", "p99 us"),
    Row("small produce, 1 connection, 32 in flight", "requests_per_s", "req/s", 6.0),
    Row("small produce, 1 connection, 32 in flight", "cpu_us", "CPU us each"),
    Row("small produce, 100 connections, 1 in flight", "requests_per_s", "req/s", 3.0),
    Row("small produce, 100 connections, 1 in flight", "cpu_us", "CPU us each"),
    Row("raw fetch 1 MB", "mb_per_s", "MB/s", 1.8),
    Row("raw fetch 1 MB", "cpu_s_per_gb", "CPU s/GB", 0.5, False),
    Row("raw fetch 256 kB", "mb_per_s", "MB/s"),
    Row("confluent-kafka produce, 100 B", "messages_per_s", "msg/s"),
    Row("confluent-kafka produce, 100 B", "cpu_s_per_gb", "CPU s/GB"),
    Row("confluent-kafka consume, 100 B", "messages_per_s", "msg/s"),
    Row("Java perf producer, 1 kB", "mb_per_s", "MB/s"),
    Row("Java perf consumer, 1 kB", "mb_per_s", "MB/s"),
    Row("produce to consume", "p50_us", "p50 us"),
    Row("produce to consume", "p99_us", "p99 us"),
    Row("produce to consume", "p999_us", "p99.9 us"),
    Row("start to ready", "seconds", "s", 0.15, False),
    Row("memory idle", "mb", "MB", 0.15, False),
    Row("memory after the load", "mb", "MB", 0.1, False),
    Row("5,000 idle connections", "kb_each", "kB each"),
    Row("1,000 idle partitions", "kb_each", "kB each"),
]


def measure(name: str, scale: float, only: str, checkout: Path | None) -> dict[str, work.Figures]:
    """Run every piece of work on one broker; `checkout` is the checkout of kbroker to use instead of this one."""
    figures: dict[str, work.Figures] = {}

    def want(label: str) -> bool:
        return only in label

    def say(label: str, result: work.Figures) -> None:
        figures[label] = result
        shown = ", ".join(f"{k} {v:,.1f}" for k, v in result.items() if k not in ("gb", "seconds"))
        print(f"  {name:8} {label}: {shown}", flush=True)

    def n(count: int) -> int:
        return max(int(count * scale), 50)

    with running(name, checkout) as (broker, ready):
        say("start to ready", {"seconds": ready})
        time.sleep(2)
        say("memory idle", {"mb": memory_mb(broker.pid)})
        shapes: list[tuple[str, str, dict[str, int]]] = [
            ("raw produce 1000 x 100 B", "a", {"records": 1000, "size": 100, "requests": n(10_000)}),
            ("raw produce 100 x 1 kB", "b", {"records": 100, "size": 1000, "requests": n(10_000)}),
            ("raw produce 1 record, 32 in flight", "c", {"records": 1, "in_flight": 32, "requests": n(200_000)}),
            ("raw produce 1 record, 1 in flight", "d", {"records": 1, "in_flight": 1, "requests": n(20_000)}),
        ]
        work.create(broker.bootstrap, *"abcdefghi")
        for label, topic, options in shapes:
            if want(label):
                say(label, work.raw(broker, "produce", topic, **options))
        for connections, in_flight, requests in ((1, 1, n(20_000)), (1, 32, n(100_000)), (100, 1, n(100_000))):
            label = f"small produce, {connections} connection{'s'[: connections > 1]}, {in_flight} in flight"
            if want(label):
                say(label, work.small(broker, "i", connections, in_flight, requests))
        if want("raw fetch"):
            work.raw(broker, "produce", "e", records=100, size=1000, requests=1000)
            say("raw fetch 1 MB", work.raw(broker, "fetch", "e", requests=n(4000), bytes=1 << 20))
            say("raw fetch 256 kB", work.raw(broker, "fetch", "e", requests=n(8000), bytes=1 << 18))
        if want("confluent"):
            count = n(1_000_000)
            say("confluent-kafka produce, 100 B", work.confluent_produce(broker, "f", count, 100))
            say("confluent-kafka consume, 100 B", work.confluent_consume(broker, "f", count, 100))
        if want("Java perf"):
            count = n(500_000)
            say("Java perf producer, 1 kB", work.java_perf(broker, "producer", "g", count, 1000))
            say("Java perf consumer, 1 kB", work.java_perf(broker, "consumer", "g", count, 1000))
        if want("produce to consume"):
            say("produce to consume", work.latency(broker, "h", n(12_000)))
        say("memory after the load", {"mb": memory_mb(broker.pid)})
        if want("idle connections"):
            say("5,000 idle connections", work.idle_connections(broker, 5000))
        if want("idle partitions"):
            say("1,000 idle partitions", work.idle_partitions(broker, 1000))
    return figures


def measure_sink(scale: float) -> dict[str, work.Figures]:
    """Measure the produce shapes with the sink, and a bare sendfile loop: the limits of the machine."""
    found: dict[str, work.Figures] = {"raw fetch 1 MB": bare_sendfile.measure(int(4000 * scale))}
    for label, options in [
        ("raw produce 1000 x 100 B", {"records": 1000, "size": 100}),
        ("raw produce 100 x 1 kB", {"records": 100, "size": 1000}),
    ]:
        with sink() as (address, pid):

            class Sink:
                bootstrap = address

            holder: Any = Sink()
            holder.pid = pid
            before = cpu_seconds(pid)
            found[label] = work.raw(holder, "produce", "sink", requests=int(10_000 * scale), **options)
            assert cpu_seconds(pid) > before
    return found


def verdict(row: Row, ratio: float) -> str:
    if row.target is None:
        return ""
    sign = ">=" if row.at_least else "<="
    met = ratio >= row.target if row.at_least else ratio <= row.target
    return f"{sign} {row.target}x {'met' if met else 'MISSED'}"


def table(samples: dict[str, dict[str, list[work.Figures]]], limit: dict[str, work.Figures]) -> list[list[str]]:
    """Return the table's cells, for kbroker and the broker beside it; medians over the rounds."""
    (beside,) = samples.keys() - {"kbroker"}
    lines = []
    for row in ROWS:
        values = {
            side: [f[row.figure] for f in found.get(row.name, []) if row.figure in f] for side, found in samples.items()
        }
        if not all(values.values()):
            continue
        ours, theirs = (statistics.median(values[side]) for side in ("kbroker", beside))
        ratio = ours / theirs if theirs else float("inf")
        bound = limit.get(row.name, {}).get(row.figure)
        lines.append(
            [
                row.name,
                row.unit,
                f"{ours:,.2f}" if ours < 100 else f"{ours:,.0f}",
                f"{theirs:,.2f}" if theirs < 100 else f"{theirs:,.0f}",
                f"{ratio:.2f}x",
                verdict(row, ratio) if beside == "kafka" else "",
                "" if bound is None else (f"{bound:,.2f}" if bound < 100 else f"{bound:,.0f}"),
            ]
        )
    return lines


BESIDE = {"kafka": "Apache Kafka 4.4.0", "before": "kbroker before"}


def headings(beside: str) -> list[str]:
    return ["work", "unit", "kbroker", BESIDE[beside], "ratio", "target", "sink"]


def first_touch_us() -> float:
    """Return the current cost of the first write to a page of memory, in us.

    A log uses new pages for all appended bytes (the page cache), so both brokers' produce figures depend on this cost.
    A virtual machine whose host reclaims free memory pays 50 times as much as one that keeps it, and the cost changes
    within a run.
    """
    pages = 16384
    with mmap.mmap(-1, pages * mmap.PAGESIZE) as memory:
        started = time.perf_counter()
        for place in range(0, len(memory), mmap.PAGESIZE):
            memory[place] = 1
        return (time.perf_counter() - started) / pages * 1e6


def save(lines: list[list[str]], samples: Any, touches: list[float], command: str, beside: str) -> Path:
    """Write the table as Markdown and the samples as JSON; return the Markdown's path."""
    RESULTS.mkdir(exist_ok=True)
    stamp = time.strftime("%Y-%m-%d-%H%M", time.gmtime())
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr.splitlines()[0]
    text = [
        f"# Benchmark of {stamp} UTC",
        "",
        f"- command: `{command}` (medians of {len(touches) - 1} rounds, kbroker and {BESIDE[beside]} in turn)",
        f"- machine: {os.cpu_count()} cores, {platform.machine()}, Linux {platform.release()}, clients on it too",
        f"- versions: Python {platform.python_version()}, Apache Kafka 4.4.0 (-Xmx1G, G1), {java}",
        f"- first touch of a page of memory, before and after each round: {', '.join(f'{t:.1f}' for t in touches)} us",
        "",
        "| " + " | ".join(headings(beside)) + " |",
        "|" + "---|" * len(headings(beside)),
        *("| " + " | ".join(line) + " |" for line in lines),
        "",
    ]
    path = RESULTS / f"{stamp}.md"
    path.write_text("\n".join(text))
    path.with_suffix(".json").write_text(json.dumps(samples, indent=1))
    return path


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a tenth of the work")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--beside", type=Path, metavar="DIR", help="another checkout, in place of Apache Kafka")
    args = parser.parse_args()
    scale = 0.1 if args.quick else 1.0
    beside = "kafka" if args.beside is None else "before"
    samples: dict[str, dict[str, list[work.Figures]]] = {
        "kbroker": defaultdict(list),
        beside: defaultdict(list),
    }
    touches = [first_touch_us()]
    for number in range(args.rounds):
        for name in ("kbroker", beside) if number % 2 == 0 else (beside, "kbroker"):
            print(f"round {number + 1} of {args.rounds}: {name}", flush=True)
            checkout = args.beside if name == "before" else None
            for label, figures in measure(name, scale, args.only, checkout).items():
                samples[name][label].append(figures)
        touches.append(first_touch_us())
    limit = measure_sink(scale) if not args.only or args.only in ("raw", "raw produce", "raw fetch") else {}
    lines = table(samples, limit)
    from rich.console import Console
    from rich.table import Table

    shown = Table(*headings(beside))
    for line in lines:
        shown.add_row(*line)
    Console(width=160).print(shown)
    # The path of the other checkout on this machine is left out.
    told = ["CHECKOUT" if text == str(args.beside) else shlex.quote(text) for text in sys.argv[1:]]
    path = save(lines, samples, touches, " ".join(["python -m benchmarks", *told]), beside)
    print(f"saved {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")


if __name__ == "__main__":
    main()
