"""What filter.index.headers saves a view: the broker's CPU time for each record of the source, with and without it.

A topic of closed segments is read through views from the beginning, first without an index, then with it. 1 % of the
records match: everywhere (uniform), or in runs of 2,000 records (clustered); once with 200 records in a batch, and once
with 5 and a fifth of the records. Also measures what making the indexes takes, and their size. Prints a table and saves
it; asserts no times.

    python -m benchmarks.view_index [--records 1000000]
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from benchmarks.delay import create
from benchmarks.ratios import save
from benchmarks.subjects import cpu_seconds, running
from benchmarks.views import CODECS, NOW_MS, put, read
from compat_tests.wire.client import WireClient
from kbroker.protocol.messages.configs import IncrementalAlterConfigsRequest, IncrementalConfig, IncrementalResource
from kbroker.protocol.records import NewRecord, build_batch

RUN: Final = 2_000
LAYOUTS: Final[dict[str, Callable[[int], bool]]] = {
    "uniform": lambda number: number % 100 == 0,
    "clustered": lambda number: number // RUN % 100 == 50,
}
BATCHES: Final = (200, 5)
PATIENCE_S: Final = 120


def batch(first: int, count: int, codec: int, matches: Callable[[int], bool]) -> bytes:
    rng = random.Random(first)
    records: list[NewRecord] = []
    for number in range(first, first + count):
        fill = b"x" * rng.randrange(20, 70)
        value = b'{"id": 1%07d, "amount": %d, "fill": "%s"}' % (number, 1000 + number % 9000, fill)
        records.append((NOW_MS + number, None, value, [("region", b"EU" if matches(number) else b"US")]))
    return build_batch(records, codec=codec)


def index(client: WireClient, topic: str, directory: Path) -> int:
    """Index a topic; return the bytes of the indexes."""
    change = IncrementalResource(2, topic, [IncrementalConfig("filter.index.headers", 0, "region")])
    (answer,) = client.ask(IncrementalAlterConfigsRequest([change]), 1).responses
    assert not answer.error_code, answer
    until = time.monotonic() + PATIENCE_S
    while True:
        files = list(directory.glob(f"{topic}-0/*.headers"))
        if len(files) == len(list(directory.glob(f"{topic}-0/*.log"))) - 1:
            time.sleep(0.5)  # the last file is being written
            return sum(each.stat().st_size for each in files)
        assert time.monotonic() < until
        time.sleep(0.1)


def of_index(client: WireClient, pid: int, directory: Path, count: int) -> Iterator[str]:
    for size in BATCHES:
        count = count if size == BATCHES[0] else count // 5
        for codec, number in CODECS.items():
            for layout, matches in LAYOUTS.items():
                source = f"source-{size}-{codec}-{layout}"
                segment = 1 << (22 if number == 0 else 20)
                create(client, source, {"segment.bytes": str(segment)})
                stored = 0
                for first in range(0, count, size):
                    data = batch(first, size, number, matches)
                    stored += len(data)
                    put(client, source, data)
                create(client, f"{source}-before", {"view.source": source, "view.filter": "header.region = 'EU'"})
                without = read(client, pid, f"{source}-before", count)
                began = cpu_seconds(pid)
                of_files = index(client, source, directory)
                making = (cpu_seconds(pid) - began) * 1e6
                same = "header.region IN ('EU')"  # with the same text, what is known of the other view would be used
                create(client, f"{source}-after", {"view.source": source, "view.filter": same})
                with_index = read(client, pid, f"{source}-after", count)
                yield (
                    f"| {size} | {codec} | {layout} | {without.cpu_us / count:.3f} | {with_index.cpu_us / count:.3f} | "
                    f"{making / count:.3f} | {of_files / stored:.2%} |"
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--records", type=int, default=1_000_000)
    options = parser.parse_args()
    lines = [
        f"{options.records} records of about 110 bytes, of which 1 % match. CPU in us for each record of the source: "
        "to read a view and find its end, without and with the index, and to make the index.",
        "",
        "| records in a batch | codec | matches | without | with index | making it | size, of the log |",
        "|---|---|---|---|---|---|---|",
    ]
    with running("kbroker") as (broker, _), WireClient(broker.bootstrap) as client:
        lines += of_index(client, broker.pid, broker.data_dir, options.records)
    save("view-index", "The index of headers", "view_index", lines)


if __name__ == "__main__":
    main()
