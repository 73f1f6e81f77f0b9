"""A log of random batches, a view of it, and a naive filter of the whole log to compare the view's answers with."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from kbroker.clock import SystemClock
from kbroker.filters.filtering import Filter, compile_filter
from kbroker.log.append_info import COORDINATOR
from kbroker.log.log_config import LogConfig
from kbroker.long_work import FewAtOnce, in_slices
from kbroker.partition import Partition
from kbroker.protocol.records import (
    BatchHeader,
    NewRecord,
    Record,
    build_batch,
    build_marker,
    compute_crc,
    iter_batches,
    read_marker,
    read_records,
)
from kbroker.views.header_indexes import HeaderIndexes
from kbroker.views.scanned import Selection
from kbroker.views.shared import Shared
from kbroker.views.source_scan import SourceScan
from tests.log.builders import NOW, open_log
from tests.log.cleaner.context import clean

FILTERS = (
    "header.region = 'EU'", "A || B", "value.n > 5", "key LIKE 'k1%'", "header.region IS NULL", "header.none = 'x'",
    "*", "header.region IN ('US', 'CN') AND value.n <= 3", "value.n / 0 > 1",
)  # fmt: skip
SMALL = LogConfig(
    filter_index_headers=("region", "none"),
    segment_bytes=3000,
    file_delete_delay_ms=0,
    cleanup_policy=("compact",),
    index_interval_bytes=300,
)


class Stored(NamedTuple):
    """A batch of the log, and the offsets of its records that match."""

    header: BatchHeader
    batch: bytes
    matches: list[int]


class World:
    """A partition that leads, with a log of random batches."""

    def __init__(self, directory: Path, seed: int, config: LogConfig = SMALL) -> None:
        self.rng = random.Random(seed)
        self.log = open_log(directory / "topic-0", config=config)
        self.partition = Partition("topic", uuid.uuid4().bytes, 0, self.log)
        self.partition.leading, self.partition.leader_epoch, self.partition.alone = True, 0, True
        self.indexes = HeaderIndexes(SystemClock(), lambda: [self.partition])
        self.shared = Shared(SystemClock(), FewAtOnce(4), lambda _partition: True, self.indexes)
        self.scan = SourceScan(self.partition, self.shared)
        self.is_compacted = False
        """Whether compaction may have removed the last match."""
        self._matches: dict[str, dict[tuple[int, int], list[int]]] = {}
        self._open: dict[int, int] = {}
        self._sequences: dict[int, int] = {}

    def selection(self, text: str) -> Selection:
        return self.scan.use(compile_filter(text))

    # -- the log

    def records(self) -> list[NewRecord]:
        rng = self.rng
        made: list[NewRecord] = []
        for _ in range(rng.choice((1, 1, 3, 12))):
            headers: list[tuple[str, bytes | None]] = []
            if rng.random() < 0.7:
                headers.append(("region", rng.choice((b"EU", b"US", b"CN", b"EUR", None, b"x" * 70))))
            if rng.random() < 0.4:
                headers.append(("tag", rng.choice((b"A", b"B", b"C"))))
            value = rng.choice((b'{"n": %d}' % rng.randrange(10), b"no json", None, b"EU" * rng.randrange(200)))
            made.append((NOW + rng.randrange(1000), b"k%d" % rng.randrange(30), value, headers))
        return made

    def put(self) -> None:
        """Append a batch, of a transaction or of none; or end a transaction."""
        rng, kind = self.rng, self.rng.random()
        producer = rng.randrange(1, 4)
        codec = rng.choice((0, 0, 1, 2, 3, 4))
        if kind < 0.6:
            self._append(build_batch(self.records(), codec=codec))
        elif kind < 0.85:
            records = self.records()
            sequence = self._sequences.get(producer, 0)
            batch = build_batch(
                records, codec=codec, producer_id=producer, producer_epoch=0, base_sequence=sequence, transactional=True
            )
            self._append(batch)
            self._sequences[producer] = sequence + len(records)
            self._open[producer] = 1
        elif producer in self._open:
            del self._open[producer]
            marker = build_marker(
                producer_id=producer, producer_epoch=0, commit=rng.random() < 0.5, coordinator_epoch=0, timestamp=NOW
            )
            self.log.append_as_leader(marker, 0, NOW, origin=COORDINATOR)
        self._commit()

    def _append(self, batch: bytes) -> None:
        self.log.append_as_leader(bytearray(batch), 0, NOW)

    def _commit(self) -> None:
        log = self.log
        log.set_high_watermark(log.log_end_offset if self.rng.random() < 0.8 else log.high_watermark)
        self.partition.poke()

    def compact(self) -> None:
        if len(self.log.segments) > 2 and not self._open:
            self.log.set_high_watermark(self.log.log_end_offset)
            self.log.roll(NOW)
            clean(self.log)
            self.is_compacted = True

    async def index(self) -> None:
        """Make the missing indexes of headers."""
        await in_slices(self.indexes.look())

    def delete_some(self) -> None:
        log = self.log
        log.advance_log_start(self.rng.randint(log.log_start_offset, log.high_watermark), NOW)

    # -- the naive filter

    def stored(self, wanted: Filter) -> Iterator[Stored]:
        known = self._matches.setdefault(wanted.text, {})
        for segment in self.log.segments:
            data = Path(segment.path()).read_bytes()
            for position, header in iter_batches(data):
                batch = data[position : position + header.size]
                matches: list[int] = []
                if not header.is_control:
                    key = header.base_offset, header.crc
                    if key not in known:
                        found = read_records(batch, max_bytes=1 << 24)
                        known[key] = [record.offset for record in found if wanted(record, 0)]
                    matches = known[key]
                yield Stored(header, batch, matches)

    def bound(self, *, committed: bool) -> int:
        return self.log.last_stable_offset if committed else self.log.high_watermark

    def last_match(self, wanted: Filter, bound: int) -> int:
        every = [match for each in self.stored(wanted) for match in each.matches if each.header.last_offset < bound]
        return max(every, default=-1)

    def stamps(self, wanted: Filter, bound: int) -> list[tuple[int, int]]:
        """Return the offsets and timestamps of all matches."""
        return [
            (record.offset, record.timestamp)
            for each in self.stored(wanted)
            if each.header.last_offset < bound and each.matches
            for record in read_records(each.batch, max_bytes=1 << 24)
            if record.offset in each.matches
        ]

    async def check_read(self, selection: Selection, start: int, limit: int, *, committed: bool) -> tuple[bytes, int]:
        """Read from an offset, and compare the answer with the naive filter. Return it, and the offset behind it."""
        bound, wanted = self.bound(committed=committed), selection.filter
        known = list(self.stored(wanted))
        reading = self.scan.reader.read(selection, start, limit, bound, min_one=True, has_time=lambda: True)
        found = await in_slices(reading)
        expected = [
            each for each in known if each.matches and each.matches[-1] >= start and each.header.last_offset < bound
        ]
        got: list[Stored] = []
        markers: list[int] = []
        size = 0
        for position, header in iter_batches(found.records):
            batch = found.records[position : position + header.size]
            assert compute_crc(batch) == header.crc
            if header.is_control:
                markers.append(header.base_offset)
                size += len(batch)
                continue
            got.append(Stored(header, batch, [each.offset for each in read_records(batch, max_bytes=1 << 24)]))
        assert sum(len(each.batch) for each in got) + size == len(found.records)
        assert len(got) <= len(expected)
        for mine, source in zip(got, expected, strict=False):
            _is_compacted(mine, source)
        if len(got) < len(expected):
            assert found.is_full
            assert got
            assert len(found.records) + len(expected[len(got)].batch) + 100 * len(known) > limit
        if len(got) > 1:
            assert len(found.records) <= limit
        aborts = [each.header.base_offset for each in known if _aborts(each) and each.header.base_offset >= start]
        end = got[-1].header.last_offset + 1 if got else start
        assert markers == [offset for offset in aborts if offset < end and offset in markers]
        # After compaction, a marker may be left whose transaction has no records.
        needed = {entry.last_offset for segment in self.log.segments for entry in segment.txns.entries}
        assert needed.intersection(offset for offset in aborts if offset < end) <= set(markers)
        assert found.end == end
        return found.records, end

    def delivered(self, records: bytes, start: int, end: int) -> list[int]:
        """Return the offsets that a client with read_committed delivers."""
        aborted = sorted(self.log.aborted_transactions(start, end), key=lambda each: each[1])
        gone: set[int] = set()
        offsets: list[int] = []
        for position, header in iter_batches(records):
            batch = records[position : position + header.size]
            while aborted and aborted[0][1] <= header.last_offset:
                gone.add(aborted.pop(0)[0])
            if header.is_control:
                gone.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in gone):
                offsets += [each.offset for each in read_records(batch, max_bytes=1 << 24) if each.offset >= start]
        return offsets

    def committed_matches(self, wanted: Filter, start: int) -> list[int]:
        """Return the offsets of matches from `start` on whose transactions, if any, were committed."""
        log, bound = self.log, self.log.last_stable_offset
        ranges = [
            (entry.producer_id, entry.first_offset, entry.last_offset)
            for segment in log.segments
            for entry in segment.txns.entries
        ]
        offsets: list[int] = []
        for each in self.stored(wanted):
            header = each.header
            if header.last_offset >= bound:
                continue
            if header.is_transactional and any(
                producer == header.producer_id and first <= header.base_offset <= last
                for producer, first, last in ranges
            ):
                continue
            offsets += [match for match in each.matches if match >= start]
        return offsets

    async def ends(self, selection: Selection) -> tuple[int, int]:
        selection = self.scan.use(selection.filter)
        assert await self.scan.ends(selection, asyncio.get_running_loop().time() + 30)
        start = self.log.log_start_offset
        return selection.high_watermark(start), selection.last_stable_offset(self.log.last_stable_offset, start)


def _aborts(each: Stored) -> bool:
    marker = read_marker(each.batch) if each.header.is_control else None
    return marker is not None and not marker.commit


def _is_compacted(mine: Stored, source: Stored) -> None:
    """A filtered batch is what compaction would leave."""
    here, there = mine.header, source.header
    assert mine.matches == source.matches
    for name in (
        "base_offset", "last_offset_delta", "leader_epoch", "attributes", "base_timestamp", "producer_id",
        "producer_epoch", "base_sequence",
    ):  # fmt: skip
        assert getattr(here, name) == getattr(there, name), name
    kept = [each for each in read_records(source.batch, max_bytes=1 << 24) if each.offset in source.matches]
    assert list(read_records(mine.batch, max_bytes=1 << 24)) == kept
    assert here.max_timestamp == max(each.timestamp for each in kept)


def records_of(batches: bytes) -> list[Record]:
    """Return the records of data batches."""
    found: list[Record] = []
    for position, header in iter_batches(batches):
        if not header.is_control:
            found += read_records(batches[position : position + header.size], max_bytes=1 << 24)
    return found
