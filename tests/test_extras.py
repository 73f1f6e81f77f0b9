"""The hint that names the command for an extra."""

from __future__ import annotations

import sys

import pytest

from kbroker.extras import how_to_install


@pytest.mark.parametrize(
    ("active", "base", "pip"),
    [("/env", "/usr", "pip"), (None, "/env", "pip"), (None, "/usr", "/env/bin/python -m pip"),
     ("/other", "/usr", "/env/bin/python -m pip")],
)  # fmt: skip
def test_the_pip_of_the_running_environment_is_named(monkeypatch, active, base, pip):
    monkeypatch.setattr(sys, "prefix", "/env")
    monkeypatch.setattr(sys, "base_prefix", base)
    monkeypatch.setattr(sys, "executable", "/env/bin/python")
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    if active is not None:
        monkeypatch.setenv("VIRTUAL_ENV", active)
    assert how_to_install("console") == f"{pip} install '.[console]' in a checkout of kbroker"
