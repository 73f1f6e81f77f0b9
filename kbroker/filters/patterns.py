"""LIKE: a pattern as a function of a text, with bounded work.

Owns the matching. Between two `%` the leftmost place of a segment is always sufficient, so no other place is tried.
Only a segment with `_` between two `%` can compare a character several times; its work has a limit.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from kbroker.filters.expressions import Segment

MOST_WORK: Final = 4_000_000
"""The maximum product of the text's length and the pattern's length. Applies to patterns with `_` between two `%`."""
Match = Callable[[str], bool | None]
"""A function that returns whether a text matches; None if the check would take too long."""


def matcher(segments: tuple[Segment, ...]) -> Match:
    """Return the function of a pattern."""
    if len(segments) == 1:
        return _fixed(segments[0])
    first, last = segments[0], segments[-1]
    between = [each for each in segments[1:-1] if each]
    begins, ends = _fixed(first), _fixed(last)
    length = len(first) + len(last)
    if not between:
        return lambda text: len(text) >= length and begins(text[: len(first)]) and ends(text[len(text) - len(last) :])
    finders = [_finder(each) for each in between]
    size = sum(map(len, segments))
    limited = any(None in each for each in between)

    def match(text: str) -> bool | None:
        stop = len(text) - len(last)
        if len(text) < size or not begins(text[: len(first)]) or not ends(text[stop:]):
            return False
        if limited and len(text) * size > MOST_WORK:
            return None
        at = len(first)
        for find in finders:
            at = find(text, at, stop)
            if at < 0:
                return False
        return True

    return match


def _fixed(segment: Segment) -> Callable[[str], bool]:
    """Return a function that tests a text of the segment's length."""
    if None not in segment:
        whole = _literal(segment)
        return lambda text: text == whole
    length = len(segment)
    known = [(index, each) for index, each in enumerate(segment) if each is not None]
    return lambda text: len(text) == length and all(text[index] == each for index, each in known)


def _finder(segment: Segment) -> Callable[[str, int, int], int]:
    """Return a function that finds the segment in a range of a text, and returns the index after the segment, or -1."""
    length = len(segment)
    if None not in segment:
        whole = _literal(segment)

        def find(text: str, begin: int, end: int) -> int:
            at = text.find(whole, begin, end)
            return at + length if at >= 0 else -1

        return find
    pattern = re.compile("".join("." if each is None else re.escape(each) for each in segment), re.DOTALL)

    def search(text: str, begin: int, end: int) -> int:
        found = pattern.search(text, begin, end)
        return found.end() if found is not None else -1

    return search


def _literal(segment: Segment) -> str:
    return "".join(each for each in segment if each is not None)
