"""Filtered views: the bytes that a client gets, the broker's CPU time for each record of the source, and many views.

One part reads a topic and views of it from the beginning: 1 % of the records match. The other appends to a topic while
the reader of one view waits, and then while the readers of 1,000 views wait; only one of them has matches. Prints a
table and saves it; asserts no times.

    python -m benchmarks.views [--records 1000000] [--views 1000]
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final, NamedTuple

from benchmarks.delay import create, fetch_request
from benchmarks.ratios import save
from benchmarks.subjects import cpu_seconds, running
from compat_tests.wire.client import WireClient
from kbroker.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kbroker.protocol.records import NewRecord, build_batch, iter_batches

BATCH: Final = 200
NOW_MS: Final = int(time.time() * 1000)
MATCHING: Final = 100
"""One record in so many matches."""
MOST: Final = 1 << 20
APPENDS: Final = 1500
CODECS: Final = {"none": 0, "lz4": 3, "zstd": 4}
FILTERS: Final = {
    "header": "header.region = 'EU'",
    "header, nothing matches": "header.region = 'XX'",
    "two conditions": "header.region = 'EU' AND value.amount >= 0",
    "JSON alone": "value.rare = TRUE",
}


class Reading(NamedTuple):
    """What reading a topic from its beginning took."""

    records: int
    size: int
    cpu_us: float


def batch(first: int, codec: int, matching: int = MATCHING, sized: bool = True) -> bytes:
    """Return a batch of JSON records of about 100 bytes, of different sizes unless `sized` is False."""
    rng = random.Random(first)
    records: list[NewRecord] = []
    for number in range(first, first + BATCH):
        matches = number % matching == 0
        rare = b', "rare": true' if matches else b""
        fill = b"x" * (rng.randrange(20, 70) if sized else 45)
        value = b'{"id": 1%07d, "amount": %d%s, "fill": "%s"}' % (number, 1000 + number % 9000, rare, fill)
        records.append((NOW_MS + number, None, value, [("region", b"EU" if matches else b"US")]))
    return build_batch(records, codec=codec)


def put(client: WireClient, topic: str, data: bytes) -> None:
    request = ProduceRequest(None, 1, 20_000, [TopicProduceData(topic, partition_data=[PartitionProduceData(0, data)])])
    (answer,) = client.ask(request, 9).responses[0].partition_responses
    assert not answer.error_code, answer


def read(client: WireClient, pid: int, topic: str, end: int) -> Reading:
    """Read a topic, until the answer is empty."""
    before, offset, records, size = cpu_seconds(pid), 0, 0, 0
    while offset < end:
        (data,) = client.ask(fetch_request(topic, offset, MOST, 2000), 12).responses[0].partitions
        assert not data.error_code, data
        if not data.records:
            break
        size += len(data.records)
        for _, header in iter_batches(memoryview(data.records)):
            records += header.record_count
            offset = header.last_offset + 1
    return Reading(records, size, (cpu_seconds(pid) - before) * 1e6)


def of_reading(client: WireClient, pid: int, count: int) -> Iterator[str]:
    for codec, number in CODECS.items():
        source = f"source-{codec}"
        create(client, source, {"segment.bytes": str(16 << 20)})
        for first in range(0, count, BATCH):
            put(client, source, batch(first, number))
        plain = read(client, pid, source, count)
        yield (f"| {codec} | no view | {plain.records} | {plain.size / 1e6:.2f} | 1 | {plain.cpu_us / count:.3f} | |")
        for place, (name, text) in enumerate(FILTERS.items()):
            view = f"view-{codec}-{place}"
            create(client, view, {"view.source": source, "view.filter": text})
            first_read = read(client, pid, view, count)
            again = read(client, pid, view, count)
            ratio = plain.size / max(first_read.size, 1)
            yield (
                f"| {codec} | {name} | {first_read.records} | {first_read.size / 1e6:.3f} | {ratio:.0f} | "
                f"{first_read.cpu_us / count:.3f} | {again.cpu_us / count:.3f} |"
            )


def of_waiting(client: WireClient, address: str, pid: int, views: int) -> float:
    """Return the broker's CPU time in us for an appended record, while the readers of some views wait."""
    source = f"live-{views}"
    create(client, source, {})
    put(client, source, batch(0, 0))
    with ExitStack() as open_ones:
        readers = []
        for number in range(views):
            name = f"{source}-{number}"
            text = "header.region = 'EU'" if number == 0 else f"header.region = 'C{number}'"
            create(client, name, {"view.source": source, "view.filter": text})
            reader = open_ones.enter_context(WireClient(address))
            readers.append((reader, name))
        waiting = fetch_request(readers[0][1], BATCH, MOST, 60_000)
        for reader, name in readers[1:]:
            reader.start(fetch_request(name, BATCH, MOST, 300_000), 12)
        first = readers[0][0]
        first.start(waiting, 12)
        put(client, source, batch(BATCH, 0))
        first.finish()
        before, offset = cpu_seconds(pid), 2 * BATCH
        for number in range(APPENDS):
            first.start(fetch_request(readers[0][1], offset, MOST, 60_000), 12)
            put(client, source, batch((2 + number) * BATCH, 0))
            (data,) = first.finish().responses[0].partitions
            assert data.records
            offset += BATCH
        return (cpu_seconds(pid) - before) / (APPENDS * BATCH) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--views", type=int, default=1000)
    options = parser.parse_args()
    lines = [
        f"{options.records} records of about 110 bytes, {BATCH} in a batch; 1 in {MATCHING} matches. CPU in us for "
        "each record of the source; the second read finds filtered batches in memory.",
        "",
        "| codec | filter | records read | MB to the client | times fewer | CPU, first read | CPU, second read |",
        "|---|---|---|---|---|---|---|",
    ]
    with running("kbroker") as (broker, _), WireClient(broker.bootstrap) as client:
        lines += of_reading(client, broker.pid, options.records)
        one = of_waiting(client, broker.bootstrap, broker.pid, 1)
        many = of_waiting(client, broker.bootstrap, broker.pid, options.views)
    lines += [
        "",
        f"Append, scan and delivery while readers wait, us of CPU for each appended record: 1 view {one:.3f}, "
        f"{options.views} views {many:.3f}, ratio {many / one:.2f}",
    ]
    save("views", "Filtered views", "views", lines)


if __name__ == "__main__":
    main()
