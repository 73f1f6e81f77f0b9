"""Reading a segment backwards finds the same batches and faults as reading it forwards."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.log.cleaner.reading import SegmentReader
from kbroker.protocol.errors import Malformed
from tests.log.cleaner.segment_files import batch_at, opened, write_segment
from tests.tries import tries

BASE = 100
CHUNK = 65536

sizes = st.lists(st.sampled_from([1, 9, 80, 500, 9_000, 30_000, 64_000, 70_000, 140_000]), min_size=1, max_size=14)
holes = st.lists(st.sampled_from([0, 0, 0, 1, 5]), min_size=14, max_size=14)

Found = list[tuple[int, int, bytes]] | None


def segment(value_sizes: Sequence[int], skipped: Sequence[int]) -> list[bytes]:
    """Return batches of one to three records, with holes between them."""
    batches, offset = [], BASE
    for index, size in enumerate(value_sizes):
        offset += skipped[index]
        count = 1 + index % 3
        batches.append(batch_at(offset, [b"k"] * count, b"v" * (size // count)))
        offset += count
    return batches


def starts(batches: Sequence[bytes]) -> list[int]:
    return list(accumulate(map(len, batches), initial=0))[:-1]


def read(directory: Path, size: int, use_index: bool | None) -> Found:
    """Return (position, base offset, bytes) of every batch in order, None if the segment is Malformed."""
    told: list[int] = []
    with opened(directory) as fd:
        reader = SegmentReader(fd, 2 * CHUNK, told.append)
        try:
            if use_index is None:
                found = [(at, header.base_offset, bytes(data)) for at, header, data in reader.forward(BASE, size)]
            else:
                backward = reader.backward(BASE, size, use_index=use_index)
                found = [(at, header.base_offset, bytes(data)) for at, header, data in backward][::-1]
        except Malformed:
            return None
    assert sum(told) == reader.bytes_read
    assert max(told) <= max([CHUNK, *(len(data) for _, _, data in found)])
    return found


@settings(max_examples=tries(100))
@given(sizes, holes, st.data())
def test_backwards_is_the_reverse_of_forwards(value_sizes: list[int], skipped: list[int], data: st.DataObject) -> None:
    batches = segment(value_sizes, skipped)
    positions = starts(batches)
    indexed = data.draw(st.none() | st.lists(st.sampled_from(positions), unique=True).map(sorted))
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        _, size = write_segment(directory, BASE, batches, indexed)
        expected = read(directory, size, None)
        assert expected is not None
        assert [(at, batch) for at, _, batch in expected] == list(zip(positions, batches, strict=True))
        assert read(directory, size, True) == expected
        assert read(directory, size, False) == expected


@settings(max_examples=tries(200))
@given(sizes, holes, st.data())
def test_what_is_wrong_one_way_is_wrong_the_other_way(
    value_sizes: list[int], skipped: list[int], data: st.DataObject
) -> None:
    batches = segment(value_sizes, skipped)
    positions = starts(batches)
    content = bytearray(b"".join(batches))
    kind = data.draw(st.sampled_from(["header", "anywhere", "swapped", "doubled", "cut", "short"]))
    which = data.draw(st.integers(0, len(batches) - 1))
    size = len(content)
    if kind == "header":
        content[positions[which] + data.draw(st.integers(0, 60))] ^= data.draw(st.integers(1, 255))
    elif kind == "anywhere":
        content[data.draw(st.integers(0, size - 1))] ^= data.draw(st.integers(1, 255))
    elif kind == "swapped":
        content = bytearray(b"".join([*batches[which:], *batches[:which]]))
    elif kind == "doubled":
        content += batches[which]
        size = len(content)
    else:
        content = content[: data.draw(st.integers(0, size - 1))]
        size = len(content) if kind == "cut" else size  # the file is shorter than its stated size
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        write_segment(directory, BASE, [bytes(content)], positions)
        expected = read(directory, size, None) if size else []
        assert (read(directory, size, True) if size else []) == expected
        assert (read(directory, size, False) if size else []) == expected


@settings(max_examples=tries(200))
@given(sizes, st.data())
def test_a_wrong_index_never_changes_what_is_found(value_sizes: list[int], data: st.DataObject) -> None:
    batches = segment(value_sizes, [0] * 14)
    near = st.sampled_from(starts(batches)).flatmap(lambda at: st.integers(max(at - 70, 0), at + 70))
    indexed = data.draw(st.lists(near | st.sampled_from(starts(batches)) | st.integers(0, 2**32 - 1), min_size=1))
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        _, size = write_segment(directory, BASE, batches, indexed)
        assert read(directory, size, True) in (None, read(directory, size, None))


def test_an_index_saves_reading_anything_twice(tmp_path: Path) -> None:
    batches = segment([9_000] * 100, [0] * 100)
    _, size = write_segment(tmp_path, BASE, batches, starts(batches))
    with opened(tmp_path) as fd:
        reader = SegmentReader(fd, 2 * CHUNK, lambda _size: None)
        assert len(list(reader.backward(BASE, size, use_index=True))) == 100
    assert reader.bytes_read == size + 8 * 100


def test_a_batch_larger_than_a_chunk_costs_its_header_more(tmp_path: Path) -> None:
    batches = segment([140_000] * 10, [0] * 10)
    _, size = write_segment(tmp_path, BASE, batches)
    with opened(tmp_path) as fd:
        reader = SegmentReader(fd, 2 * CHUNK, lambda _size: None)
        assert len(list(reader.backward(BASE, size, use_index=False))) == 10
    assert reader.bytes_read <= size + 10 * 16384


@pytest.mark.parametrize("use_index", [True, False])
def test_an_end_is_told_of_before_all_is_read(tmp_path: Path, use_index: bool) -> None:
    """A segment's end is reported before all of it is read: `spend` may raise at any read, which aborts a cleaning."""
    batches = segment([30_000] * 10, [0] * 10)
    _, size = write_segment(tmp_path, BASE, batches, starts(batches))
    told: list[int] = []

    def spend(count: int) -> None:
        told.append(count)
        if len(told) == 3:
            raise TimeoutError

    with opened(tmp_path) as fd, pytest.raises(TimeoutError):
        list(SegmentReader(fd, 2 * CHUNK, spend).backward(BASE, size, use_index=use_index))
    assert len(told) == 3
