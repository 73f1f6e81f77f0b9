"""The short form of share_torture.py, and a long one; a failure prints the seed."""

from __future__ import annotations

import random

import pytest

from tests.cluster.share_torture import ShareTorture
from tests.figures import figure
from tests.tries import tries


@pytest.mark.parametrize("faults", [12, pytest.param(tries(30), marks=pytest.mark.long)], ids=["short", "long"])
def test_what_was_accepted_never_comes_again_whoever_is_killed(faults: int) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    figure(f"a share group under faults, seed {seed}", ShareTorture(seed, faults).run())
