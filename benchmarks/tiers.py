"""Tiered storage (KIP-405): copies, cold reads, the local disk, 100,000 remote segments, and the local part of a topic.

The parts, each with a broker of its own and a store file:// in a temporary directory:

    copy     the rate and the CPU time of copies, and how long a quiet client waits beside them
    disk     the bytes on the disk after the copies, with a local retention of two segments
    reads    remote records beside obstore's reads of the same objects, and cached chunks beside local records
    many     the start and the memory of a broker whose topic has 100,000 remote segments
    local    produce and fetch of a tiered topic whose records are all local, beside an ordinary topic

Prints a table with targets and saves it; asserts no times. Does not measure a store that fails.

    python -m benchmarks.tiers [--parts copy disk reads many local] [--mb 2000] [--segment-mb 64] [--segments 100000]
"""

from __future__ import annotations

import argparse
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

from benchmarks.ratios import save
from benchmarks.raw import percentile, produce_frame
from benchmarks.subjects import SETTINGS, running
from benchmarks.tier_work import (
    BATCH_BYTES,
    EARLIEST_LOCAL,
    LATEST,
    LATEST_TIERED,
    MANY_PARTITIONS,
    PATIENCE_S,
    QUICK,
    QUIET,
    TIERED,
    Cpu,
    Objects,
    Reader,
    Slice,
    Start,
    await_offsets,
    be_quiet,
    configure,
    create,
    fetches,
    fill,
    filled_with_segments,
    in_turn,
    offsets,
    on_disk,
    segment_files,
    started,
    store_settings,
)
from compat_tests.harness.brokers import BrokerProcess, KBroker
from compat_tests.wire.client import WireClient
from kbroker.cluster_state import REMOTE_LOG_METADATA_TOPIC
from kbroker.tiers.metadata import PARTITIONS as METADATA_PARTITIONS

PARTS: Final = ("copy", "disk", "reads", "many", "local")
COPIED, PLAIN, AGAIN = "copied", "plain", "again"
RATE: Final = 100_000_000
KEPT_SEGMENTS: Final = 2
POLL_S: Final = 0.05
STILL_S: Final = 3.0
HEAD: Final = ["| part | figure | measured | compared with | target |", "|---|---|---|---|---|"]


class Row(NamedTuple):
    """One line of the table. The target is an upper bound of the value, or with `least` a lower bound."""

    part: str
    figure: str
    measured: str
    beside: str = ""
    value: float = 0.0
    target: float | None = None
    unit: str = ""
    least: bool = False

    def line(self) -> str:
        verdict = ""
        if self.target is not None:
            missed = self.value < self.target if self.least else self.value > self.target
            verdict = f"{'>=' if self.least else '<='} {self.target:,.4g}{self.unit}{' MISSED' if missed else ''}"
        return f"| {self.part} | {self.figure} | {self.measured} | {self.beside} | {verdict} |"


def per_s(work: tuple[int, float]) -> float:
    """Return MB/s of some bytes in some seconds."""
    size, seconds = work
    return size / seconds / 1e6


def of_ratio(part: str, figure: str, pairs: list[tuple[float, float]], beside: str, target: float) -> Row:
    """Return the line of two sides that were measured in turn."""
    ours, theirs = median(each[0] for each in pairs), median(each[1] for each in pairs)
    told = f"{ours:,.0f} MB/s, ratio {ours / theirs:.3f}"
    return Row(part, figure, told, f"{theirs:,.0f} MB/s, {beside}", ours / theirs, target, least=True)


# -- copy


