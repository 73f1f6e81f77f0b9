"""Coordinators here run without a loop."""

from __future__ import annotations

import pytest

from kbroker.coordination import loading


@pytest.fixture(autouse=True)
def loads_are_over_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run loads to their end immediately: nothing would continue a load that is not finished in its slice."""
    monkeypatch.setattr(loading, "SLICE_SECONDS", 60.0)
