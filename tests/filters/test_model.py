"""Random expressions on random records: the compiled filter against the plain model, and the prefilter against both."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from kbroker.filters.filtering import compile_filter
from kbroker.protocol.records import HEADER_SIZE, Record, build_batch, enclose, put_number, read_records
from tests.filters.model import escapes_badly, outcome, records, trees, written
from tests.tries import tries


def nodes(tree: Any) -> Iterator[Any]:
    if isinstance(tree, (tuple, list)):
        yield tree
        for each in tree:
            yield from nodes(each)


def is_accepted(tree: Any) -> bool:
    return not any(
        len(each) == 4 and each[0] == "like" and escapes_badly(each[2], each[3])
        for each in nodes(tree)
        if isinstance(each, tuple)
    )


@settings(max_examples=tries(300))
@given(st.data(), trees, st.lists(records, min_size=1, max_size=5), st.integers(0, 3))
def test_a_record_matches_exactly_where_the_expression_is_true(data, tree, found, partition):
    assume(is_accepted(tree))
    text = written(tree, data.draw)
    matches = compile_filter(text)
    for record in found:
        expected = outcome(tree, record, partition)
        event(str(expected))
        assert matches(record, partition) == (expected is True), (text, record, expected)


@settings(max_examples=tries(300))
@given(st.data(), trees, st.lists(records, min_size=1, max_size=5))
def test_the_prefilter_never_misses_a_match(data, tree, found):
    assume(is_accepted(tree))
    wanted = compile_filter(written(tree, data.draw))
    batch = build_batch([(each.timestamp, each.key, each.value, each.headers) for each in found])
    matches = any(wanted(each, 0) for each in read_records(batch, max_bytes=10**6))
    may = wanted.may_match(batch[HEADER_SIZE:])
    event(f"matches {matches}, may match {may}")
    assert may or not matches


@settings(max_examples=tries(150))
@given(st.data(), trees, records, st.integers(1, 3))
def test_the_prefilter_reads_lengths_that_are_longer_than_they_need_be(data, tree, record, more):
    assume(is_accepted(tree))
    wanted = compile_filter(written(tree, data.draw))
    body = long_form(record, more)
    (read,) = read_records(enclose(body, 1, record.timestamp, record.timestamp), max_bytes=10**6)
    assert read[1:] == record[1:]
    assert wanted.may_match(body) or not wanted(read, 0)


def long_form(record: Record, more: int) -> bytes:
    """Encode a record whose lengths have `more` bytes more than they need."""

    def number(value: int) -> bytes:
        out = bytearray()
        put_number(out, value)
        if len(out) + more <= 5:
            out[-1] |= 0x80
            out += b"\x80" * (more - 1) + b"\0"
        return bytes(out)

    def content(data: bytes | None) -> bytes:
        return number(-1) if data is None else number(len(data)) + data

    out = b"\0" + number(0) + number(0) + content(record.key) + content(record.value) + number(len(record.headers))
    out += b"".join(content(name.encode()) + content(value) for name, value in record.headers)
    return number(len(out)) + out
