"""The short form of torture.py; a failure prints the seed."""

from __future__ import annotations

import random

import pytest

from tests.cluster.torture import Torture
from tests.tries import tries


@pytest.mark.long
def test_nothing_is_lost_in_a_cluster_that_is_tortured():
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    print(Torture(seed, tries(25)).run())
