"""The chart of visits: what is drawn, and that it is a valid image."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kbroker.pipeline.demo.chart import by_organisation, draw, page, save
from kbroker.pipeline.demo.tour import Tour, by_day
from tests.console.browser import browser, missing

pytest.importorskip("matplotlib")

ROWS = [
    {"organisation": f"org {number:02d} <&>", "day": day, "visits": 100 - number, "events": 300, "late": 1}
    for day in ("2026-11-20", "2026-11-19")
    for number in range(12)
]


def test_small_organisations_are_one_colour() -> None:
    days, visits = by_organisation(ROWS)
    assert days == ["2026-11-19", "2026-11-20"]
    assert list(visits) == [*(f"org {number:02d} <&>" for number in range(8)), "others"]
    assert visits["others"] == [100 * 4 - 8 - 9 - 10 - 11] * 2


def test_who_belongs_to_none_stands_apart_at_the_end() -> None:
    rows = [*ROWS, {"organisation": "unknown", "day": "2026-11-20", "visits": 10_000}]
    visits = by_organisation(rows)[1]
    assert list(visits)[8:] == ["others", "unknown"]
    assert visits["unknown"] == [0, 10_000]


def test_a_day_without_visits_of_an_organisation_is_zero() -> None:
    rows = [{"organisation": "a", "day": "1", "visits": 3}, {"organisation": "b", "day": "2", "visits": 4}]
    assert by_organisation(rows) == (["1", "2"], {"b": [0, 4], "a": [3, 0]})


def test_no_two_parts_of_a_bar_have_one_colour_and_the_legend_stands_as_they_do() -> None:
    rows = [*ROWS, {"organisation": "unknown", "day": "2026-11-20", "visits": 10_000, "events": 1, "late": 0}]
    svg = draw(rows, "Visits", "svg").decode()
    names = list(by_organisation(rows)[1])
    bars = list(dict.fromkeys(re.findall(r'style="fill: (#[0-9a-f]{6})(?:; [^"]*)?"', svg[: svg.index('id="legend')])))
    legend = re.findall(r'style="fill: (#[0-9a-f]{6})(?:; [^"]*)?"', svg[svg.index('id="legend') :])
    own = [each for each in bars if each in legend]
    assert len(own) == len(names)
    assert [each for each in legend if each in own] == own[::-1]  # from top to bottom


@pytest.mark.browser
def test_a_click_on_a_columns_head_sorts_by_it_and_another_the_other_way(tmp_path: Path) -> None:
    lacking = missing()
    if lacking is not None:
        pytest.fail(f"needs {lacking}")
    save(ROWS, tmp_path, "Visits", "")

    with browser(tmp_path.as_uri(), str(tmp_path / "profile")) as window:

        def column(place: int) -> list[str]:
            return [cell.text for cell in window.all(f"tbody td:nth-child({place})")]

        window.go("/visits.html")
        visits, days = [str(row["visits"]) for row in ROWS], [row["day"] for row in ROWS]
        assert column(3) == visits
        window.click("th:nth-child(3)")
        assert column(3) == sorted(visits, key=int)  # sorted as numbers: 99 before 100
        window.click("th:nth-child(3)")
        assert column(3) == sorted(visits, key=int, reverse=True)
        window.click("th:nth-child(2)")
        assert column(2) == sorted(map(str, days))


def test_page_needs_nothing_beside_it_and_shows_every_number(tmp_path: Path) -> None:
    picture, text = save(ROWS, tmp_path / "out", "Visits", "A note.")
    assert picture.read_bytes().startswith(b"\x89PNG")
    html = text.read_text()
    assert html.count("<tr>") == len(ROWS) + 2
    total = 2 * sum(100 - number for number in range(12))
    assert f"<tfoot><tr><td>total</td><td></td><td>{total}</td>" in html
    assert "org 00 &lt;&amp;&gt;" in html
    assert "org 00 <&>" not in html
    assert 'src="' not in html
    assert "<link" not in html


def test_no_rows_give_an_empty_page() -> None:
    assert "<svg" in page([], "Visits", "")


def test_days_of_stream_and_archive_stand_side_by_side(tmp_path: Path) -> None:
    streamed = [{**row, "visits": row["visits"] + 1, "final": row["day"] == "2026-11-19"} for row in ROWS[::-1]]
    found = Tour(ROWS, streamed, [], 0, tmp_path, tmp_path)
    visits = sum(100 - number for number in range(12))
    assert by_day(found) == [
        ("2026-11-19", visits + 12, visits, 3600, 12, "yes"),
        ("2026-11-20", visits + 12, visits, 3600, 12, "no"),
    ]
