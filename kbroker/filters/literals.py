"""Literals of the filter language: numbers, dates, and the patterns of LIKE. Owns their forms and their limits."""

from __future__ import annotations

import datetime
import re
from typing import Final

from kbroker.filters.expressions import Segment
from kbroker.filters.tokens import FilterError

GREATEST: Final = 10**38
"""The maximum magnitude of a number.

A text with a greater number counts as no number, in an expression and in a record.
"""
_LONGEST_NUMBER: Final = 100
_NUMBER: Final = re.compile(r"[+-]?[0-9]+((?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)")
_DATE: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?(?:Z|[+-][0-9]{2}:[0-9]{2})?)?"
)
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MS: Final = datetime.timedelta(milliseconds=1)


def number(text: str) -> int | float | None:
    """Return the number in a text; an integer is returned exactly.

    Return None if the text is no number, or if the number is too large.
    """
    form = _NUMBER.fullmatch(text) if len(text) <= _LONGEST_NUMBER else None
    if form is None:
        return None
    found = float(text) if form[1] else int(text)
    return found if -GREATEST <= found <= GREATEST else None


def number_literal(text: str, at: int) -> int | float:
    """Return the number of a literal. Raises FilterError."""
    found = number(text)
    if found is None:
        raise FilterError(at, f"a number has at most {_LONGEST_NUMBER} characters and is at most 10 to the power of 38")
    return found


def date_literal(text: str, at: int) -> int:
    """Return a date in ms since 1970, rounded down. The text is in UTC unless it names a zone. Raises FilterError."""
    if _DATE.fullmatch(text):
        try:
            when = datetime.datetime.fromisoformat(text)
            return (when.replace(tzinfo=when.tzinfo or datetime.UTC) - _EPOCH) // _MS
        except ValueError:
            pass
    raise FilterError(at, "this is no date; write TIMESTAMP '2026-01-31T12:00:00Z'")


def segments(pattern: str, escape: str | None, at: int) -> tuple[Segment, ...]:
    """Return the segments of a pattern around its `%`. Raises FilterError for an escape that no sign follows.

    `at` is the index of the pattern's opening quote.
    """
    found: list[Segment] = []
    now: list[str | None] = []
    escaped = False
    for each in pattern:
        if escaped:
            if each not in ("%", "_", escape):
                raise FilterError(at, f"in this pattern {escape!r} must precede %, _ or itself")
            now.append(each)
            escaped = False
        elif each == escape:
            escaped = True
        elif each == "%":
            found.append(tuple(now))
            now = []
        else:
            now.append(None if each == "_" else each)
    if escaped:
        raise FilterError(at, f"this pattern ends with {escape!r}, which must precede %, _ or itself")
    return (*found, tuple(now))
