"""The first pass of a round, which reads backwards, against a model that reads forwards."""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.log.cleaner.batch_filter import read_body
from kbroker.log.cleaner.dirty_part import read_dirty_part
from kbroker.log.cleaner.job_format import CleaningJob
from kbroker.log.cleaner.offset_map import OffsetMap
from kbroker.log.cleaner.reading import SegmentReader
from kbroker.log.record_runs import read_runs
from kbroker.log.segment.transaction_index import AbortedTxn
from kbroker.protocol.errors import Malformed
from kbroker.protocol.records import build_marker, parse_header
from tests.log.builders import NOW
from tests.log.cleaner.segment_files import batch_at, opened, write_segment
from tests.tries import tries

PLENTY = 1 << 24


@dataclass
class Part:
    """A batch of the log, and what the model knows about it."""

    data: bytes
    keys: Sequence[bytes | None] = ()  # empty if it does not count: control batches, aborted batches

    @property
    def base(self) -> int:
        return parse_header(self.data).base_offset

    @property
    def end(self) -> int:
        return parse_header(self.data).last_offset + 1


@dataclass
class History:
    """A log that is written step by step."""

    segments: list[list[Part]] = field(default_factory=lambda: [[]])
    bases: list[int] = field(default_factory=lambda: [0])
    aborted: list[AbortedTxn] = field(default_factory=list)
    next_offset: int = 0
    open: dict[int, list[Part]] = field(default_factory=dict)

    def produce(self, keys: Sequence[bytes | None], producer: int = -1, size: int = 1, codec: int = 0) -> None:
        fields: dict[str, int | bool] = {"codec": codec}
        if producer >= 0:
            fields |= {"producer_id": producer, "producer_epoch": 0, "base_sequence": 0, "transactional": producer > 0}
        part = Part(batch_at(self.next_offset, keys, b"v" * size, **fields), keys)
        if producer > 0:
            self.open.setdefault(producer, []).append(part)
        self._append(part, len(keys))

    def end(self, producer: int, *, commit: bool) -> None:
        parts = self.open.pop(producer, [])
        if parts and not commit:
            self.aborted.append(AbortedTxn(producer, parts[0].base, self.next_offset, parts[0].base))
            for part in parts:
                part.keys = ()
        marker = bytearray(
            build_marker(producer_id=producer, producer_epoch=0, commit=commit, coordinator_epoch=0, timestamp=NOW)
        )
        struct.pack_into(">q", marker, 0, self.next_offset)
        self._append(Part(bytes(marker)), 1)

    def roll(self) -> None:
        if self.segments[-1]:
            self.segments.append([])
            self.bases.append(self.next_offset)

    def _append(self, part: Part, count: int) -> None:
        self.segments[-1].append(part)
        self.next_offset += count

    def parts(self) -> list[Part]:
        return [part for parts in self.segments for part in parts]

    def job(self, directory: Path, first_dirty: int, map_bytes: int, *, with_index: bool = True) -> CleaningJob:
        """Write the log; returns the job that cleans all of it."""
        segments = []
        for base, parts in zip(self.bases, self.segments, strict=True):
            positions, size = [], 0
            for part in parts:
                positions.append(size)
                size += len(part.data)
            segments.append(
                write_segment(directory, base, [part.data for part in parts], positions if with_index else None)
            )
        return CleaningJob(
            directory=str(directory), segments=segments, first_dirty=first_dirty, upper=self.next_offset,
            aborted=self.aborted, producers=[], now_ms=NOW, delete_retention_ms=0, segment_bytes=1 << 20,
            index_bytes=1 << 20, index_interval=4096, map_bytes=map_bytes, io_bytes=1 << 16, max_message_bytes=1 << 20,
        )  # fmt: skip


def first_pass(job: CleaningJob) -> OffsetMap:
    with opened(Path(job.directory)) as fd:
        return read_dirty_part(job, SegmentReader(fd, job.io_bytes, lambda _size: None))


