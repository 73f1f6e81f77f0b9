"""The short form of `make torture`: the broker ends at failpoints, at random moments and at starts; nothing is lost."""

from __future__ import annotations

from pathlib import Path

from tests.crash.torture import Torture
from tests.figures import figure

SEED = 20261121
KILLS = 26


def test_nothing_is_lost_over_many_ends(tmp_path: Path) -> None:
    print(f"seed {SEED}, {KILLS} kills")
    torture = Torture(tmp_path, SEED)
    try:
        torture.run(KILLS)
    finally:
        torture.broker.kill()
    figure(f"kills under load, at restarts and at failpoints, seed {SEED}", torture.summary())
    at_failpoints = sum(count for name, count in torture.counts.items() if name.startswith("kills at ") and "." in name)
    assert at_failpoints > 0
    assert torture.counts["kills at a moment"] > 0
    assert torture.counts["checks"] == KILLS + 2
