"""A year of schedules, with leaders that die: each fires when a naive calendar says, and at no other time."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import pytest

from kbroker.scheduling import scheduled
from tests.figures import figure
from tests.replica_manager.virtual_time import run
from tests.scheduling.year import YEAR_S, Year
from tests.tries import FORM

RECORDS, FAULTS, YEARS = {"short": (12, 20, 1), "usual": (18, 40, 1), "long": (100, 250, 3)}[FORM]


async def _live(folder: Path, seed: int) -> Year:
    year = Year(folder, seed, RECORDS, FAULTS)
    await year.live()
    return year


@pytest.mark.long
@pytest.mark.parametrize("seed", [random.randrange(1 << 30) for _ in range(YEARS)], ids=lambda seed: "")
def test_a_year_passes_as_the_calendar_says(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    print(f"seed {seed}")
    monkeypatch.setattr(scheduled, "_LONGEST_WAIT_S", 86_400.0)  # half a million looks at the clock would find nothing
    with tempfile.TemporaryDirectory() as folder:
        year = run(_live(Path(folder), seed), within_s=2.0 * YEAR_S)
    figure(f"a year of {RECORDS} schedules, seed {seed}", f"{dict(year.counts)}")
