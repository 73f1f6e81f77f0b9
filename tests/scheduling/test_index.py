"""The index of a schedule topic: it follows from the log alone, wherever a replay stops and begins again."""

from __future__ import annotations

import json
import sqlite3
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.log.files import SCHEDULES
from kbroker.schedules.marks import Done, Due, Intent
from kbroker.scheduling.index import (
    IN_MEMORY,
    Cancel,
    Cut,
    DueRow,
    Event,
    Index,
    Lane,
    Marked,
    NewLane,
    Positions,
    Put,
    open_index,
    remove_index,
)

LANES = [NewLane(0, Lane("a", 0)), NewLane(1, Lane("b", -1))]
ERROR = 10


def intent(*dues: Due) -> Intent:
    return Intent(7, 0, 0, b"i" * 16, "a", 0, dues)


def opened(*events: Event) -> Index:
    index = open_index(IN_MEMORY, "boot")
    index.apply([*LANES, *events], Positions(1, 1))
    return index


def offsets(index: Index) -> list[int]:
    return [row[0] for row in index.rows()]


class Naive:
    """What an index must contain, by the rules alone: dicts, and no file."""

    def __init__(self) -> None:
        self.pending: dict[int, tuple[int, int, int | None]] = {}
        self.intents: dict[int, dict[int, tuple[int, int, int | None]]] = {}

    def apply(self, event: Event) -> None:
        if isinstance(event, Put):
            self._forget(event.key)
            self.pending[event.offset] = event.lane, event.due_ms, event.key
        elif isinstance(event, Cancel):
            self._forget(event.key)
        elif isinstance(event, Cut):
            for rows in (self.pending, *self.intents.values()):
                for offset in [each for each in rows if each < event.start]:
                    del rows[offset]
        elif isinstance(event, Marked):
            self._mark(event)

    def _forget(self, key: int | None) -> None:
        if key is not None:
            for rows in (self.pending, *self.intents.values()):
                for offset in [each for each, row in rows.items() if row[2] == key]:
                    del rows[offset]

    def _mark(self, event: Marked) -> None:
        mark = event.mark
        if isinstance(mark, Intent):
            named = [due.offset for due in mark.records]
            self.intents[event.offset] = {each: self.pending.pop(each) for each in named if each in self.pending}
        elif isinstance(mark, Done):
            rows = self.intents.pop(mark.intent, {})
            if mark.error_code:
                self.pending |= rows
            for offset, due_ms in () if mark.error_code else mark.following:
                if offset in rows:
                    self.pending[offset] = rows[offset][0], due_ms, rows[offset][2]


def content(index: Index) -> dict[int, tuple[int, int, int | None]]:
    return {offset: (lane, due_ms, key) for offset, lane, _, due_ms, key, _, _ in index.rows()}


def tries(index: Index) -> dict[int, tuple[int, int, int | None]]:
    return {offset: (lane, try_ms, key) for offset, lane, try_ms, _, key, _, _ in index.rows()}


@st.composite
def stories(draw: st.DrawFn) -> list[Event]:
    """Return events in the order of a log: offsets grow, and outcomes follow their intents."""
    events: list[Event] = []
    known: list[int] = []
    waiting: list[tuple[int, Intent]] = []
    for offset in range(draw(st.integers(1, 40))):
        kind = draw(st.sampled_from(("put", "put", "put", "cancel", "intent", "done", "cut")))
        key = draw(st.one_of(st.none(), st.integers(-3, 3)))
        if kind == "put":
            events.append(Put(offset, draw(st.integers(0, 1)), draw(st.integers(0, 99)), key))
            known.append(offset)
        elif kind == "cancel" and key is not None:
            events.append(Cancel(key))
        elif kind == "intent" and known:
            named = draw(st.lists(st.sampled_from(known), min_size=1, max_size=4, unique=True))
            named = [each for each in named if all(each not in {d.offset for d in i.records} for _, i in waiting)]
            if named:
                mark = intent(*(Due(each, 5) for each in named))
                events.append(Marked(offset, mark))
                waiting.append((offset, mark))
        elif kind == "done" and waiting:
            place, mark = waiting.pop(draw(st.integers(0, len(waiting) - 1)))
            code = draw(st.sampled_from((0, 0, ERROR)))
            following = () if code else tuple(Due(due.offset, 77) for due in mark.records[::2])
            events.append(Marked(offset, Done(place, code, retry_ms=50 if code else -1, following=following)))
        elif kind == "cut" and offset:
            events.append(Cut(draw(st.integers(0, offset))))
    return events


