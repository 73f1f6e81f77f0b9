"""Short loads end immediately here, also on a busy machine; tests of the slices determine how long these are."""

from __future__ import annotations

import pytest

from kbroker.coordination import loading


@pytest.fixture(autouse=True)
def loads_end_at_once(monkeypatch):
    monkeypatch.setattr(loading, "SLICE_SECONDS", 60.0)
