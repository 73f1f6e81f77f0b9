"""`python -m benchmarks.pairs --beside DIR`: two checkouts of kbroker, both running, alternate with slices of work.

`--acls N` compares this checkout with itself, once with an authorizer and N ACLs: the cost of authorization for a
PLAINTEXT client that has the few rights it needs. `--watched` also compares it with itself, once with its metrics
scraped every five seconds and a console open on it: the cost of being watched. `--beside kafka` uses Apache Kafka,
`--beside pure` this checkout without its compiled extension.

Two rounds of `python -m benchmarks` differ by 10 % and more, since each starts new processes and the machine's own
speed drifts, so a difference of 3 % cannot be seen like that. Here both brokers run all the time, the waiting one does
nothing, and every slice of work is compared with the other broker's slice of some seconds later.

The share of the machine that a pair of processes happens to get stays the same: a checkout compared with itself was up
to 10 % faster or slower in fetches of 1 MB, from start to start, while the CPU time per request did not differ. So the
pair is started several times, in alternating order. The output is the median of all slices' ratios and a range that
contains the true ratio (95 %, by resampling the starts, and the slices of each).

Asserts nothing about time. DIR has its environment in DIR/.venv.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks import work
from benchmarks.secured import add_acls, others
from benchmarks.subjects import running
from benchmarks.watchers import Seen, watched
from compat_tests.harness.brokers import BrokerProcess
from kbroker.protocol.compression import CODEC_NAMES
from kbroker.protocol.messages.access import AclCreation
from kbroker.security.authorizer.acls import Operation, PatternType, Permission, ResourceType

RESULTS = Path(__file__).parent / "results"
TOPICS = "cdefghi"
AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",  # so that a client without a name can add the first ACLs
}
OTHERS = ("kafka", "pure")
"""Values of --beside other than a checkout."""
_RESAMPLED = 2000


@dataclass(frozen=True)
class Piece:
    """A slice of work, the figures that are compared, and whether a larger figure is better."""

    name: str
    run: Callable[[BrokerProcess], work.Figures]
    figures: dict[str, bool]


def _batch(broker: BrokerProcess, topic: str, requests: int, **options: int) -> work.Figures:
    """Produce batches of one kind, 5 in flight, or 32 with one record each; adds the broker's CPU time for each."""
    in_flight = 32 if options["records"] == 1 else 5
    found = work.raw(broker, "produce", topic, in_flight=in_flight, requests=requests, **options)
    return {**found, "cpu_us_a_request": found["cpu_s_per_gb"] * found["gb"] / requests * 1e6}


FETCHED = {"mb_per_s": True, "cpu_s_per_gb": False}
PIECES = [
    Piece(
        "raw produce 1 record, 1 in flight",
        lambda b: work.raw(b, "produce", "d", records=1, in_flight=1, requests=4000),
        {"p50_us": False, "p99_us": False},
    ),
    Piece(
        "raw produce 1 record, 32 in flight",
        lambda b: work.raw(b, "produce", "c", records=1, in_flight=32, requests=40_000),
        {"requests_per_s": True},
    ),
    *(
        Piece(
            f"batch of {name}, {codec}",
            partial(
                _batch,
                topic="i",
                codec=CODEC_NAMES.index(codec),
                records=records,
                size=size,
                largest=largest,
                requests=requests,
            ),
            {"requests_per_s": True, "cpu_us_a_request": False},
        )
        for name, records, size, largest, requests in (
            ("1000 x 100 B", 1000, 100, 0, 800),
            ("1000 x 20 to 500 B", 1000, 20, 500, 400),
            ("100 x 1 kB", 100, 1000, 0, 800),
            ("1 x 100 B", 1, 100, 0, 20_000),
        )
        for codec in ("none", "lz4", "zstd")
    ),
    Piece("raw fetch 1 MB", lambda b: work.raw(b, "fetch", "e", requests=2000, bytes=1 << 20), FETCHED),
    Piece("raw fetch 256 kB", lambda b: work.raw(b, "fetch", "e", requests=8000, bytes=1 << 18), FETCHED),
    Piece(
        "confluent-kafka produce, 100 B",
        lambda b: work.confluent_produce(b, "f", 1_000_000, 100),
        {"messages_per_s": True, "cpu_s_per_gb": False},
    ),
    Piece(
        "confluent-kafka consume, 100 B",
        lambda b: work.confluent_consume(b, "f", 1_000_000, 100),
        {"messages_per_s": True},
    ),
    Piece("Java perf producer, 1 kB", lambda b: work.java_perf(b, "producer", "g", 300_000, 1000), {"mb_per_s": True}),
    Piece("Java perf consumer, 1 kB", lambda b: work.java_perf(b, "consumer", "g", 300_000, 1000), {"mb_per_s": True}),
    Piece(
        "produce to consume",
        lambda b: work.latency(b, "h", 4000),
        {"p50_us": False, "p99_us": False, "p999_us": False},
    ),
]


