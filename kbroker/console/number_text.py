"""The text of numbers, sizes and times on the pages.

Owns their form. Times are UTC, as in Kafka's tools; a script may convert them.
"""

from __future__ import annotations

import datetime
import time
from typing import Final

NOTHING: Final = "–"
_UNITS: Final = ("B", "kB", "MB", "GB", "TB", "PB")
_STEP: Final = 1000


def number(value: float | None) -> str:
    """Return a number with thousands separators; with a fraction only if the number is small."""
    if value is None:
        return NOTHING
    if isinstance(value, float) and not value.is_integer() and abs(value) < 100:
        return f"{value:.1f}"
    return f"{round(value):,}"


def short_number(value: float | None) -> str:
    """Return a number in few characters: 1.2k, 3.4M."""
    if value is None:
        return NOTHING
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.1f}".removesuffix(".0") + unit
    return f"{value:.1f}".removesuffix(".0")


def size(count: int | None) -> str:
    """Return a number of bytes in a suitable unit, or a placeholder if the number is unknown."""
    if count is None or count < 0:
        return NOTHING
    value, unit = float(count), 0
    while value >= _STEP and unit < len(_UNITS) - 1:
        value, unit = value / _STEP, unit + 1
    return f"{count} B" if not unit else f"{value:.1f} {_UNITS[unit]}"


def moment(ms: int | None) -> str:
    """Return a time in ms since 1970 as text, in UTC."""
    if ms is None or ms < 0:
        return NOTHING
    try:
        when = datetime.datetime.fromtimestamp(0, datetime.UTC) + datetime.timedelta(milliseconds=ms)
    except OverflowError:
        return f"{ms} ms"
    return f"{when:%Y-%m-%d %H:%M:%S}.{when.microsecond // 1000:03d}"


def ago(ms: int | None) -> str:
    """Return the text of the period since a time in ms since 1970."""
    return NOTHING if ms is None or ms < 0 else f"{duration(time.time() - ms / 1000)} ago"


def duration(seconds: float) -> str:
    """Return a span of time in its largest unit."""
    seconds = max(seconds, 0)
    for length, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def span(ms: int) -> str:
    """Return a time span in ms without rounding, in as many units as needed: 1 d 12 h."""
    parts = []
    for length, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"), (1, "ms")):
        count, ms = divmod(ms, length)
        if count:
            parts.append(f"{count:,} {unit}")
    return " ".join(parts) or "0 ms"


def plural(count: int, one: str, many: str | None = None) -> str:
    """Return a count with its noun."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"
