"""How often a property is tried: a share of what it says, or many times more.

KBROKER_TESTS=short, of `make unit`, is for a quick answer, a tenth; =long is of `make torture`, ten times as often;
`make test` sets neither and tries half as often. Random examples are others in each run. A pytest plugin, loaded by the
root conftest, so that it also holds for properties that do not say how often. No example has a deadline: on a busy
machine any of them may take long.
"""

from __future__ import annotations

import os
from typing import Final

from hypothesis import HealthCheck, settings

FORM: Final = os.environ.get("KBROKER_TESTS", "usual")
_TIMES: Final = {"short": 0.1, "usual": 0.5, "long": 10}[FORM]
_LEAST: Final = 5


def tries(usual: int) -> int:
    """Return how often to try in this run what is to be tried so often."""
    return max(int(usual * _TIMES), min(usual, _LEAST))


settings.register_profile(FORM, max_examples=tries(100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(FORM)
