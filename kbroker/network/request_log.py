"""Measurements of each answered request: for the logger `kafka.request.logger` at DEBUG, and for traces.

Owns the measurements, and the line in the log. Never logs the content of requests and responses, which may contain
secrets and personal data. There is no cost while the logger is above DEBUG and there are no traces. Measured requests
run as a `Work`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Generator
from time import perf_counter
from types import coroutine
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from kbroker.security.principal import printable

if TYPE_CHECKING:  # the process for traces imports this module without the broker
    from kbroker.handlers.registry import RequestContext


class Measured(NamedTuple):
    """The measurements of one request. Sizes are in bytes, times in ms."""

    api: str
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    client_host: str
    listener: str
    principal: str | None
    request_bytes: int
    response_bytes: int
    total_ms: float
    """The time from the loop's first work on the request to its response."""
    local_ms: float
    """The part of `total_ms` in which the loop worked on the request."""
    throttle_ms: int
    error_code: int
    """The error code of the complete request; 0 if there is none, or if each part of the response has its own code."""


Sink = Callable[[Measured], None]


log = logging.getLogger("kafka.request.logger")
Steps = Coroutine[Any, Any, Any]
_LONGEST: Final = 500
"""The maximum number of characters of a client-chosen name in a line."""
_LINE: Final = (
    "Completed request: %s v%d, correlation id %d, client %s from %s on %s as %s: "
    "%d bytes, answered with %d, in %.3f ms, of which %.3f at work, throttled for %d ms"
)
_FIELDS: Final = (
    "api", "api_version", "correlation_id", "client_id", "client_host", "listener", "principal", "request_bytes",
    "response_bytes", "total_ms", "local_ms", "throttle_ms",
)  # fmt: skip


_Facts = tuple[str, int, int, int, str | None, str, str, str | None, int]
"""The facts that are known when a request arrives: the first fields of Measured."""


def enabled() -> bool:
    """Whether requests are logged."""
    return log.isEnabledFor(logging.DEBUG)


def measured(
    steps: Steps, work: Any, context: RequestContext, correlation_id: int, since: float, sink: Sink | None = None
) -> Steps:
    """Return a coroutine that runs the steps of a `Work`, then logs a line and calls `sink`.

    `since` is the perf_counter time at which the loop began to run the request. The working time is the time that the
    loop spent on the request. In the rest of the total time the request waited for a future or for its turn.
    """
    facts = (
        work.entry.api.name, work.entry.api.key, context.version, correlation_id, _shown(context.client_id),
        context.client_host.removeprefix("/"), context.listener, _shown(str(context.principal)), work.size,
    )  # fmt: skip
    return cast("Steps", _timed(steps, work, facts, since, perf_counter() - since, sink))


@coroutine
def _timed(
    steps: Steps, work: Any, facts: _Facts, since: float, local: float, sink: Sink | None
) -> Generator[Any, None, Any]:
    try:
        while True:
            began = perf_counter()
            try:
                waits = steps.send(None)
            finally:
                local += perf_counter() - began
            yield waits
    except StopIteration as end:
        answered = 0
        if end.value is not None:
            out, spill = end.value
            answered = len(out) + sum(len(piece) for _, piece in spill)
        total = perf_counter() - since
        found = Measured(*facts, answered, _milliseconds(total), _milliseconds(local), work.pause_ms, work.error_code)
        if enabled():
            _log(found)
        if sink is not None:
            sink(found)
        return end.value
    finally:
        steps.close()


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 3)


def _log(found: Measured) -> None:
    facts = tuple(getattr(found, name) for name in _FIELDS)
    log.debug(_LINE, *facts, extra=dict(zip(_FIELDS, facts, strict=True)))


def _shown(name: str | None) -> str | None:
    return None if name is None else printable(name[:_LONGEST])
