"""A line in the log for each request, once it is answered: the logger `kafka.request.logger`, at DEBUG.

Owns what such a line tells. Never tells what stands in a request or an answer: there may be secrets and other people's
data in it. Costs nothing while the logger is above DEBUG; what is told of is then run as a `Work`.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from time import perf_counter
from typing import Any, Final

from kbroker.handlers.registry import RequestContext
from kbroker.security.principal import printable

log = logging.getLogger("kafka.request.logger")
Steps = Generator[Any, Any, Any]
_LONGEST: Final = 500
"""Characters that a line gives to a name that a client chose."""
_LINE: Final = (
    "Completed request: %s v%d, correlation id %d, client %s from %s on %s as %s: "
    "%d bytes, answered with %d, in %.3f ms, of which %.3f at work, throttled for %d ms"
)
_FIELDS: Final = (
    "api", "api_version", "correlation_id", "client_id", "client_host", "listener", "principal", "request_bytes",
    "response_bytes", "total_ms", "local_ms", "throttle_ms",
)  # fmt: skip


def enabled() -> bool:
    """Whether requests are told of."""
    return log.isEnabledFor(logging.DEBUG)


def told(steps: Steps, work: Any, context: RequestContext, correlation_id: int, since: float) -> Steps:
    """Return the same steps of a `Work`, with a line in the log at their end.

    `since` is the moment of perf_counter at which the loop began with the request. Time at work is what the loop gave
    to it; the rest of the whole time the request waited, for what it asked for or for its turn.
    """
    facts = (
        work.entry.api.name, context.version, correlation_id, _shown(context.client_id),
        context.client_host.removeprefix("/"), context.listener, _shown(str(context.principal)), work.size,
    )  # fmt: skip
    return _timed(steps, work, facts, since, perf_counter() - since)


def _timed(steps: Steps, work: Any, facts: tuple[Any, ...], since: float, local: float) -> Steps:
    value: Any = None
    error: BaseException | None = None
    try:
        while True:
            began = perf_counter()
            try:
                waits = steps.send(value) if error is None else steps.throw(error)
            finally:
                local += perf_counter() - began
            value = error = None
            try:
                value = yield waits
            except Exception as failed:  # noqa: BLE001 - it is the steps' to deal with
                error = failed
    except StopIteration as end:
        answered = 0
        if end.value is not None:
            out, spill = end.value
            answered = len(out) + sum(len(piece) for _, piece in spill)
        _tell((*facts, answered, *_milliseconds(perf_counter() - since, local), work.pause_ms))
        return end.value
    finally:
        steps.close()


def _milliseconds(*seconds: float) -> tuple[float, ...]:
    return tuple(round(each * 1000, 3) for each in seconds)


def _tell(facts: tuple[Any, ...]) -> None:
    log.debug(_LINE, *facts, extra=dict(zip(_FIELDS, facts, strict=True)))


def _shown(name: str | None) -> str | None:
    return None if name is None else printable(name[:_LONGEST])