def spread(starts: Sequence[Sequence[float]], seed: int = 1) -> tuple[float, float, float]:
    """Return the median of all starts' ratios, and the range of the middle 95 % of the resampled medians."""
    chance = random.Random(seed)
    logs = [[math.log(ratio) for ratio in ratios] for ratios in starts]

    def draw() -> float:
        chosen = (chance.choices(start, k=len(start)) for start in chance.choices(logs, k=len(logs)))
        return statistics.median(itertools.chain.from_iterable(chosen))

    drawn = sorted(draw() for _ in range(_RESAMPLED))
    low, high = drawn[int(_RESAMPLED * 0.025)], drawn[int(_RESAMPLED * 0.975)]
    return math.exp(statistics.median(itertools.chain.from_iterable(logs))), math.exp(low), math.exp(high)


@contextmanager
def both(
    beside: Path | None, acls: int, settings: Mapping[str, str], swapped: bool, looked_at: bool
) -> Iterator[tuple[BrokerProcess, BrokerProcess]]:
    """Yield the measured broker and the one that it is compared with; `swapped` says that the second starts first."""
    name = "seen" if looked_at else "kbroker"
    other = ("kbroker", beside) if beside is None or str(beside) not in OTHERS else (str(beside), None)
    settings = {**settings, **(AUTHORIZER if acls else {})}
    with ExitStack() as up:
        if swapped:
            theirs = up.enter_context(running(*other))[0]
            ours = up.enter_context(running(name, settings=settings))[0]
        else:
            ours = up.enter_context(running(name, settings=settings))[0]
            theirs = up.enter_context(running(*other))[0]
        if acls:
            add_acls(ours.bootstrap, rights(acls))
        if isinstance(ours, Seen):
            up.enter_context(watched(ours))
        yield ours, theirs


def rights(count: int) -> list[AclCreation]:
    """Return the given number of ACLs, among them exactly the rights that this work needs."""
    everybody = ("User:ANONYMOUS", "*")
    own = [
        AclCreation(ResourceType.TOPIC, name, PatternType.LITERAL, *everybody, operation, Permission.ALLOW)
        for name in TOPICS
        for operation in (Operation.READ, Operation.WRITE)
    ]
    own += [
        AclCreation(kind, name, pattern, *everybody, operation, Permission.ALLOW)
        for kind, name, pattern, operation in (
            (ResourceType.CLUSTER, "kafka-cluster", PatternType.LITERAL, Operation.ALTER),
            (ResourceType.CLUSTER, "kafka-cluster", PatternType.LITERAL, Operation.CREATE),
            (ResourceType.CLUSTER, "kafka-cluster", PatternType.LITERAL, Operation.IDEMPOTENT_WRITE),
            (ResourceType.GROUP, "bench", PatternType.PREFIXED, Operation.READ),
            (ResourceType.GROUP, "latency", PatternType.LITERAL, Operation.READ),
            (ResourceType.GROUP, "perf", PatternType.PREFIXED, Operation.READ),
        )
    ]
    return own + others(count - len(own))


Pairs = list[tuple[work.Figures, work.Figures]]