@given(stories(), st.lists(st.integers(0, 40), max_size=4))
def test_it_is_what_the_rules_say_wherever_the_replay_stops(events: list[Event], stops: list[int]) -> None:
    naive = Naive()
    for event in events:
        naive.apply(event)
    with tempfile.TemporaryDirectory() as folder:
        index = open_index(folder, "boot")
        index.apply(list(LANES), Positions(0, 0))
        begin = 0
        for stop in sorted({*stops, len(events)}):
            index.apply(events[begin:stop], Positions(stop, stop))
            begin = max(begin, min(stop, len(events)))
            index.close(clean=bool(stop % 2))
            index = open_index(folder, "boot")
            assert index.positions.records_to == stop
        assert content(index) == naive.pending
        assert index.pending == len(naive.pending)
        assert index.due_count([0, 1], 60) == sum(due_ms <= 60 for _, due_ms, _ in tries(index).values())
        sent = {(intent, offset) for offset, intent in index._db.execute("SELECT offset, intent FROM sent")}
        assert sent == {(each, offset) for each, rows in naive.intents.items() for offset in rows}
        assert index.outstanding.keys() == naive.intents.keys()
        named = [due.offset for held in index.outstanding.values() for due in held.mark.records]
        assert index.floor() == min([*naive.pending, *named], default=None)
        for lane in (0, 1):
            due = [each.offset for each in index.due(lane, 200, 100)]
            assert sorted(due) == sorted(each for each, row in naive.pending.items() if row[0] == lane)
        index.close()


def test_what_waits_longest_comes_first() -> None:
    index = opened(Put(1, 0, 30, None), Put(2, 0, 10, None), Put(3, 0, 20, None), Put(4, 1, 5, None), Put(5, 0, 10, 9))
    assert [each.offset for each in index.due(0, 25, 10)] == [2, 5, 3]
    assert list(index.due(0, 25, 1)) == [DueRow(2, 10, None, 0)]
    assert list(index.due(0, 9, 10)) == []
    assert (index.next_ms(0), index.next_ms(1)) == (10, 5)
    assert index.pending == 5
    assert index.due_count([0, 1], 10) == 3
    assert index.due_count([1], 10) == 1


def test_a_refused_record_is_tried_later_and_counts_its_tries() -> None:
    index = opened(Put(1, 0, 10, None))
    for number in range(3):
        index.apply([Marked(10 + number, intent(Due(1, 10)))], Positions(2, 2))
        index.apply([Marked(20 + number, Done(10 + number, ERROR, retry_ms=100, message="no"))], Positions(2, 2))
    assert index.rows() == [(1, 0, 100, 10, None, 3, "no")]
    assert list(index.due(0, 99, 10)) == []
    assert list(index.due(0, 100, 10)) == [DueRow(1, 10, None, 3)]


def test_a_try_that_is_put_off_here_is_no_event() -> None:
    index = opened(Put(1, 0, 10, None))
    assert index.try_later([(1, 500, "why"), (99, 1, "gone")]) == {0: 500}
    assert index.rows() == [(1, 0, 500, 10, None, 1, "why")]


def test_what_is_cancelled_on_its_way_does_not_come_back() -> None:
    index = opened(Put(1, 0, 10, 7), Put(2, 0, 10, 8), Put(3, 0, 10, None))
    index.apply([Marked(10, intent(Due(1, 10), Due(2, 10), Due(3, 10)))], Positions(2, 2))
    index.apply([Cancel(7), Put(11, 0, 60, 8)], Positions(3, 3))
    index.apply([Marked(12, Done(10, ERROR))], Positions(4, 4))
    assert offsets(index) == [3, 11]


@pytest.mark.parametrize("boot", ["other", ""])
def test_after_another_boot_only_a_clean_stop_is_trusted(tmp_path: Path, boot: str) -> None:
    for clean in (True, False):
        index = open_index(str(tmp_path), "boot")
        index.apply([*LANES, Put(1, 0, 10, None)], Positions(5, 5))
        index.close(clean=clean)
        index = open_index(str(tmp_path), boot)
        assert offsets(index) == ([1] if clean and boot else [])
        index.close()
        remove_index(str(tmp_path))


@pytest.mark.parametrize("damage", ["cut", "garbage", "other format", "empty"])
def test_a_damaged_file_is_begun_anew(tmp_path: Path, damage: str) -> None:
    index = open_index(str(tmp_path), "boot")
    index.apply([*LANES, *(Put(each, 0, each, each) for each in range(1000))], Positions(5, 5))
    index.close(clean=True)
    path = tmp_path / SCHEDULES
    data = path.read_bytes()
    if damage == "cut":
        path.write_bytes(data[:5000])
    elif damage == "garbage":
        path.write_bytes(b"\xff" * len(data))
    elif damage == "empty":
        path.write_bytes(b"")
    else:
        database = sqlite3.connect(path)
        database.execute("UPDATE meta SET value = ? WHERE name = 'format'", (json.dumps(99),))
        database.commit()
        database.close()
    index = open_index(str(tmp_path), "boot")
    assert (index.positions, offsets(index)) == (Positions(), [])
    index.apply([*LANES, Put(1, 0, 10, None)], Positions(5, 5))
    assert offsets(index) == [1]
    index.close()


def test_keys_are_told_apart_in_64_bits_and_files_have_their_own_salt() -> None:
    from kbroker.scheduling.index import key_hash

    one, two = (open_index(IN_MEMORY, "boot").salt for _ in range(2))
    assert one != two
    assert len({key_hash(b"%d" % each, one) for each in range(1000)}) == 1000
    assert key_hash(b"k", one) != key_hash(b"k", two)
