"""The short form of tests.crash.pipeline: driver and broker ended while a topic is archived and replayed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.pipeline import Pipeline
from tests.figures import figure

SEED = 20261121
KILLS = 1


@pytest.mark.spark
def test_each_record_is_archived_and_replayed_once_whatever_ends(tmp_path: Path) -> None:
    print(f"seed {SEED}, {KILLS} kills each")
    work = Pipeline(tmp_path, SEED)
    try:
        work.run(KILLS, KILLS)
    finally:
        work.broker.kill()
    figure(f"kills of driver and broker under the pipeline, seed {SEED}", work.summary())
    assert work.counts["verified"] == 2
    assert work.counts["broker killed under archive"] == work.counts["broker killed under replay"] == KILLS
    assert sum(count for name, count in work.counts.items() if " killed at " in name) == 2 * KILLS
