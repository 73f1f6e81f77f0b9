"""How often a property is tried: as often as it says, or a share of that where a quick answer is wanted.

`make unit` sets KBROKER_TESTS=short, and each run of it tries other examples; `make test` tries all. A pytest plugin,
loaded by the root conftest, so that it also holds for properties that do not say how often.
"""

from __future__ import annotations

import os
from typing import Final

from hypothesis import settings

SHORT: Final = os.environ.get("KBROKER_TESTS") == "short"
_SHARE: Final = 5
_LEAST: Final = 5


def tries(full: int) -> int:
    """Return how often to try what is worth `full` tries."""
    return max(full // _SHARE, min(full, _LEAST)) if SHORT else full


if SHORT:
    settings.register_profile("short", max_examples=tries(settings.default.max_examples))  # type: ignore[union-attr]
    settings.load_profile("short")
