"""The figures of a run: what its seeded tests did, how often, and with what outcome. Printed at the end of the run.

Owns the lines. Never judges: the tests do. A pytest plugin, loaded by the root conftest.
"""

from __future__ import annotations

from typing import Any, Final

import pytest

_LINES: Final[dict[str, str]] = {}


def figure(what: str, figures: str) -> None:
    """Note what a test did; a later note of the same `what` replaces it."""
    _LINES[what] = figures


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the figures."""
    if _LINES:
        terminalreporter.section("figures")
        for what, figures in _LINES.items():
            terminalreporter.write_line(f"{what}: {figures}")


@pytest.hookimpl
def pytest_sessionstart() -> None:
    """Begin anew: one process may run several sessions."""
    _LINES.clear()