def kept(offsets: OffsetMap, part: Part) -> list[int]:
    """Return the offsets of a batch's records that are kept according to the table."""
    header = parse_header(part.data)
    if offsets.is_superseded(header.base_offset):
        return []
    data = read_body(memoryview(part.data), header, 1 << 20)
    flags = b"".join(offsets.keep(data, read_runs(data, header.record_count), header.base_offset))
    return [part.base + index for index, flag in enumerate(flags) if flag]


def ends_of_rounds(history: History, job: CleaningJob) -> list[int]:
    """Process the dirty part in as many rounds as necessary; return the end of each."""
    ends = []
    while job.first_dirty < job.upper:
        offsets = first_pass(job)
        assert job.first_dirty < offsets.end <= job.upper
        check(history, offsets)
        ends.append(offsets.end)
        job = replace(job, first_dirty=offsets.end)
    return ends


def check(history: History, offsets: OffsetMap) -> None:
    """Compare the table's verdict on every batch below its end with that of a walk from the start."""
    parts = [part for part in history.parts() if part.base < offsets.end]
    assert all(part.end <= offsets.end for part in parts)
    records = [(offset, key) for part in parts for offset, key in enumerate(part.keys, part.base) if key is not None]
    last = {key: offset for offset, key in records if offset >= offsets.start}
    for part in parts:
        if part.keys:
            inside = [(offset, key) for offset, key in enumerate(part.keys, part.base) if key is not None]
            expected = [offset for offset, key in inside if last.get(key, offset) == offset]
            assert kept(offsets, part) == expected


keys = st.none() | st.integers(0, 40).map(lambda n: b"k" * (n % 4) + b"%d" % n)
batches = st.lists(keys, min_size=1, max_size=6) | st.tuples(keys, st.integers(1, 60)).map(
    lambda one: [one[0]] * one[1]
)
produce = st.tuples(
    st.just("produce"), batches, st.sampled_from([-1, -1, 0, 1, 2]), st.sampled_from([1, 1, 900, 20_000, 80_000]),
    st.integers(0, 4),
)  # fmt: skip
unique = st.tuples(st.just("unique"), st.integers(1, 200))
ending = st.tuples(st.just("end"), st.sampled_from([1, 2]), st.booleans())
steps = st.lists(produce | produce | unique | ending | st.just(("roll",)), min_size=1, max_size=25)


