"""Which offsets exist, and which do not."""

from __future__ import annotations

import pytest

from kbroker.pipeline.archive.record_columns import holes


@pytest.mark.parametrize(
    ("runs", "left_out"),
    [
        ([], [(2, 10)]),
        ([(2, 10)], []),
        ([(3, 5), (7, 8)], [(2, 3), (5, 7), (8, 10)]),
        ([(2, 3), (9, 10)], [(3, 9)]),
    ],
)
def test_holes(runs: list[tuple[int, int]], left_out: list[tuple[int, int]]) -> None:
    assert holes(runs, (2, 10)) == left_out
