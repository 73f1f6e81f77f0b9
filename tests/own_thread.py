"""Replaces functions for a test's own thread only: brokers of other tests live on in threads of this process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def in_this_thread(replacement: Callable[P, R], real: Callable[P, R]) -> Callable[P, R]:
    """Return a function that acts as `replacement` in the calling thread, and as `real` in all other threads."""
    here = threading.get_ident()

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return (replacement if threading.get_ident() == here else real)(*args, **kwargs)

    return call
