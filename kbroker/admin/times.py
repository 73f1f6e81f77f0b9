"""Times as people type them: ms since 1970, or ISO 8601, in UTC without a zone."""

from __future__ import annotations

import datetime

from kbroker.admin.errors import WrongInput


def parse_time(text: str) -> int:
    """Return a time in ms, from ms or ISO 8601; raises WrongInput."""
    if text.isdecimal():
        return int(text)
    try:
        return parse_iso(text)
    except ValueError:
        raise WrongInput(f"{text!r} is no time: write ms since 1970 or 2026-01-31T12:00:00Z") from None


def parse_iso(text: str) -> int:
    """Return a time in ms, from ISO 8601; raises ValueError."""
    when = datetime.datetime.fromisoformat(text)
    return int(when.replace(tzinfo=when.tzinfo or datetime.UTC).timestamp() * 1000)
