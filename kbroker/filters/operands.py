"""The operands of an expression: functions that read a record or its decoded value, or that calculate.

Owns the definition of a field: the header that counts, the bytes that are text, the values that are JSON. An unknown
operand has the value None. An operand never raises, and its work is limited by the size of the record.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import Any, Final, Protocol

from kbroker.filters.expressions import Arithmetic, Header, Key, Literal, Number, Operand, Path, Whole
from kbroker.filters.literals import GREATEST, number

LARGEST_DOCUMENT: Final = 256 * 1024
"""The maximum number of bytes that are decoded as JSON."""
DEEPEST_DOCUMENT: Final = 100
"""The maximum depth of nested lists and objects in a JSON value."""
_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*"?', re.DOTALL)
_NO_BRACKETS: Final = bytes(each for each in range(256) if each not in b"[]{}")
_DEPTHS: Final = [1 if each in b"[{" else -1 for each in range(256)]
_LONE: Final = re.compile("[\ud800-\udfff]")
_TRUTHS: Final = {"true": True, "false": False}


class Row(Protocol):
    """The fields of a record.

    The records of kbroker's protocol, of admin/fetching.py and of kafka-python have these fields.
    """

    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]: ...


Decode = Callable[[bytes], Any]
"""A function that returns the decoded form of a value (dicts, lists, texts, numbers, bools and None), or None."""


class Document:
    """The value of one record. It is decoded when a path is read for the first time."""

    __slots__ = ("_decode", "_known", "_root")

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._known = False
        self._root: Any = None

    def root(self, value: bytes | None) -> Any:
        """Return the decoded value; None if the value has no decoded form."""
        if not self._known:
            self._known = True
            self._root = None if value is None else self._decode(value)
        return self._root


Read = Callable[[Row, int, Document], Any]
"""A function that returns the value of an operand for a record, its partition and its document."""


def json_document(data: bytes) -> Any:
    """Decode JSON. Return None for bytes that are not JSON in UTF-8, for too many bytes, and for too deep nesting."""
    if len(data) > LARGEST_DOCUMENT or _too_deep(data):
        return None
    try:
        return json.loads(data.decode())
    except (ValueError, RecursionError):
        return None


def _too_deep(data: bytes) -> bool:
    if data.count(b"[") + data.count(b"{") <= DEEPEST_DOCUMENT:
        return False
    brackets = _STRING.sub(b"", data).translate(None, _NO_BRACKETS)
    return max(accumulate(map(_DEPTHS.__getitem__, brackets)), default=0) > DEEPEST_DOCUMENT


def raw(field: Header | Key | Whole) -> Callable[[Row], bytes | None]:
    """Return a function that reads the bytes of a field. Of several headers with one name the last header counts."""
    if isinstance(field, Key):
        return attrgetter("key")
    if isinstance(field, Whole):
        return attrgetter("value")
    name = field.name

    def header(row: Row) -> bytes | None:
        for each, content in reversed(row.headers):
            if each == name:
                return content
        return None

    return header


def text(field: Header | Key | Whole) -> Read:
    """Return a function that reads the text of a field; None if its bytes are not UTF-8."""
    of = raw(field)

    def read(row: Row, _partition: int, _document: Document) -> str | None:
        data = of(row)
        if data is None:
            return None
        try:
            return data.decode()
        except UnicodeDecodeError:
            return None

    return read


def path(found: Path) -> Read:
    """Return a function that reads a part of the decoded value.

    In texts it replaces lone surrogates, which JSON can contain but UTF-8 cannot.
    """
    steps = found.steps

    def read(row: Row, _partition: int, document: Document) -> Any:
        value = document.root(row.value)
        for step in steps:
            if isinstance(step, str):
                if type(value) is not dict:
                    return None
                value = value.get(step)
            elif type(value) is list and -len(value) <= step < len(value):
                value = value[step]
            else:
                return None
        if type(value) is str and not value.isascii():
            return _LONE.sub("\ufffd", value)
        return value

    return read


def is_number(value: Any) -> bool:
    """Return whether a value is a number for calculations: finite, and not too great."""
    kind = type(value)
    return (kind is int or kind is float) and -GREATEST <= value <= GREATEST


def numeric(operand: Operand) -> Read:
    """Return a function that reads a number. A header, key or value is a number if its text is a number."""
    if isinstance(operand, Literal):
        value = operand.value
        return lambda _row, _partition, _document: value
    if isinstance(operand, Number):
        if operand.name == "partition":
            return lambda _row, partition, _document: partition
        get = attrgetter(operand.name)
        return lambda row, _partition, _document: get(row)
    if isinstance(operand, Arithmetic):
        return _calculation(operand)
    if isinstance(operand, Path):
        part = path(operand)

        def read_part(row: Row, partition: int, document: Document) -> Any:
            value = part(row, partition, document)
            return value if is_number(value) else None

        return read_part
    of = text(operand)

    def read_text(row: Row, partition: int, document: Document) -> int | float | None:
        content = of(row, partition, document)
        return None if content is None else number(content)

    return read_text


def truth(content: str) -> bool | None:
    """Return the truth value in a text, in upper or lower case; None if the text is no truth value."""
    return _TRUTHS.get(content.lower()) if len(content) <= 5 else None


def _calculation(found: Arithmetic) -> Read:
    left, right = numeric(found.left), numeric(found.right)
    calculate = _CALCULATIONS[found.sign]

    def read(row: Row, partition: int, document: Document) -> int | float | None:
        first = left(row, partition, document)
        second = right(row, partition, document)
        if first is None or second is None:
            return None
        result = calculate(first, second)
        return result if result is not None and -GREATEST <= result <= GREATEST else None

    return read


def _quotient(first: float, second: float) -> float | None:
    """Divide. The quotient of integers is an integer if there is no remainder. Return None for a division by zero."""
    if not second:
        return None
    if type(first) is int and type(second) is int and not first % second:
        return first // second
    return first / second


_CALCULATIONS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "+": lambda first, second: first + second,
    "-": lambda first, second: first - second,
    "*": lambda first, second: first * second,
    "/": _quotient,
}
