"""An expression as a tree: operands, and conditions on them. Owns the data only; the parser builds it.

The nodes are named tuples: as dataclasses they would take most of the time of an import.

Every operand has `at`, the index of its first character in the expression, for messages.
"""

from __future__ import annotations

from typing import Final, NamedTuple

# -- operands


class Literal(NamedTuple):
    """A text, a number, TRUE or FALSE. A date is its milliseconds since 1970."""

    value: str | int | float | bool
    at: int


class Header(NamedTuple):
    """The value of the last header with this name."""

    name: str
    at: int


class Key(NamedTuple):
    """The record's key, as text."""

    at: int


class Whole(NamedTuple):
    """The record's value, as text."""

    at: int


class Path(NamedTuple):
    """A part of the record's decoded value: names of fields, and indexes of lists."""

    steps: tuple[str | int, ...]
    at: int


class Number(NamedTuple):
    """The record's timestamp (ms), offset or partition."""

    name: str
    at: int


class Arithmetic(NamedTuple):
    """A calculation: `sign` is one of + - * /."""

    sign: str
    left: Operand
    right: Operand
    depth: int
    """The depth of nested calculations in this calculation, counted from 1."""
    at: int


Segment = tuple[str | None, ...]
"""Characters of a pattern. None stands for `_`, which matches any single character."""
Operand = Literal | Header | Key | Whole | Path | Number | Arithmetic
Field = Header | Key | Whole | Path | Number

# -- conditions


class Always(NamedTuple):
    """A condition that holds for every record, or for none."""

    holds: bool


class Compare(NamedTuple):
    """A comparison: `sign` is one of = <> < <= > >=."""

    sign: str
    left: Operand
    right: Operand


class Within(NamedTuple):
    """`operand IN (values)`."""

    operand: Operand
    values: tuple[Literal, ...]


class Like(NamedTuple):
    """`operand LIKE pattern`.

    The segments are the parts of the pattern around its `%`; without `%` there is one segment.
    """

    operand: Header | Key | Whole | Path
    segments: tuple[Segment, ...]


class Missing(NamedTuple):
    """`field IS NULL`."""

    field: Field


class Truth(NamedTuple):
    """A field that is itself the condition. The condition holds if the field's value is true."""

    field: Header | Path


class Both(NamedTuple):
    """Conditions joined by AND."""

    parts: tuple[Condition, ...]


class Either(NamedTuple):
    """Conditions joined by OR."""

    parts: tuple[Condition, ...]


class Opposite(NamedTuple):
    """`NOT part`."""

    part: Condition


Condition = Always | Compare | Within | Like | Missing | Truth | Both | Either | Opposite
OPPOSITES: Final = {"=": "<>", "<>": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
"""For each comparison, its opposite: true where the comparison is false, and unknown where it is unknown."""
TURNED: Final = {"=": "=", "<>": "<>", "<": ">", ">": "<", "<=": ">=", ">=": "<="}
"""For each comparison, the comparison that means the same after the two sides are exchanged."""
