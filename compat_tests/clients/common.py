"""What the scenarios of several clients share: waiting, outcomes, and payloads.

Owns no client.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

from compat_tests.harness.recorded import HOUR_AGO_MS

WAIT_S: Final = 30.0
# An hour ago in ms: one moment for both sides, and recent enough that retention leaves records of it alone.
T0: Final = HOUR_AGO_MS
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")

T = TypeVar("T")


def wait_for(what: str, condition: Callable[[], T | None], timeout: float = WAIT_S) -> T:
    """Call `condition` until it returns something true, and return that; fail after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not happen within {timeout} s; last seen: {found!r}")
        time.sleep(0.05)


def outcome(call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Return what `call` returns, or the kind of the error that it raises."""
    try:
        return call(*arguments, **options)
    except Exception as error:  # noqa: BLE001 - every error is an observation
        return {"error": type(error).__name__}


def bulk(count: int, size: int = 100) -> Iterable[bytes]:
    """Yield `count` values of about `size` bytes that compress, each different."""
    for number in range(count):
        yield f"{number:08d}-".encode() * (size // 9)