def written(steps: Sequence[tuple[Any, ...]]) -> History:
    history, made = History(), 0
    for kind, *arguments in [*steps, ("end", 1, False), ("end", 2, True)]:
        if kind == "produce":
            record_keys, producer, size, codec = arguments
            history.produce(record_keys, producer, size // len(record_keys), codec)
        elif kind == "unique":
            history.produce([b"unique-%d" % (made + index) for index in range(arguments[0])])
            made += arguments[0]
        elif kind == "end":
            history.end(arguments[0], commit=arguments[1])
        else:
            history.roll()
    return history


@settings(max_examples=tries(200))
@given(steps, st.integers(0, 10_000), st.sampled_from([1, 600, 3000, 20_000, PLENTY]), st.booleans())
def test_any_log_in_as_many_rounds_as_it_takes(
    steps: list[tuple[Any, ...]], start: int, map_bytes: int, with_index: bool
) -> None:
    history = written(steps)
    with tempfile.TemporaryDirectory() as name:
        job = history.job(Path(name), start % (history.next_offset + 1), map_bytes, with_index=with_index)
        ends = ends_of_rounds(history, job)
        assert map_bytes != PLENTY or len(ends) <= 1


def test_a_table_that_gets_full_takes_the_front_of_the_dirty_part(tmp_path: Path) -> None:
    """Most of the table's capacity is used: at least 1000 keys of 100 bytes in each round, in 256 KiB."""
    history = History()
    for batch in range(500):
        history.produce([b"%0100d" % (batch * 10 + index) for index in range(10)])
        if batch % 50 == 49:
            history.roll()
    job = history.job(tmp_path, 7, 1 << 18)
    ends = ends_of_rounds(history, job)
    assert len(ends) <= 6
    assert ends[0] >= 1000


def test_few_tries_where_the_front_has_more_keys_than_the_end(tmp_path: Path) -> None:
    """The number of batches that fits at the end is repeatedly far too large at the front."""
    history = History()
    for batch in range(60):
        history.produce([b"%0100d" % (batch * 10 + index) for index in range(10)])
    for _ in range(2000):
        history.produce([b"same"] * 10)
    job = history.job(tmp_path, 0, 1 << 16)
    size = sum(size for _, size in job.segments)
    rounds = 0
    while job.first_dirty < job.upper:
        with opened(tmp_path) as fd:
            reader = SegmentReader(fd, job.io_bytes, lambda _size: None)
            offsets = read_dirty_part(job, reader)
        check(history, offsets)
        # Each attempt reads the segment from its end, whatever part it is to cover.
        assert reader.bytes_read < 20 * size
        job = replace(job, first_dirty=offsets.end)
        rounds += 1
    assert rounds <= 5


def test_one_batch_larger_than_the_table_is_taken_alone(tmp_path: Path) -> None:
    history = History()
    for batch in range(3):
        history.produce([b"%d" % (batch * 1000 + index) for index in range(1000)])
    job = history.job(tmp_path, 0, 100)
    ends = ends_of_rounds(history, job)
    assert ends == [1000, 2000, 3000]


@pytest.mark.parametrize("number", [0, 1, 250, 498, 499])
@pytest.mark.parametrize("at", [20, 70])
def test_damage_in_any_batch_is_found(tmp_path: Path, number: int, at: int) -> None:
    history = History()
    for batch in range(500):
        history.produce([b"key-%d" % (batch % 7)], size=400)
    job = history.job(tmp_path, 0, PLENTY)
    path = tmp_path / f"{0:020d}.log"
    content = bytearray(path.read_bytes())
    content[number * (len(content) // 500) + at] ^= 1
    path.write_bytes(content)
    with pytest.raises(Malformed, match="CRC"):
        first_pass(job)


@pytest.mark.parametrize("shift", [1, 61, 200])
def test_a_damaged_index_does_no_harm(tmp_path: Path, shift: int) -> None:
    history = History()
    for batch in range(500):
        history.produce([b"key-%d" % (batch % 7)], size=400)
    job = history.job(tmp_path, 0, PLENTY)
    path = tmp_path / f"{0:020d}.index"
    entries = [position + shift for _, position in struct.iter_unpack(">II", path.read_bytes())]
    path.write_bytes(b"".join(struct.pack(">II", 0, position) for position in entries))
    offsets = first_pass(job)
    assert offsets.end == 500
    check(history, offsets)


def test_what_lies_before_the_dirty_part_is_not_in_the_table(tmp_path: Path) -> None:
    history = History()
    for batch in range(40):
        history.produce([b"a", b"b", b"only-%d" % batch], size=3000)
    job = history.job(tmp_path, 61, PLENTY)  # in the middle of a batch, of a segment
    offsets = first_pass(job)
    check(history, offsets)
    assert kept(offsets, history.parts()[19]) == [59]
    assert kept(offsets, history.parts()[20]) == [62]


@pytest.mark.parametrize("gap", [0, 100_000])
def test_offsets_that_are_missing_cost_no_rounds(tmp_path: Path, gap: int) -> None:
    """A log whose first offsets are gone is cleaned from offset 0, as after the checkpoint was lost."""
    history = History(next_offset=gap)
    for batch in range(300):
        history.produce([b"k%08d" % (batch * 10 + index) for index in range(10)])
    job = history.job(tmp_path, 0, 11_200)
    assert len(ends_of_rounds(history, job)) <= 36  # a forward walk would take 30


def test_a_front_that_repeats_its_keys_is_taken_in_few_rounds(tmp_path: Path) -> None:
    """At the end, where all keys differ, little fits; at the front the same amount leaves the table nearly empty."""
    history = History()
    for batch in range(240):
        history.produce([b"k%08d" % (index % 20) for index in range(batch * 10, batch * 10 + 10)])
    for batch in range(60):
        history.produce([b"k%08d" % (1000 + batch * 10 + index) for index in range(10)])
    job = history.job(tmp_path, 0, 11_200)
    assert len(ends_of_rounds(history, job)) <= 12  # a forward walk would take 7