class Copying(NamedTuple):
    """What it took to copy all closed segments; waits are those of the quiet client, in ms."""

    size: int
    seconds: float
    cpu: Cpu
    waits: list[float]
    alone: list[float]
    alone_s: float
    alone_cpu: Cpu

    def rows(self, how: str) -> Iterator[Row]:
        gb, part = self.size / 1e9, f"copy {how}"
        files = f"{self.size / 1e6:,.0f} MB of closed segments of one partition"
        yield Row(part, "rate", f"{per_s((self.size, self.seconds)):,.0f} MB/s", f"{files} in {self.seconds:.1f} s")
        share = self.seconds / self.alone_s
        quiet, quiet_loop = self.alone_cpu.total * share, self.alone_cpu.loop * share
        each = max(self.cpu.total - quiet, 0.0) / gb
        loop = max(self.cpu.loop - quiet_loop, 0.0) / gb
        yield Row(
            part,
            "CPU s/GB of the broker's process, user and system, all threads, without the quiet client's part",
            f"{each:.2f}, of these {loop:.2f} in the event loop's thread, {max(each - loop, 0.0):.2f} in other threads",
            f"{self.cpu.total:.2f} s in all, {quiet:.2f} s of them for the quiet client",
        )
        percent = each * RATE / 1e9 * 100
        figure = "share of a core at 100 MB/s"
        yield Row(part, figure, f"{percent:.1f} %", "1 core", percent, 10.0, " %")
        p50, p99, longest = (percentile(self.waits, at) for at in (0.5, 0.99, 1.0))
        before = ", ".join(f"{percentile(self.alone, at):.1f}" for at in (0.5, 0.99, 1.0))
        yield Row(
            part,
            "quiet client, produce and fetch, ms: p50, p99, longest",
            f"{p50:.1f}, {p99:.1f}, {longest:.1f} ({len(self.waits)} records)",
            f"{before} without copies ({len(self.alone)} records)",
            p99,
            50.0,
            " ms at p99",
        )


def beside_quiet(address: str, pid: int, work: Callable[[], None]) -> tuple[float, Cpu, list[float]]:
    """Do some work beside the quiet client; return its seconds, the broker's CPU time, and the client's waits."""
    over, waits = threading.Event(), list[float]()
    with ThreadPoolExecutor(1) as pool:
        client = pool.submit(be_quiet, address, over, waits)
        time.sleep(0.2)
        first, before, began = len(waits), Cpu.of(pid), time.perf_counter()
        try:
            work()
            seconds, cpu = time.perf_counter() - began, Cpu.of(pid).since(before)
        finally:
            over.set()
        client.result(PATIENCE_S)
    return seconds, cpu, waits[first:]


def copying(broker: BrokerProcess, options: argparse.Namespace) -> Copying:
    """Fill a topic whose copies are off, and switch them on."""
    with WireClient(broker.bootstrap) as client:
        create(client, QUIET, {})
        configs = {**TIERED, "segment.bytes": str(options.segment_mb << 20), "remote.log.copy.disable": "true"}
        create(client, COPIED, configs)
        fill(broker.bootstrap, COPIED, options.mb * 1_000_000)
        fill(broker.bootstrap, QUIET, BATCH_BYTES)
        os.sync()
        await_offsets(client, COPIED, LATEST_TIERED, -1)
        *closed, (active, _) = segment_files(broker.data_dir / f"{COPIED}-0").items()
        alone_s, alone_cpu, alone = beside_quiet(
            broker.bootstrap, broker.pid, lambda: time.sleep(options.quiet_seconds)
        )

        def copy() -> None:
            configure(client, COPIED, {"remote.log.copy.disable": "false"})
            until = time.monotonic() + PATIENCE_S
            while (found := offsets(client, COPIED, LATEST_TIERED)) != [active - 1]:
                assert time.monotonic() < until, f"copied up to {found}, not {active - 1}"
                time.sleep(POLL_S)

        seconds, cpu, waits = beside_quiet(broker.bootstrap, broker.pid, copy)
    return Copying(sum(size for _, size in closed), seconds, cpu, waits, alone, alone_s, alone_cpu)


@contextmanager
def tiered_broker(options: argparse.Namespace, **more: str) -> Iterator[tuple[BrokerProcess, Path]]:
    """Run a broker with tiered storage, and room for all chunks; yields it and its store."""
    with TemporaryDirectory(prefix="bench-store-") as name:
        settings = {
            **store_settings(Path(name)),
            "remote.log.manager.task.interval.ms": "100",
            "remote.storage.cache.bytes": str(max(2 * options.mb * 1_000_000, 1 << 30)),
            **more,
        }
        with running("kbroker", settings=settings) as (broker, _):
            yield broker, Path(name)


