"""Tools for tests with an embedded broker: faults, recorded requests, assertions, and a clock that the test moves.

This module contains the assertions. The other tools are attributes of a broker: `broker.faults`, `broker.requests`,
`broker.clock`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__all__ = ["assert_committed", "assert_no_requests", "assert_records", "assert_requested"]

if TYPE_CHECKING:
    from kbroker.testing.asserting import assert_committed, assert_no_requests, assert_records, assert_requested
else:  # a type checker that sees this function would accept unknown names

    def __getattr__(name: str) -> Any:
        """Load the assertions on first access: a test that only moves the clock does not need them."""
        if name in __all__:
            return getattr(importlib.import_module("kbroker.testing.asserting"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        """Return all names, even those not loaded yet."""
        return sorted({*globals(), *__all__})
