"""What replication promises, over random lives of one partition: R1, R2, R3, R13, R14 and S7."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from .world import Broken, World


def live(seed: int, steps: int, **how: object) -> Counter[str]:
    world = World(seed, **how)  # type: ignore[arg-type]
    try:
        for _ in range(steps):
            world.step()
        world.settle()
    except Broken as error:
        raise Broken(f"seed {seed}: {error}") from None
    return world.told


@pytest.mark.parametrize("how", [{}, {"min_isr": 1}, {"unclean": True}], ids=["min isr 2", "min isr 1", "unclean"])
def test_promises_hold(how: dict[str, object]) -> None:
    first = random.randrange(1 << 32)
    told: Counter[str] = Counter()
    for seed in range(first, first + 40):
        told += live(seed, 400, **how)
    print(f"seeds {first} and 39 more:", dict(told))
    wanted = {"acknowledged", "grew", "shrank", "diverging", "Truncate", "crash", "cut off", "return", "lost"}
    assert wanted | ({"unclean election"} if how.get("unclean") else set()) <= set(told)
