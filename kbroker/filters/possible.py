"""Finds the parts of a log that can have a matching record, according to an index of headers.

Owns the rule that no match is ever missed: if the index cannot decide a condition, every part may have a match. The
index decides whether a header is equal to a text or to one of several texts, and such conditions joined by AND and OR.
A set of parts is a number with a bit for each part.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import and_, or_

from kbroker.filters.expressions import (
    OPPOSITES,
    TURNED,
    Always,
    Both,
    Compare,
    Condition,
    Either,
    Header,
    Literal,
    Operand,
    Opposite,
    Within,
)

Lookup = Callable[[str, bytes], int | None]
"""A function that returns the parts that may have a record with this header and value; None if they are unknown."""


def possible(found: Condition, lookup: Lookup, every: int, wanted: bool = True) -> int:
    """Return the parts that may have a record for which the condition `found` is `wanted`. `every` has all parts."""
    match found:
        case Always(holds):
            return every if holds == wanted else 0
        case Opposite(part):
            return possible(part, lookup, every, not wanted)
        case Both(parts) | Either(parts):
            each = (possible(part, lookup, every, wanted) for part in parts)
            return reduce(and_ if isinstance(found, Both) == wanted else or_, each)
        case Compare(sign, left, right):
            return _equal(sign if wanted else OPPOSITES[sign], left, right, lookup, every)
        case Within(operand, values) if wanted:
            return reduce(or_, (_equal("=", operand, each, lookup, every) for each in values), 0)
        case _:
            return every


def tested(found: Condition) -> frozenset[str]:
    """Return the headers that are looked up in an index."""
    match found:
        case Opposite(part):
            return tested(part)
        case Both(parts) | Either(parts):
            return frozenset().union(*map(tested, parts))
        case Compare(_, left, right):
            return frozenset(each.name for each in (left, right) if isinstance(each, Header))
        case Within(operand):
            return frozenset((operand.name,)) if isinstance(operand, Header) else frozenset()
        case _:
            return frozenset()


def _equal(sign: str, left: Operand, right: Operand, lookup: Lookup, every: int) -> int:
    if isinstance(left, Literal) and not isinstance(right, Literal):
        return _equal(TURNED[sign], right, left, lookup, every)
    if (
        sign != "="
        or not isinstance(left, Header)
        or not isinstance(right, Literal)
        or not isinstance(right.value, str)
    ):
        return every
    found = lookup(left.name, right.value.encode())
    return every if found is None else found
