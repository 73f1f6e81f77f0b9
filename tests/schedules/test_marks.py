"""Marks in the log of a schedule topic: what is written is read, and nothing else crashes the reader."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.protocol.errors import Malformed
from kbroker.protocol.records import Record, build_batch, build_marker, parse_header
from kbroker.schedules.marks import KEY, Begin, Done, Due, Intent, Mark, Pause, build_marks, mark_of, read_marks

numbers = st.integers(-(2**63), 2**63 - 1)
dues = st.lists(st.builds(Due, numbers, numbers), max_size=20).map(tuple)
names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=300)  # as topics and errors have none
marks = st.one_of(
    st.builds(
        Intent,
        numbers,
        st.integers(-(2**15), 2**15 - 1),
        st.integers(0, 2**31 - 1),
        st.binary(min_size=16, max_size=16),
        names,
        st.integers(0, 2**31 - 1),
        dues,
    ),
    st.builds(Done, numbers, st.integers(-1, 200), numbers, numbers, dues, names),
    st.builds(Begin, names, st.booleans(), st.none() | names),
    st.builds(Pause, st.none() | names),
)


@given(st.lists(marks, min_size=1, max_size=5))
def test_what_is_written_is_read_and_clients_skip_it(written: list[Mark]) -> None:
    batch = bytearray(build_marks(written, 1_700_000_000_000))
    batch[:8] = (1000).to_bytes(8, "big")  # its place in the log
    assert list(read_marks(bytes(batch))) == [(1000 + place, mark) for place, mark in enumerate(written)]
    header = parse_header(batch)
    assert (header.is_control, header.is_transactional, header.producer_id) == (True, False, -1)


@given(st.binary(max_size=200))
def test_other_bytes_are_refused_or_left_out(value: bytes) -> None:
    for data in (value, b"\0\0" + value, b"\0\1" + value, b"\0\2" + value, b"\0\3" + value):
        try:
            mark_of(Record(5, 0, KEY, data, ()))
        except Malformed as error:
            reason = str(error)
            assert "offset 5" in reason


def test_marks_of_later_versions_and_kinds_are_left_out() -> None:
    assert mark_of(Record(0, 0, KEY, b"\x09\0", ())) is None
    assert mark_of(Record(0, 0, KEY, b"\0\x09", ())) is None
    assert mark_of(Record(0, 0, b"\0\0\0\1", b"\0\0\0\0\0\0", ())) is None
    ended = build_marker(producer_id=1, producer_epoch=0, commit=True, coordinator_epoch=0, timestamp=0)
    assert list(read_marks(ended)) == []


def test_a_count_beyond_the_data_needs_no_memory() -> None:
    claimed = b"\0\1" + bytes(26) + (2**31 - 1).to_bytes(4, "big")
    with pytest.raises(Malformed):
        list(read_marks(build_batch([(0, KEY, claimed, ())], control=True)))
