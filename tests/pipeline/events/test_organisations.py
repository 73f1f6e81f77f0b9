"""The lookup from visitors to organisations."""

from __future__ import annotations

import csv
import io
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from kbroker.pipeline.events.generator import visitor_name
from kbroker.pipeline.events.organisations import ORGANISATIONS, UNKNOWN_SHARE, organisation_of, write_lookup


@given(st.text())
def test_every_name_has_an_answer(visitor: str) -> None:
    assert organisation_of(visitor) in (None, *ORGANISATIONS)


def test_sizes_fall_and_a_few_are_unknown() -> None:
    number = 20_000
    sizes = Counter(organisation_of(visitor_name(rank)) for rank in range(1, number + 1))
    assert set(sizes) == {None, *ORGANISATIONS}
    assert abs(sizes[None] / number - UNKNOWN_SHARE) < 0.01
    first, second, last = sizes[ORGANISATIONS[0]], sizes[ORGANISATIONS[1]], sizes[ORGANISATIONS[-1]]
    assert 1.8 < first / second < 2.2
    assert first > 10 * last


def test_an_answer_never_changes() -> None:
    """Earlier lookup files must agree with today's."""
    assert [organisation_of(visitor_name(rank)) for rank in (1, 2, 3)] == [
        None,
        "Alder & Finch Insurance",
        "Alder & Finch Insurance",
    ]


def test_csv_has_those_who_are_known() -> None:
    names = [visitor_name(rank) for rank in range(1, 501)]
    file = io.StringIO()
    known = write_lookup(file, names)
    rows = list(csv.reader(io.StringIO(file.getvalue())))
    assert rows[0] == ["visitor", "organisation"]
    assert rows[1:] == [[name, organisation_of(name)] for name in names if organisation_of(name)]
    assert known == len(rows) - 1 < len(names)
