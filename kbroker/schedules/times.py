"""Times and durations as text: RFC 3339, ISO 8601, and the short form `1h30m`.

Owns these forms, their bounds, and the texts about invalid times. Never reads a clock. All times are in ms since 1970
(UTC).
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

LATEST_MS: Final = 253_402_300_799_999
"""The end of the year 9999: the latest possible time."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)
_LONGEST: Final = 128
"""The maximum number of characters of a time or a duration."""

_NUMBER: Final = re.compile(r"[+-]?[0-9]+", re.ASCII)
_DIGITS: Final = re.compile(r"[0-9]+", re.ASCII)
_RFC_3339: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d+))?(?:([Zz])|([+-]\d\d:\d\d))?", re.ASCII
)
_WEEKS: Final = re.compile(r"P(\d+)W", re.ASCII)
_ISO_8601: Final = re.compile(r"P(?:(\d+)D)?(?:T(?=\d)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)(?:[.,](\d+))?S)?)?", re.ASCII)
_LONG_PARTS: Final = re.compile(r"P[0-9.,DW]*[YM]", re.ASCII)
_SHORT_PART: Final = re.compile(r"(\d+)(?:\.(\d+))?(ms|s|m|h|d)", re.ASCII)
_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class TimeFault(ValueError):  # noqa: N818 - it becomes a part of another error
    """A text is not a time, or not a duration. The message completes the sentence "<name> ..."."""


def read_time(text: str) -> int:
    """Return a time in ms, from a number of ms or RFC 3339; parts of a ms are rounded up. Raises TimeFault."""
    if len(text) <= _LONGEST:
        if _NUMBER.fullmatch(text):
            return _in_bounds(int(text), text)
        found = _RFC_3339.fullmatch(text)
        if found is not None:
            return _in_bounds(_read_rfc_3339(found, text), text)
    raise TimeFault(f"is no time: {shown(text)}. Use ms since 1970, or RFC 3339 as 2030-01-31T09:00:00Z")


def _read_rfc_3339(found: re.Match[str], text: str) -> int:
    day, clock, fraction, zulu, offset = found.groups()
    if not zulu and not offset:
        raise TimeFault(f"has no offset from UTC: {shown(text)}. Add Z, or an offset like +01:00")
    try:
        time = datetime.fromisoformat(f"{day}T{clock}{offset or '+00:00'}")
        whole = (time - _EPOCH) // _MS
    except (ValueError, OverflowError):
        raise TimeFault(f"is no time: {shown(text)}. The calendar or the clock has no such time") from None
    return whole + _part_ms(fraction, 1000)


def read_duration(text: str) -> int:
    """Return a duration in ms, from a number of ms, ISO 8601 (PT5M), or a short form (1h30m). Raises TimeFault.

    Parts of a ms are rounded up.
    """
    ms = _duration(text) if len(text) <= _LONGEST else None
    if ms is None:
        raise TimeFault(
            f"is no duration: {shown(text)}. Use ms, ISO 8601 like PT5M or P1DT12H, or a short form like 1h30m"
        )
    if ms > LATEST_MS:
        raise TimeFault(f"is longer than 9999 years: {shown(text)}")
    return ms


def _duration(text: str) -> int | None:
    if _DIGITS.fullmatch(text):
        return int(text)
    if text[:1] not in ("P", "p"):
        return _short_duration(text)
    upper = text.upper()
    weeks = _WEEKS.fullmatch(upper)
    if weeks is not None:
        return int(weeks[1]) * 7 * _UNITS_MS["d"]
    found = _ISO_8601.fullmatch(upper)
    if found is None:
        if _LONG_PARTS.match(upper):
            raise TimeFault(f"has years or months: {shown(text)}. Their length varies; use days")
        return None
    if len(upper) == 1:
        return None
    days, hours, minutes, seconds, fraction = found.groups(default="0")
    ms = int(days) * _UNITS_MS["d"] + int(hours) * _UNITS_MS["h"] + int(minutes) * _UNITS_MS["m"]
    return ms + int(seconds) * 1000 + _part_ms(fraction, 1000)


def _short_duration(text: str) -> int | None:
    position = total = 0
    while position < len(text):
        found = _SHORT_PART.match(text, position)
        if found is None:
            return None
        whole, fraction, unit = found.groups()
        total += int(whole) * _UNITS_MS[unit] + _part_ms(fraction, _UNITS_MS[unit])
        position = found.end()
    return total if text else None


def _part_ms(fraction: str | None, unit_ms: int) -> int:
    """Return a fraction of a unit in ms, rounded up. `fraction` has the digits after the decimal point."""
    if not fraction:
        return 0
    return -(-int(fraction) * unit_ms // int(f"1{'0' * len(fraction)}"))


def _in_bounds(ms: int, text: str) -> int:
    if ms > LATEST_MS:
        raise TimeFault(f"is after the year 9999: {shown(text)}")
    return ms


def as_text(ms: int) -> str:
    """Return a time as RFC 3339 in UTC; without a fraction for a complete second."""
    if not 0 <= ms <= LATEST_MS:
        return str(ms)
    text = (_EPOCH + timedelta(milliseconds=ms)).isoformat(timespec="milliseconds" if ms % 1000 else "seconds")
    return text.replace("+00:00", "Z")


def shown(text: str) -> str:
    """Return a client's text in the form for a message: in quotes, escaped, and cut."""
    return ascii(text if len(text) <= 60 else f"{text[:60]}...")
