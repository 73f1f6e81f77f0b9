"""Many filters together: none is missed that selects a record, and only few are tested one by one."""

from __future__ import annotations

import random

import pytest

from kbroker.filters.filtering import compile_filter
from kbroker.log import record_walk
from kbroker.long_work import whole
from kbroker.protocol.records import HEADER_SIZE, NewRecord, build_batch, parse_header, put_number
from kbroker.views.dispatch import Dispatch
from kbroker.views.opened_batch import opened
from tests.log.builders import NOW
from tests.tries import tries

VALUES = ["EU", "US", "E", "regionEU", "x" * 63, "y" * 64, "C1", "C12", ""]


def some_filter(rng: random.Random) -> str:
    name = rng.choice(("region", "tag", "aa", '"r.x"'))
    kind = rng.randrange(5)
    if kind == 0:
        return " || ".join(rng.sample(["A", "B", "C1", "D"], rng.randint(1, 3)))
    if kind == 1:
        return f"header.{name} IN ('{rng.choice(VALUES)}', '{rng.choice(VALUES)}')"
    if kind == 2:
        return f"header.{name} = '{rng.choice(VALUES)}' AND offset >= 0"
    if kind == 3:
        return f"header.{name} LIKE '{rng.choice(VALUES)}%'"
    return f"header.{name} = '{rng.choice(VALUES)}'"


def records(rng: random.Random) -> list[NewRecord]:
    made: list[NewRecord] = []
    for _ in range(rng.randint(1, 8)):
        headers: list[tuple[str, bytes | None]] = [
            (
                rng.choice(("region", "tag", "aa", "aaa", "r.x", "xregion")),
                rng.choice((*map(str.encode, VALUES), b"A", None)),
            )
            for _ in range(rng.randrange(4))
        ]
        value = rng.choice((b"region", b"regionregion\x04EU", b"tag\x02A", None))
        made.append((NOW, rng.choice((b"k", b"region\x04")), value, headers))
    return made


@pytest.mark.parametrize("seed", range(tries(200)))
def test_no_filter_that_selects_a_record_is_missed(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    if seed % 3 == 0:
        monkeypatch.setattr(record_walk, "header_values", None)
    texts = {some_filter(rng) for _ in range(rng.choice((3, 40)))}
    filters = [compile_filter(text) for text in sorted(texts)]
    dispatch = Dispatch(filters)
    batch = build_batch(records(rng))
    found = whole(opened(parse_header(batch), memoryview(batch)))
    candidates = whole(dispatch.candidates(found.data, found.header.record_count))
    for each in filters:
        if whole(found.select(each, 0)):
            assert each in candidates, each.text


@pytest.mark.parametrize("is_compiled", [True, False])
def test_a_length_in_more_bytes_than_it_needs_is_not_missed(monkeypatch: pytest.MonkeyPatch, is_compiled: bool) -> None:
    if not is_compiled:
        monkeypatch.setattr(record_walk, "header_values", None)
    filters = [compile_filter(f"header.region = 'C{number}'") for number in range(20)]
    record = bytearray(b"\0\0\0\1\1\2\x0cregion")
    record += b"\x84\0C1"  # the length 2 in two bytes
    body = bytearray()
    put_number(body, len(record))
    batch = bytearray(build_batch([(NOW, None, None, ())]))[:HEADER_SIZE]
    found = whole(Dispatch(filters).candidates(bytes(body + record), 1))
    assert filters[1] in found
    assert len(batch) == HEADER_SIZE


@pytest.mark.parametrize("is_compiled", [True, False])
def test_of_a_thousand_filters_only_those_with_a_value_of_the_batch_are_tested(
    monkeypatch: pytest.MonkeyPatch, is_compiled: bool
) -> None:
    if not is_compiled:
        monkeypatch.setattr(record_walk, "header_values", None)
    filters = [compile_filter(f"header.region = 'C{number}'") for number in range(1000)]
    batch = build_batch([(NOW, None, b"x", [("region", b"C7")]), (NOW, None, b"x", [("region", b"C70")])])
    found = whole(Dispatch(filters).candidates(batch[HEADER_SIZE:], 2))
    assert sorted(each.text for each in found) == ["header.region = 'C7'", "header.region = 'C70'"]


def test_others_are_served_between_filters_that_are_tested_alone() -> None:
    filters = [compile_filter(f"header.h{number} = 'x'") for number in range(100)]
    work = Dispatch(filters).candidates(b"", 0)
    for _ in filters:
        work.send(None)
    with pytest.raises(StopIteration):
        work.send(None)
