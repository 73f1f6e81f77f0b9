"""Compiles an expression to a function of a record.

Owns the meaning of conditions. SQL's logic has three values (true, false and unknown), and a record matches if the
expression is true for it. So NOT is moved inwards until it applies only to single comparisons: where `a = b` is false,
`a <> b` is true, and for unknown operands neither is true. Then each test only has to return whether its condition is
true.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, Final

from kbroker.filters.expressions import (
    OPPOSITES,
    TURNED,
    Always,
    Arithmetic,
    Both,
    Compare,
    Condition,
    Either,
    Header,
    Key,
    Like,
    Literal,
    Missing,
    Number,
    Operand,
    Opposite,
    Path,
    Truth,
    Whole,
    Within,
)
from kbroker.filters.literals import number
from kbroker.filters.operands import Document, Read, Row, is_number, numeric, path, raw, text, truth
from kbroker.filters.patterns import matcher

Test = Callable[[Row, int, Document], bool]
"""A function that returns whether a condition is true for a record, its partition and its document."""
_Order = Callable[[Any, Any], bool]
_ORDERS: Final[dict[str, _Order]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def compiled(found: Condition, wanted: bool = True) -> Test:
    """Return a test that is true where the condition has the value `wanted`.

    Where the condition is unknown, the test is false.
    """
    match found:
        case Always(holds):
            outcome = holds == wanted
            return lambda _row, _partition, _document: outcome
        case Opposite(part):
            return compiled(part, not wanted)
        case Both(parts):
            return (_all if wanted else _any)([compiled(part, wanted) for part in parts])
        case Either(parts):
            return (_any if wanted else _all)([compiled(part, wanted) for part in parts])
        case Compare(sign, left, right):
            return _comparison(sign if wanted else OPPOSITES[sign], left, right)
        case Within():
            return _within(found, wanted)
        case Like():
            return _like(found, wanted)
        case Missing(field):
            return _missing(field, wanted)
        case Truth(field):
            return _comparison("=", field, Literal(wanted, field.at))


def reads_value(found: Condition | Operand) -> bool:
    """Return whether an expression reads a part of the decoded value."""
    match found:
        case Path():
            return True
        case Opposite(part):
            return reads_value(part)
        case Both(parts) | Either(parts):
            return any(reads_value(part) for part in parts)
        case Compare(_, left, right) | Arithmetic(_, left, right):
            return reads_value(left) or reads_value(right)
        case Within(operand) | Like(operand) | Missing(operand) | Truth(operand):
            return reads_value(operand)
        case _:
            return False


def _all(tests: Sequence[Test]) -> Test:
    if len(tests) == 2:
        first, second = tests
        return lambda row, partition, document: first(row, partition, document) and second(row, partition, document)

    def every(row: Row, partition: int, document: Document) -> bool:
        for test in tests:  # noqa: SIM110 - all() takes twice as long
            if not test(row, partition, document):
                return False
        return True

    return every


def _any(tests: Sequence[Test]) -> Test:
    def some(row: Row, partition: int, document: Document) -> bool:
        for test in tests:  # noqa: SIM110 - likewise
            if test(row, partition, document):
                return True
        return False

    return some


# -- comparisons


def _comparison(sign: str, left: Operand, right: Operand) -> Test:
    if isinstance(left, Literal) and not isinstance(right, Literal):
        return _comparison(TURNED[sign], right, left)
    wanted = right.value if isinstance(right, Literal) else None
    if isinstance(wanted, str) and sign in ("=", "<>") and isinstance(left, Header | Key | Whole):
        return _same_bytes(left, wanted, equal=sign == "=")
    order = _ORDERS[sign]
    if any(_is_number(each) for each in (left, right)):
        return _of_numbers(order, left, right)
    if isinstance(right, Literal):
        return _with_literal(order, left, right.value)
    return _of_any(order, sign, left, right)


def _is_number(operand: Operand) -> bool:
    if isinstance(operand, Literal):
        return not isinstance(operand.value, str | bool)
    return isinstance(operand, Number | Arithmetic)


def _same_bytes(field: Header | Key | Whole, wanted: str, *, equal: bool) -> Test:
    """Compare bytes without decoding them: each text has only one form in UTF-8."""
    of, data = raw(field), wanted.encode()
    if equal:
        return lambda row, _partition, _document: of(row) == data

    def differs(row: Row, _partition: int, _document: Document) -> bool:
        found = of(row)
        return found is not None and found != data and _is_text(found)

    return differs


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _of_numbers(order: _Order, left: Operand, right: Operand) -> Test:
    first, second = numeric(left), numeric(right)
    if isinstance(left, Number) and isinstance(right, Literal):
        bound = right.value
        return lambda row, partition, document: order(first(row, partition, document), bound)

    def test(row: Row, partition: int, document: Document) -> bool:
        one = first(row, partition, document)
        if one is None:
            return False
        other = second(row, partition, document)
        return other is not None and order(one, other)

    return test


def _with_literal(order: _Order, left: Operand, wanted: str | float | bool) -> Test:
    """Compare with a text, TRUE or FALSE."""
    if isinstance(left, Literal):
        outcome = type(left.value) is type(wanted) and order(left.value, wanted)
        return lambda _row, _partition, _document: outcome
    kind = type(wanted)
    if isinstance(left, Path):
        part = path(left)

        def of_part(row: Row, partition: int, document: Document) -> bool:
            value = part(row, partition, document)
            return type(value) is kind and order(value, wanted)

        return of_part
    assert isinstance(left, Header | Key | Whole)
    of = text(left)
    is_truth = kind is bool

    def of_text(row: Row, partition: int, document: Document) -> bool:
        value: str | bool | None = of(row, partition, document)
        if is_truth and value is not None:
            value = truth(str(value))
        return value is not None and order(value, wanted)

    return of_text


def _of_any(order: _Order, sign: str, left: Operand, right: Operand) -> Test:
    """Compare two fields. Only the record shows the kinds of their values."""
    (first, is_text), (second, is_other_text) = _field(left), _field(right)
    orders_truths = sign in ("=", "<>")

    def test(row: Row, partition: int, document: Document) -> bool:
        one, other = first(row, partition, document), second(row, partition, document)
        if one is None or other is None:
            return False
        if is_text and type(other) is not str:
            one = _like_other(one, other)
        elif is_other_text and type(one) is not str:
            other = _like_other(other, one)
        if is_number(one):
            return is_number(other) and order(one, other)
        kind = type(one)
        return (kind is str or (kind is bool and orders_truths)) and type(other) is kind and order(one, other)

    return test


def _like_other(content: str, other: Any) -> str | float | bool | None:
    """Return a text in the type of the value that it is compared with: a number, TRUE or FALSE, or the text itself."""
    if is_number(other):
        return number(content)
    return truth(content) if type(other) is bool else content


def _field(operand: Operand) -> tuple[Read, bool]:
    """Return the function that reads a field, and whether it is always a text."""
    if isinstance(operand, Path):
        return path(operand), False
    assert isinstance(operand, Header | Key | Whole)
    return text(operand), True


# -- other conditions


def _within(found: Within, wanted: bool) -> Test:
    """Compare with each value of a list; for a list of only texts or only numbers, this is one look-up in a set."""
    values = [each.value for each in found.values]
    if all(type(each) is str for each in values) and isinstance(found.operand, Header | Key | Whole):
        return _among_bytes(found.operand, frozenset(str(each).encode() for each in values), wanted)
    if all(type(each) is str for each in values) and isinstance(found.operand, Path):
        return _among(_text_part(found.operand), frozenset(values), wanted)
    if not any(isinstance(each, str | bool) for each in values):
        return _among(numeric(found.operand), frozenset(values), wanted)
    tests = [_comparison("=" if wanted else "<>", found.operand, each) for each in found.values]
    return _any(tests) if wanted else _all(tests)


def _among_bytes(field: Header | Key | Whole, there: frozenset[bytes], wanted: bool) -> Test:
    of = raw(field)
    if wanted:
        return lambda row, _partition, _document: of(row) in there

    def absent(row: Row, _partition: int, _document: Document) -> bool:
        data = of(row)
        return data is not None and data not in there and _is_text(data)

    return absent


def _among(read: Read, there: frozenset[Any], wanted: bool) -> Test:
    def test(row: Row, partition: int, document: Document) -> bool:
        value = read(row, partition, document)
        return value is not None and (value in there) is wanted

    return test


def _text_part(found: Path) -> Read:
    part = path(found)

    def read(row: Row, partition: int, document: Document) -> str | None:
        value = part(row, partition, document)
        return value if type(value) is str else None

    return read


def _like(found: Like, wanted: bool) -> Test:
    read, matches = _field(found.operand)[0], matcher(found.segments)

    def test(row: Row, partition: int, document: Document) -> bool:
        value = read(row, partition, document)
        return type(value) is str and matches(value) is wanted

    return test


def _missing(field: Operand, wanted: bool) -> Test:
    if isinstance(field, Path):
        part = path(field)
        return lambda row, partition, document: (part(row, partition, document) is None) == wanted
    if isinstance(field, Header | Key | Whole):
        of = raw(field)
        return lambda row, _partition, _document: (of(row) is None) == wanted
    return lambda _row, _partition, _document: not wanted
