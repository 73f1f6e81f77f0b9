"""What a job prints while it runs."""

from __future__ import annotations

import json

import pytest

from kbroker.pipeline.progress import Lines, shown


def test_one_line_of_json_a_step(capsys: pytest.CaptureFixture[str]) -> None:
    times = iter([10.0, 12.0, 12.0])
    lines = Lines("archive", lambda: next(times))
    lines.step(100, 7, batch=0)
    lines.step(50, 0, batch=1)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {"job": "archive", "batch": 0, "records": 100, "total": 100, "rate": 50, "lag": 7},
        {"job": "archive", "batch": 1, "records": 50, "total": 150, "rate": 0, "lag": 0},
    ]


def test_lines_are_printed_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with shown("replay") as progress:
        progress.step(1, 2)
    assert json.loads(capsys.readouterr().out)["lag"] == 2
