"""Coordinators here run without a loop."""

from __future__ import annotations

import pytest

from kbroker.coordination import loading


@pytest.fixture(autouse=True)
def loads_are_over_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing would go on with a load that a busy machine did not finish in its slice."""
    monkeypatch.setattr(loading, "SLICE_SECONDS", 60.0)
