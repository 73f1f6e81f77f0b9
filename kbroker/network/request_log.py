"""What is measured of each request, once it is answered: for the logger `kafka.request.logger` at DEBUG, and traces.

Owns how it is measured, and the line in the log. Never tells what stands in a request or an answer: there may be
secrets and other people's data in it. Costs nothing while the logger is above DEBUG and nobody traces; what is told of
is then run as a `Work`.
"""

from __future__ import annotations

import logging
from collections.abc import Coroutine, Generator
from time import perf_counter
from types import coroutine
from typing import Any, Final, cast

from kbroker.handlers.registry import RequestContext
from kbroker.network.measured import Sink, Told
from kbroker.security.principal import printable

log = logging.getLogger("kafka.request.logger")
Steps = Coroutine[Any, Any, Any]
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


_Facts = tuple[str, int, int, int, str | None, str, str, str | None, int]
"""What is known of a request when it comes: the first fields of Told."""


def enabled() -> bool:
    """Whether requests are told of."""
    return log.isEnabledFor(logging.DEBUG)


def told(
    steps: Steps, work: Any, context: RequestContext, correlation_id: int, since: float, sink: Sink | None = None
) -> Steps:
    """Return the same steps of a `Work`, with a line in the log at their end, and word to a `sink`.

    `since` is the moment of perf_counter at which the loop began with the request. Time at work is what the loop gave
    to it; the rest of the whole time the request waited, for what it asked for or for its turn.
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
        found = Told(*facts, answered, _milliseconds(total), _milliseconds(local), work.pause_ms, work.error_code)
        if enabled():
            _tell(found)
        if sink is not None:
            sink(found)
        return end.value
    finally:
        steps.close()


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 3)


def _tell(found: Told) -> None:
    facts = tuple(getattr(found, name) for name in _FIELDS)
    log.debug(_LINE, *facts, extra=dict(zip(_FIELDS, facts, strict=True)))


def _shown(name: str | None) -> str | None:
    return None if name is None else printable(name[:_LONGEST])
