"""The form of an operation of the control API: one declaration for both HTTP and the OpenAPI document.

The operations themselves are in the modules of their subjects; application.py lists all of them.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from kbroker.control.values import Values
from kbroker.fields import Field

if TYPE_CHECKING:  # the command line imports the declarations without loading a broker
    from kbroker.control.known_faults import KnownFaults
    from kbroker.control.known_snapshots import KnownSnapshots
    from kbroker.control.subject import Subject

LOOK_S: Final = 0.02
"""The seconds between two checks of a condition. Only the server's thread waits, never the broker's."""


@dataclass
class Control:
    """The state that operations use."""

    subject: Subject
    known: KnownFaults
    snapshots: KnownSnapshots
    changing: threading.Lock = field(default_factory=threading.Lock)
    """A lock for work that must not run twice at the same time: to move the clock, or to reset."""
    ending: asyncio.Event = field(default_factory=asyncio.Event)
    """An event that is set when the server stops, so that waiting operations end."""


@dataclass(frozen=True)
class Operation:
    """One method of one path. Exactly one of `work`, `wait` and `lines` is set.

    `work` runs in a thread of its own and may wait for the broker. `wait` is awaited in the server's loop, may take
    long, and is cancelled when the client disconnects. `lines` yields values for newline-delimited JSON until the
    reader disconnects.
    """

    method: str
    path: str
    name: str
    summary: str
    answer: str
    """The schema of the answer (see document.py)."""
    work: Callable[[Control, Values], Any] | None = None
    wait: Callable[[Control, Values], Coroutine[Any, Any, Any]] | None = None
    lines: Callable[[Control, Values], AsyncIterator[Any]] | None = None
    status: int = 200
    query: tuple[Field, ...] = ()
    body: tuple[Field, ...] | None = None

    @cached_property
    def places(self) -> tuple[str, ...]:
        """The names of the parameters in the path."""
        return tuple(re.findall(r"{(\w+)", self.path))


async def until(holds: Callable[[], bool], timeout_ms: int | None, ending: asyncio.Event) -> bool:
    """Wait until a condition holds. Return False if it does not hold within `timeout_ms` (None: ten seconds)."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + (10_000 if timeout_ms is None else timeout_ms) / 1000
    while not holds():
        if loop.time() >= deadline or ending.is_set():
            return False
        await asyncio.sleep(LOOK_S)
    return True