def measure(
    beside: Path | None, acls: int, settings: Mapping[str, str], starts: int, slices: int, only: str, looked_at: bool
) -> list[list[str]]:
    """Run every piece in slices on both, in each start of the two; return the table's lines."""
    pieces = [piece for piece in PIECES if any(word in piece.name for word in only.split(","))]
    found: dict[str, list[Pairs]] = {piece.name: [] for piece in pieces}
    for start in range(starts):
        with both(beside, acls, settings, swapped=start % 2 == 1, looked_at=looked_at) as sides:
            for side in sides:
                work.create(side.bootstrap, *TOPICS)
                work.raw(side, "produce", "e", records=100, size=1000, requests=1000)
            for piece in pieces:
                found[piece.name].append(_slices(piece, sides, slices))
                for figure, more in piece.figures.items():
                    print("  ".join(_line(piece.name, figure, more, found[piece.name][-1:])), flush=True)
    return [
        _line(piece.name, figure, more, found[piece.name]) for piece in pieces for figure, more in piece.figures.items()
    ]


def _slices(piece: Piece, sides: tuple[BrokerProcess, BrokerProcess], slices: int) -> Pairs:
    pairs = []
    for number in range(slices + 1):
        if number % 2:
            theirs, ours = piece.run(sides[1]), piece.run(sides[0])
        else:
            ours, theirs = piece.run(sides[0]), piece.run(sides[1])
        if number:  # the first slice of each warms it up
            pairs.append((ours, theirs))
    return pairs


def _line(name: str, figure: str, more: bool, starts: Sequence[Pairs]) -> list[str]:
    pairs = [[(a[figure], b[figure]) for a, b in start if a[figure] > 0 and b[figure] > 0] for start in starts]
    ours, theirs = zip(*itertools.chain.from_iterable(pairs), strict=True)
    middle, low, high = spread([[a / b for a, b in start] for start in pairs])
    return [
        name,
        figure,
        f"{statistics.median(ours):,.2f}",
        f"{statistics.median(theirs):,.2f}",
        f"{middle:.3f}x",
        f"{low:.3f} to {high:.3f}",
        "more" if more else "less",
    ]


HEADINGS = ["work", "figure", "kbroker", "beside", "ratio", "95 %", "better is"]


def save(lines: list[list[str]], told: str) -> Path:
    stamp = time.strftime("%Y-%m-%d-%H%M%S", time.gmtime())
    path = RESULTS / f"{stamp}-pairs.md"
    text = [
        f"# Two brokers in turns, {stamp} UTC",
        "",
        f"- command: `python -m benchmarks.pairs {told}`; both up at once",
        f"- machine: {os.cpu_count()} cores, {platform.machine()}, Linux {platform.release()}, clients on it too",
        f"- versions: Python {platform.python_version()}",
        "",
        "| " + " | ".join(HEADINGS) + " |",
        "|" + "---|" * len(HEADINGS),
        *("| " + " | ".join(line) + " |" for line in lines),
        "",
    ]
    path.write_text("\n".join(text))
    return path


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pairs", description=__doc__)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--beside", type=Path, metavar="DIR", help="another checkout, kafka or pure")
    which.add_argument("--watched", action="store_true", help="without metrics and a console")
    which.add_argument("--acls", type=int, default=0, metavar="N", help="without an authorizer and N ACLs")
    parser.add_argument("--starts", type=int, default=4, help="how often the two are started")
    parser.add_argument("--slices", type=int, default=5, help="of each piece of work, in each start")
    parser.add_argument("--only", default="", help="pieces whose names contain one of these, divided by commas")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of the measured one, not of the other",
    )
    args = parser.parse_args()
    settings = dict(each.split("=", 1) for each in args.set)
    lines = measure(args.beside, args.acls, settings, args.starts, args.slices, args.only, args.watched)
    beside = args.beside if str(args.beside) in OTHERS else "CHECKOUT"  # without its path on this machine
    which_told = f"--acls {args.acls}" if args.acls else "--watched" if args.watched else f"--beside {beside}"
    print("all starts:")
    for line in lines:
        print("  ".join(line))
    which_told += "".join(f" --set {each}" for each in args.set)
    told = f"{which_told} --starts {args.starts} --slices {args.slices} --only {args.only!r}"
    print(f"saved {save(lines, told)}", file=sys.stderr)


if __name__ == "__main__":
    main()
