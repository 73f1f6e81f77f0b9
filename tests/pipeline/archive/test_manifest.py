"""The manifest: what entries mean together, and what is read from a damaged manifest."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.pipeline.archive.manifest import Entry, File, Manifest
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.ranges import Partition, Range, Sums, joined_ranges

T0, T1 = Partition("t", 0), Partition("t", 1)


def span(start: int, end: int, partition: Partition = T0, records: int | None = None) -> Range:
    return Range(partition, start, end, Sums(end - start if records is None else records, start * 7 + 1))


def entry(
    name: str, *ranges: Range, files: tuple[str, ...] = (), removed: tuple[str, ...] = (), batch: int = 0
) -> Entry:
    found = tuple(File(path, 10, 1) for path in files)
    return Entry(name, "archive", "2026-11-21T00:00:00+00:00", ranges, (), found, removed, {"q": batch})


def test_entry_comes_back_from_its_document() -> None:
    before = entry("a", span(0, 5), span(3, 9, T1), files=("topic=t/x.parquet",), removed=("topic=t/y.parquet",))
    assert Entry.decode("a", before.encode()) == before


def test_ranges_in_order_have_no_fault() -> None:
    manifest = Manifest([entry("b", span(5, 9)), entry("a", span(0, 5), span(0, 4, T1))])
    assert manifest.faults() == []
    assert manifest.ends() == {T0: 9, T1: 4}


def test_offset_in_no_batch_and_in_two() -> None:
    assert Manifest([entry("a", span(0, 5)), entry("b", span(6, 9))]).faults() == [
        "t-0: offsets 5 to 5 are in no batch"
    ]
    assert Manifest([entry("b", span(6, 9))]).faults() == ["t-0: offsets 0 to 5 are in no batch"]
    overlap = Manifest([entry("a", span(0, 5)), entry("b", span(3, 9))])
    assert overlap.faults() == ["t-0: offsets 3 to 4 are in two batches"]


def test_files_that_an_entry_replaces_do_not_count() -> None:
    manifest = Manifest([entry("archive-1", files=("a", "b")), entry("optimize-1", files=("c",), removed=("a", "b"))])
    assert sorted(manifest.files) == ["c"]


def test_replaced_files_do_not_count_whatever_the_entries_names_are() -> None:
    manifest = Manifest([entry("z", files=("a",)), entry("b", files=("c",), removed=("a",))])
    assert sorted(manifest.files) == ["c"]


def test_summary_means_the_same_as_its_entries() -> None:
    entries = [
        entry("a", span(0, 5), files=("a",), batch=0),
        entry("b", span(5, 9), span(0, 3, T1), files=("b",), batch=1),
        entry("o", files=("c",), removed=("a",), batch=1),
    ]
    before = Manifest(entries)
    summary = before.summary("summary-1", "now")
    for kept in (entries, entries[1:], []):  # while the entries are being removed, and afterwards
        after = Manifest([*kept, summary])
        assert after.files == before.files
        assert after.queries == before.queries == {"q": 1}
        assert after.ends() == before.ends()
        assert after.obsolete == sorted(each.name for each in kept)
        assert sum((r.sums for r in after.ranges[T0]), Sums()) == sum((r.sums for r in before.ranges[T0]), Sums())


def test_entry_written_after_a_summary_counts_with_it() -> None:
    old = Manifest([entry("a", span(0, 5), files=("a",))])
    manifest = Manifest([old.summary("summary-1", "now"), entry("b", span(5, 6), files=("b",), batch=7)])
    assert sorted(manifest.files) == ["a", "b"]
    assert manifest.queries == {"q": 7}
    assert manifest.faults() == []


@given(st.lists(st.integers(1, 50), max_size=20))
def test_neighbours_become_one_range(sizes: list[int]) -> None:
    ranges, start = [], 0
    for size in sizes:
        ranges.append(span(start, start + size))
        start += size
    joined = joined_ranges(ranges)
    assert [(each.start, each.end) for each in joined] == ([(0, start)] if sizes else [])
    assert sum((each.sums for each in joined), Sums()) == sum((each.sums for each in ranges), Sums())


def test_a_gap_between_ranges_stays() -> None:
    assert [(r.start, r.end) for r in joined_ranges([span(0, 2), span(5, 6), span(6, 9)])] == [(0, 2), (5, 9)]


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": 1}', "null"])
def test_damaged_document_is_told_in_one_line(text: str) -> None:
    with pytest.raises(PipelineError, match=r"^manifest entry x is damaged"):
        Entry.decode("x", text)


def test_document_of_a_later_format_is_refused() -> None:
    text = json.dumps({**json.loads(entry("a").encode()), "format": 2})
    with pytest.raises(PipelineError, match="too new"):
        Entry.decode("a", text)


def test_checksums_are_summed_modulo_2_to_the_64() -> None:
    assert Sums(1, 2**64 - 1) + Sums(2, 3) == Sums(3, 2)