def of_copies(options: argparse.Namespace) -> Iterator[Row]:
    """Measure copies at full speed and at a limited rate; the second broker also serves the parts disk and reads."""
    if "copy" in options.parts:
        with tiered_broker(options) as (broker, _):
            yield from copying(broker, options).rows("at full speed")
    limit = {"remote.log.manager.copy.max.bytes.per.second": str(RATE)}
    with tiered_broker(options, **limit, **QUICK) as (broker, store):
        limited = copying(broker, options)
        if "copy" in options.parts:
            yield from limited.rows("at 100 MB/s")
        if not {"disk", "reads"} & set(options.parts):
            return
        kept = left_on_disk(broker, options)
        if "disk" in options.parts:
            yield kept
        if "reads" in options.parts:
            yield from of_reads(broker, store, options)


# -- disk


def left_on_disk(broker: BrokerProcess, options: argparse.Namespace) -> Row:
    """Let local retention remove the copied segments; return what is left."""
    segment, directory = options.segment_mb << 20, broker.data_dir / f"{COPIED}-0"
    size, since, until = 0, 0.0, time.monotonic() + PATIENCE_S
    with WireClient(broker.bootstrap) as client:
        configure(client, COPIED, {"local.retention.bytes": str(KEPT_SEGMENTS * segment)})
        while offsets(client, COPIED, EARLIEST_LOCAL) == [0] or time.monotonic() < since + STILL_S:
            assert time.monotonic() < until, "local retention removes nothing"
            found = on_disk(directory)
            if found != size or any(each.suffix == ".deleted" for each in directory.iterdir()):
                size, since = found, time.monotonic()
            time.sleep(0.1)
    bound = (KEPT_SEGMENTS + 2) * segment
    beside = f"{bound / 1e6:,.0f} MB: a local retention of {KEPT_SEGMENTS} segments, and 2 segments"
    part = size / bound
    told = f"{size / 1e6:,.1f} MB, ratio {part:.3f}"
    return Row("disk", "the partition after the copies", told, beside, part, 1.0)


# -- reads


def of_reads(broker: BrokerProcess, store: Path, options: argparse.Namespace) -> Iterator[Row]:
    """Read the remote records three times: twice from the store, after a restart each time, and once from chunks."""
    with WireClient(broker.bootstrap) as client:
        create(client, PLAIN, {"segment.bytes": str(options.segment_mb << 20)})
        fill(broker.bootstrap, PLAIN, options.mb * 1_000_000)
    os.sync()
    objects = Objects(store)
    for drops_pages in (True, False):
        broker.stop()  # the cache of chunks begins empty
        broker.start()
        ranges = remote_ranges(broker, objects)
        pairs = cold_reads(broker, objects, ranges, drops_pages=drops_pages)
        where = "objects on the disk only" if drops_pages else "objects in the kernel's page cache"
        yield of_ratio("reads", f"no chunk cached, {where}", pairs, "obstore.get_range in pieces of a chunk", 0.5)
    pairs = beside_local(broker, ranges)
    yield of_ratio("reads", "all chunks cached", pairs, "the same records in a topic that is only local", 0.9)


def remote_ranges(broker: BrokerProcess, objects: Objects) -> list[tuple[int, int]]:
    """Return the ranges of offsets of the segments that are only in the store."""
    with WireClient(broker.bootstrap) as client:
        await_offsets(client, COPIED, LATEST_TIERED, None)
        (local,) = offsets(client, COPIED, EARLIEST_LOCAL) or [0]
    bases = [each for each in objects.bases if each < local]
    assert bases, "no segment is only in the store"
    return list(zip(bases, [*bases[1:], local], strict=True))


