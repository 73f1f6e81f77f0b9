"""A batch that is built in slices equals, byte by byte, the one that is built in one step."""

from __future__ import annotations

import random

from kbroker.long_work import whole
from kbroker.protocol.large_batch import build_in_turns
from kbroker.protocol.records import build_batch
from tests.tries import tries

SEED = 20261128


def test_beside_the_one_that_is_built_at_once() -> None:
    rng = random.Random(SEED)
    print(f"seed {SEED}")
    for _ in range(tries(200)):
        records = [
            (
                rng.choice([0, 1_700_000_000_000 + rng.randint(-9, 9)]),
                rng.choice([None, b"", rng.randbytes(rng.randint(1, 200_000))]),
                rng.choice([None, b"", rng.randbytes(rng.randint(1, 200_000))]),
                tuple(("hé" * rng.randint(0, 40), rng.choice([None, b"", b"v"])) for _ in range(rng.randint(0, 3))),
            )
            for _ in range(rng.randint(1, 4))
        ]
        assert whole(build_in_turns(records)) == build_batch(records)
