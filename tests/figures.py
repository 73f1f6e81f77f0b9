"""The figures of a run: what its seeded tests did, how often, and with what outcome. Printed at the end of the run.

They include the longest holds of event loops in this process, by the time that can have been work: other processes make
each of them last longer. Owns the lines. Never judges: the tests do. A pytest plugin, loaded by the root conftest.
"""

from __future__ import annotations

import logging
import os
from typing import Any, Final

import pytest

_LINES: Final[dict[str, str]] = {}


_MOST_HOLDS: Final = 12
_HOLDS: Final[list[tuple[int, int, str, str]]] = []


class _Holds(logging.Handler):
    """Receives reports of held loops (kbroker/network/loop_watch.py), and keeps the longest by their work in ms."""

    def emit(self, record: logging.LogRecord) -> None:
        if isinstance(record.args, tuple) and len(record.args) > 2:
            held, worked, who = map(str, record.args[:3])
            test = os.environ.get("PYTEST_CURRENT_TEST", "").partition(" ")[0]
            if "test_loop_watch" in test:
                return
            _HOLDS.append((int(float(worked)), int(float(held)), who, test))
            _HOLDS.sort(reverse=True)
            del _HOLDS[_MOST_HOLDS:]


def figure(what: str, figures: str) -> None:
    """Note what a test did; a later note of the same `what` replaces it."""
    _LINES[what] = figures


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the figures."""
    if _LINES:
        terminalreporter.section("figures")
        for what, figures in _LINES.items():
            terminalreporter.write_line(f"{what}: {figures}")
    if _HOLDS:
        terminalreporter.section("longest holds of event loops")
        for worked, held, who, test in _HOLDS:
            terminalreporter.write_line(f"at most {worked} ms of work, {held} ms in all, by {who} ({test})")


@pytest.hookimpl
def pytest_sessionstart() -> None:
    """Start counting anew: one process may run several sessions."""
    _LINES.clear()
    _HOLDS.clear()
    logger = logging.getLogger("kbroker.network.loop_watch")
    if not any(isinstance(each, _Holds) for each in logger.handlers):
        logger.addHandler(_Holds())