def cold_reads(
    broker: BrokerProcess, objects: Objects, ranges: list[tuple[int, int]], *, drops_pages: bool
) -> list[tuple[float, float]]:
    """Read each segment through the broker and with obstore; return the MB/s of both."""
    reader, pairs = Reader(broker.bootstrap, COPIED), []
    for number, (begin, end) in enumerate(ranges):
        found: dict[str, float] = {}
        for side in ("broker", "store") if number % 2 else ("store", "broker"):
            if drops_pages:
                objects.forget_pages(begin)
            found[side] = per_s(reader.read(begin, end) if side == "broker" else objects.read(begin))
        pairs.append((found["broker"], found["store"]))
    reader.close()
    return pairs


def beside_local(broker: BrokerProcess, ranges: list[tuple[int, int]]) -> list[tuple[float, float]]:
    """Read each range from chunks and from a local topic; return the MB/s of both."""
    readers = {topic: Reader(broker.bootstrap, topic) for topic in (COPIED, PLAIN)}
    pairs = []
    for number, each in enumerate(ranges):
        topics = (COPIED, PLAIN) if number % 2 else (PLAIN, COPIED)
        found = {topic: per_s(readers[topic].read(*each)) for topic in topics}
        pairs.append((found[COPIED], found[PLAIN]))
    for reader in readers.values():
        reader.close()
    return pairs


# -- many segments


