"""What a test can have of an embedded broker beside its service: misbehaviour, a look at what was asked, the time.

The assertions are here; all else comes with a broker: `broker.faults`, `broker.requests`, `broker.clock`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__all__ = ["assert_committed", "assert_no_requests", "assert_records", "assert_requested"]

if TYPE_CHECKING:
    from kbroker.testing.asserting import assert_committed, assert_no_requests, assert_records, assert_requested
else:  # a type checker would take it for any name, also for one that does not exist

    def __getattr__(name: str) -> Any:
        """Load the assertions when one is first asked for: a clock that can be moved has no use for them."""
        if name in __all__:
            return getattr(importlib.import_module("kbroker.testing.asserting"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        """Name them all, loaded or not."""
        return sorted({*globals(), *__all__})
