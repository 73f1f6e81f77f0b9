"""The short form of the simulation, and that a seed repeats the same run. Only the long form uses new seeds."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import pytest

from tests.figures import figure
from tests.tries import FORM, tries

_STEPS = {"short": 10_000, "usual": 30_000, "long": 1_000_000}[FORM]
_SEED = random.randrange(1 << 30) if FORM == "long" else 20261122
_DEADLINE_S = {"short": 120, "usual": 240, "long": 7200}[FORM]


def simulate(*arguments: str, hash_seed: str = "random", **more: str) -> str:
    """Run the simulation in its own process, with `more` in its environment, and return its output."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=_DEADLINE_S,
        env={**os.environ, "PYTHONHASHSEED": hash_seed, **more},
    )
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr[-10_000:]
    return done.stdout


@pytest.mark.long
def test_a_cluster_under_faults_keeps_what_replication_promises() -> None:
    said = simulate("--seed", str(_SEED), "--steps", str(_STEPS), "--each", str(min(_STEPS, 25_000)))
    figure("simulation", said.splitlines()[-1])
    assert " 0 violations" in said


@pytest.mark.long
def test_a_seed_gives_the_same_run_again() -> None:
    steps = str(tries(5000))
    arguments = "--seed", str(_SEED), "--each", steps
    # Another allocator changes all addresses, and so the order of sets of objects.
    again = simulate(*arguments, hash_seed="2", PYTHONMALLOC="malloc")
    assert simulate(*arguments, hash_seed="1") == again, f"seed {_SEED}"
