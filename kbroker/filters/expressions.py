"""An expression as a tree: operands, and conditions on them. Owns the data only; the parser builds it.

Every operand has `at`, the index of its first character in the expression, for messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# -- operands


@dataclass(frozen=True, slots=True)
class Literal:
    """A text, a number, TRUE or FALSE. A date is its milliseconds since 1970."""

    value: str | int | float | bool
    at: int


@dataclass(frozen=True, slots=True)
class Header:
    """The value of the last header of this name."""

    name: str
    at: int


@dataclass(frozen=True, slots=True)
class Key:
    """The record's key, as text."""

    at: int


@dataclass(frozen=True, slots=True)
class Whole:
    """The record's value, as text."""

    at: int


@dataclass(frozen=True, slots=True)
class Path:
    """A part of the record's decoded value: names of fields, and indexes of lists."""

    steps: tuple[str | int, ...]
    at: int


@dataclass(frozen=True, slots=True)
class Number:
    """The record's timestamp (ms), offset or partition."""

    name: str
    at: int


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """A calculation: `sign` is one of + - * /."""

    sign: str
    left: Operand
    right: Operand
    depth: int
    """How deep calculations are nested in it, counted from 1."""
    at: int


Segment = tuple[str | None, ...]
"""Characters of a pattern; None is `_`, any one character."""
Operand = Literal | Header | Key | Whole | Path | Number | Arithmetic
Field = Header | Key | Whole | Path | Number

# -- conditions


@dataclass(frozen=True, slots=True)
class Always:
    """A condition that holds for every record, or for none."""

    holds: bool


@dataclass(frozen=True, slots=True)
class Compare:
    """A comparison: `sign` is one of = <> < <= > >=."""

    sign: str
    left: Operand
    right: Operand


@dataclass(frozen=True, slots=True)
class Within:
    """`operand IN (values)`."""

    operand: Operand
    values: tuple[Literal, ...]


@dataclass(frozen=True, slots=True)
class Like:
    """`operand LIKE pattern`. The segments are the parts of the pattern around its `%`; without `%` there is one."""

    operand: Header | Key | Whole | Path
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class Missing:
    """`field IS NULL`."""

    field: Field


@dataclass(frozen=True, slots=True)
class Truth:
    """A field that is itself the condition: it must be true."""

    field: Header | Path


@dataclass(frozen=True, slots=True)
class Both:
    """Conditions joined by AND."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Either:
    """Conditions joined by OR."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Opposite:
    """`NOT part`."""

    part: Condition


Condition = Always | Compare | Within | Like | Missing | Truth | Both | Either | Opposite
OPPOSITES: Final = {"=": "<>", "<>": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
"""The comparison that holds where one is false; both are unknown for the same operands."""
TURNED: Final = {"=": "=", "<>": "<>", "<": ">", ">": "<", "<=": ">=", ">=": "<="}
"""The comparison with its sides exchanged."""