def of_many(options: argparse.Namespace) -> Iterator[Row]:
    """Start a broker with and without the records about its remote segments, alternately."""
    each = max(options.segments // MANY_PARTITIONS, 1)
    with TemporaryDirectory(prefix="bench-") as name:
        brokers = {}
        for state in ("with", "without"):
            (Path(name) / f"store-{state}").mkdir()
            settings = {**SETTINGS, **store_settings(Path(name) / f"store-{state}")}
            brokers[state] = KBroker(Path(name) / state, settings)
        written = filled_with_segments(brokers["with"], brokers["without"], each)
        starts: dict[str, list[Start]] = {state: [] for state in brokers}
        for number in range(options.starts):
            for state in sorted(brokers, reverse=bool(number % 2)):
                starts[state].append(started(brokers[state], each - 1 if state == "with" else -1))
        with brokers["with"] as broker, WireClient(broker.bootstrap) as client:
            found = offsets(client, REMOTE_LOG_METADATA_TOPIC, LATEST, METADATA_PARTITIONS)
            assert sum(found or []) == written, f"the broker has changed the segments: {found}, not {written} records"
    told = f"{each * MANY_PARTITIONS:,} segments of {MANY_PARTITIONS} partitions"
    ours, theirs = (
        Start(*(median(values) for values in zip(*starts[state], strict=True))) for state in ("with", "without")
    )
    for figure, here, there, target in (
        ("start until the first answer", ours.ready, theirs.ready, 2.0),
        ("start until ListOffsets -5 answers for all partitions", ours.known, theirs.known, None),
    ):
        beside = f"{there:.2f} s without these records"
        yield Row("many", f"{figure}, {told}", f"{here:.2f} s", beside, here - there, target, " s longer")
    beside = f"{theirs.memory:.1f} MB without these records"
    more = ours.memory - theirs.memory
    yield Row("many", "resident memory after that", f"{ours.memory:.1f} MB", beside, more, 40.0, " MB more")


# -- the local part


def of_local(options: argparse.Namespace) -> Iterator[Row]:
    """Produce to and fetch from a tiered topic and two ordinary ones, whose difference is that of the machine."""
    with tiered_broker(options) as (broker, _), WireClient(broker.bootstrap) as client:
        create(client, COPIED, {**TIERED, "remote.copy.lag.ms": "-1"})  # copies wait for local retention
        for topic in (PLAIN, AGAIN):
            create(client, topic, {})
        for figure, records, requests in (
            ("produce, 1,000 records of 100 B", 1000, options.requests // 10),
            ("produce, 1 record of 100 B", 1, options.requests),
        ):
            frames = {topic: [produce_frame(topic, 0, records, 100)] for topic in (COPIED, PLAIN, AGAIN)}
            yield from local_rows(figure, in_turn(broker, frames, requests, options.slices))
        frames = {topic: fetches(broker.bootstrap, topic) for topic in (COPIED, PLAIN, AGAIN)}
        requests = max(options.requests // 20, 1)
        yield from local_rows("fetch of 1 MB", in_turn(broker, frames, requests, options.slices))
        assert offsets(client, COPIED, LATEST_TIERED) == [-1], "a segment was copied"


def local_rows(figure: str, found: dict[str, list[Slice]]) -> Iterator[Row]:
    rate = {topic: median(each.rate for each in slices) for topic, slices in found.items()}
    cpu = {topic: max(sum(each.cpu for each in slices), 0.01) for topic, slices in found.items()}
    for what, ours, theirs, again in (
        ("requests/s", rate[COPIED], rate[PLAIN], rate[AGAIN]),
        ("CPU s", cpu[COPIED], cpu[PLAIN], cpu[AGAIN]),
    ):
        ratio, digits = ours / theirs, 0 if what == "requests/s" else 2
        told = f"{ours:,.{digits}f}, ratio {ratio:.3f}"
        beside = f"{theirs:,.{digits}f}, an ordinary topic; a second one has ratio {again / theirs:.3f}"
        target = 0.97 if what == "requests/s" else None
        yield Row("local", f"{figure}, {what}", told, beside, ratio, target, least=True)


NOTES: Final = (
    "store: file:// on the same file system as the broker's data. obstore's threads read the segments' files and write "
    "the objects inside the broker's process, so their CPU time counts in its CPU seconds, as other threads; the "
    "kernel's later writes of dirty pages do not count",
    "CPU seconds have a resolution of 10 ms for the process and for its first thread",
    "quiet client: one record of 100 B every 10 ms, acks=all, and then a fetch of it; a wait counts from the moment at "
    "which the record was due, so that a late answer also delays the records behind it",
    "copy: one partition, remote.log.manager.task.interval.ms=100; the time includes the waits for the broker's ticks, "
    "every 0.5 s, and the end of the copies is known to 50 ms",
    "reads: both sides read one segment after the other, in turn; medians over the segments. MB are those of complete "
    "batches, or of obstore's pieces",
    "local: at most 5 requests in flight; topics in random order, medians of the slices, CPU seconds of all slices. "
    "remote.copy.lag.ms=-1 keeps the broker from copying",
    "many: each segment has two records in batches of their own, as brokers write them, and one offset; its object "
    "does not exist. Medians of the starts, which alternate",
    "not measured: the local disk while the store fails",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--mb", type=int, default=2000, help="MB of records that are copied")
    parser.add_argument("--segment-mb", type=int, default=64, help="MiB of a segment")
    parser.add_argument("--quiet-seconds", type=float, default=20.0, help="seconds of the quiet client without copies")
    parser.add_argument("--segments", type=int, default=100_000, help="remote segments at the start")
    parser.add_argument("--starts", type=int, default=5, help="starts with and without these segments")
    parser.add_argument("--slices", type=int, default=41, help="slices of each topic in the part local")
    parser.add_argument("--requests", type=int, default=2000, help="requests of 1 record in a slice")
    options = parser.parse_args()
    lines = list(HEAD)
    works: list[Callable[[argparse.Namespace], Iterator[Row]]] = []
    works += [of_copies] if {"copy", "disk", "reads"} & set(options.parts) else []
    works += [of_many] if "many" in options.parts else []
    works += [of_local] if "local" in options.parts else []
    for work in works:
        for row in work(options):
            lines.append(row.line())
            print(lines[-1], flush=True)
    told = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in vars(options).items() if name != "parts")
    command = f"tiers --parts {' '.join(options.parts)} {told}"
    save("tiers", "Tiered storage", command, lines, f"obstore {version('obstore')}", *NOTES)


if __name__ == "__main__":
    main()
