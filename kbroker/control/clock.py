"""Time and reset over HTTP. Owns the format of a time; testing/steered_clock.py describes the effects of a move."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from kbroker.control.operations import Control, Operation
from kbroker.control.values import Refused, Values
from kbroker.fields import Field

_YEARS_MS: Final = 100 * 365 * 24 * 3600 * 1000
_LAST_MS: Final = 2 * _YEARS_MS
_BOUNDS: Final = "the time lies between 1970 and 2169"
_UNITS: Final = {"days": 86_400_000, "hours": 3_600_000, "minutes": 60_000, "seconds": 1000, "ms": 1}


def _as_json(control: Control) -> dict[str, Any]:
    clock = control.subject.clock
    now_ms = clock.now_ms()
    return {
        "now": datetime.fromtimestamp(now_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "now_ms": now_ms,
        "ahead_ms": clock.ahead_ms,
    }


def _advance(control: Control, values: Values) -> dict[str, Any]:
    if not values:
        raise Refused(400, f"say how long: {', '.join(_UNITS)}")
    step_ms = sum(_UNITS[unit] * count for unit, count in values.items())
    if step_ms > _YEARS_MS:
        raise Refused(400, "that is more than a hundred years")
    with control.changing:
        clock = control.subject.clock
        if clock.now_ms() + step_ms > _LAST_MS:
            raise Refused(400, _BOUNDS)
        clock.advance(**values)
    return _as_json(control)


def _set(control: Control, values: Values) -> dict[str, Any]:
    if len(values) != 1:
        raise Refused(400, "say either now or now_ms")
    with control.changing:
        control.subject.clock.set(_moment(values))
    return _as_json(control)


def _moment(values: Values) -> float:
    if "now_ms" in values:
        return float(values["now_ms"]) / 1000
    try:
        moment = datetime.fromisoformat(values["now"])
    except ValueError:
        raise Refused(400, f"now must be a time like 2026-01-31T12:00:00Z, not {values['now'][:100]!r}") from None
    if moment.tzinfo is None:
        raise Refused(400, "now must include its zone, like 2026-01-31T12:00:00Z")
    if not 0 <= moment.timestamp() * 1000 <= _LAST_MS:
        raise Refused(400, _BOUNDS)
    return moment.timestamp()


def _reset(control: Control, _: Values) -> dict[str, Any]:
    with control.changing:
        control.subject.reset()
        control.known.clear()
    return {"reset": True}


OPERATIONS: Final = (
    Operation("GET", "/clock", "getClock", "The broker's time.", "Clock", work=lambda control, _: _as_json(control)),
    Operation(
        "PUT", "/clock", "setClock", "Set the time. A time before now sets back only the wall clock.",
        "Clock", work=_set,
        body=(
            Field("now", "string", "A time such as 2026-01-31T12:00:00Z."),
            Field("now_ms", "integer", "The time in ms since 1970.", least=0, most=_LAST_MS),
        ),
    ),
    Operation(
        "POST", "/clock/advance", "advanceClock",
        "Move the time forward: retention runs, sessions and transactions expire. The answer comes after all due work.",
        "Clock", work=_advance,
        body=tuple(Field(unit, "number", f"The number of {unit}.", least=0, most=_YEARS_MS) for unit in _UNITS),
    ),
    Operation(
        "POST", "/reset", "reset",
        "Return to the state at the start: no topics, groups, transactions, faults, requests or changed settings.",
        "Reset", work=_reset,
    ),
)  # fmt: skip
