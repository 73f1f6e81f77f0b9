"""The table of exchanges, by subject. A sequence is a function of a Wire; its topics and groups have its name."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

from compat_tests.wire.session import Wire

SEQUENCES: dict[str, Callable[[Wire], None]] = {}


def sequence(function: Callable[[Wire], None]) -> Callable[[Wire], None]:
    """Register a sequence under its function's name."""
    name = function.__name__.replace("_", "-")
    assert name not in SEQUENCES
    SEQUENCES[name] = function
    return function


def versions(request: Any) -> range:
    """Return every version of a request class."""
    return range(request.VERSIONS.low, request.VERSIONS.high + 1)


def load_all() -> dict[str, Callable[[Wire], None]]:
    """Import every subject."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return SEQUENCES
