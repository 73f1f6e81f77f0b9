"""Bytes that the records of a batch contain if one of them matches.

Batches without these bytes need not be decoded. Owns the rule that no match is ever missed: a condition without known
bytes is not tested. The bytes are the names of headers, the texts to which a header, the key or the value is equal, and
the texts in a pattern. Parts of a value in JSON and numbers have no known bytes, because they can be written in several
ways. In a record a header is `length of the name | name | length of the value | value`. A length is a varint of 1 to 5
bytes; it may have more bytes than it needs.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable
from itertools import takewhile
from typing import Final, NamedTuple

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
    Operand,
    Opposite,
    Path,
    Segment,
    Truth,
    Whole,
    Within,
)

MOST: Final = 64
"""The maximum number of alternatives; a condition with more alternatives is not tested."""
MOST_BYTES: Final = 16_000_000
"""The maximum product of a batch's bytes and the number of names and texts for which the batch is searched."""
MOST_WORK: Final = 400_000
"""The maximum number of comparisons in a batch: each compares a text with the bytes behind a name.

Both limits correspond to some 10 ms of work. A batch beyond a limit counts as a batch that may match.
"""
_REPLACED: Final = "\ufffd"
"""The character that replaces bytes that are not UTF-8 in names of headers."""


class Needle(NamedTuple):
    """Bytes of a record: a header's name, a text, or a text directly after a header's name and a length."""

    name: bytes
    text: bytes
    is_whole: bool = False
    """Whether the text is the complete value of the header. If so, the length before the text is known."""

    @property
    def size(self) -> int:
        return len(self.name) + len(self.text)


_Needles = tuple[Needle, ...] | None
"""Alternatives: each record that matches contains at least one. Empty if no record can match; None if unknown."""


class Prefilter:
    """Tests whether the uncompressed records of a batch may contain a match."""

    def __init__(self, found: Condition) -> None:
        self.needles: Final = needles(found, wanted=True)
        there = self.needles or ()
        self._alone: Final = [each.name or each.text for each in there if not (each.name and each.text)]
        texts: dict[bytes, list[Needle]] = {}
        for each in there:
            if each.name and each.text:
                texts.setdefault(each.name, []).append(each)
        self._behind: Final = [_Behind(name, found) for name, found in texts.items()]
        self.header_values: Final = None if self._alone or len(texts) != 1 else _joined(*texts.popitem())
        """The name of the only header that is tested, and its values (record_walk.with_header)."""

    def may_match(self, data: bytes | bytearray) -> bool:
        """Return False only if no record in these bytes matches."""
        if self.needles is None or len(data) * (len(self._alone) + len(self._behind)) > MOST_BYTES:
            return True
        if any(each in data for each in self._alone):
            return True
        room = MOST_WORK
        for each in self._behind:
            room -= each.most_work(data, room)
            if room < 0 or each.is_in(data):
                return True
        return False

    def places(self, data: bytes, passed: Callable[[int], int]) -> list[int] | None:
        """Return positions in uncompressed records; each matching record contains at least one of these positions.

        After a position is found, the search continues at the end of its record, which `passed` returns. Return None if
        any record may match.
        """
        if self.needles is None or len(data) * (len(self._alone) + len(self._behind)) > MOST_BYTES:
            return None
        found: list[int] = []
        for each in self._alone:
            place = data.find(each)
            while place >= 0:
                found.append(place)
                place = data.find(each, passed(place))
        room = MOST_WORK
        for behind in self._behind:
            room -= behind.most_work(data, room)
            if room < 0:
                return None
            behind.collect(data, passed, found)
        return found


class _Behind:
    """A header's name, followed by one of several texts."""

    def __init__(self, name: bytes, found: list[Needle]) -> None:
        self.name: Final = name
        self._found: Final = found
        self._pattern: re.Pattern[bytes] | None = None
        period = next(each for each in range(1, len(name) + 1) if name.startswith(name[each:]))
        overlapping = -(-len(name) // period)
        self.work: Final = overlapping * (1 + sum(1 if each.is_whole else 5 for each in found))
        """The maximum number of comparisons for each occurrence of the name that `count` finds.

        It includes the occurrences that overlap the found one, because `count` skips them.
        """

    def most_work(self, data: bytes | bytearray, room: int) -> int:
        """Return the maximum number of comparisons in a search.

        An estimate from the size of the data is enough if it is at most `room`. Otherwise, the occurrences of the name
        are counted.
        """
        most = len(data) // len(self.name) * self.work
        return most if most <= room else data.count(self.name) * self.work

    def is_in(self, data: bytes | bytearray) -> bool:
        if self.name not in data:
            return False
        if self._pattern is None:
            self._pattern = re.compile(self._source(), re.DOTALL)
        return self._pattern.search(data) is not None

    def collect(self, data: bytes, passed: Callable[[int], int], into: list[int]) -> None:
        """Add to `into` the positions at which one of the texts follows the name.

        Add at most one position for each record.
        """
        if self.name not in data:
            return
        if self._pattern is None:
            self._pattern = re.compile(self._source(), re.DOTALL)
        match = self._pattern.search(data)
        while match is not None:
            into.append(match.start())
            match = self._pattern.search(data, passed(match.start()))

    def _source(self) -> bytes:
        """Return the pattern. It begins with the name, so that the search is fast."""
        by_length: dict[bytes, list[bytes]] = {}
        for each in self._found:
            length = _varint(len(each.text)) if each.is_whole else b".{1,5}"
            by_length.setdefault(length, []).append(re.escape(each.text))
        texts = (length + b"(?:" + b"|".join(each) + b")" for length, each in by_length.items())
        return re.escape(self.name) + b"(?:" + b"|".join(texts) + b")"


def _joined(name: bytes, found: list[Needle]) -> tuple[bytes, bytes]:
    sized = (struct.pack("=i", len(each.text) if each.is_whole else -len(each.text)) + each.text for each in found)
    return name, b"".join(sized)


def _varint(number: int) -> bytes:
    """Return the pattern for all forms of a length. The upper bits of a fifth byte do not count."""
    least = bytearray()
    rest = number << 1
    while rest > 0x7F:
        least.append(rest & 0x7F | 0x80)
        rest >>= 7
    least.append(rest)
    more = re.escape(bytes(least[:-1]) + bytes([least[-1] | 0x80]))
    zeros = [b"\x80" * fill + b"\0" for fill in range(4 - len(least))]
    last = b"\x80" * (4 - len(least)) + b"[\\x00\\x10\\x20\\x30\\x40\\x50\\x60\\x70]"
    return b"(?:" + re.escape(bytes(least)) + b"|" + more + b"(?:" + b"|".join([*zeros, last]) + b"))"


def needles(found: Condition, wanted: bool) -> _Needles:
    """Return the needles of records for which a condition has the value `wanted`."""
    match found:
        case Always(holds):
            return None if holds == wanted else ()
        case Opposite(part):
            return needles(part, not wanted)
        case Both(parts) | Either(parts):
            each = [needles(part, wanted) for part in parts]
            return _best(each) if isinstance(found, Both) == wanted else _alternatives(each)
        case Compare(sign, left, right):
            return _of_comparison(sign if wanted else OPPOSITES[sign], left, right)
        case Within(operand, values):
            if not wanted:
                return _present([operand])
            return _best([_alternatives([_of_comparison("=", operand, each) for each in values]), _present([operand])])
        case Like(operand, segments):
            return _best([_of_pattern(operand, segments) if wanted else None, _present([operand])])
        case Missing(field):
            return None if wanted else _present([field])
        case Truth(field):
            return _present([field])


def _best(found: Iterable[_Needles]) -> _Needles:
    """Return the most selective of several needles: the longest, because long texts are rare.

    A search for any one of them gives a correct result.
    """
    known = [each for each in found if each is not None]
    return max(known, key=_selectivity, default=None)


def _selectivity(found: tuple[Needle, ...]) -> tuple[int, int]:
    return min((each.size for each in found), default=2**31), -len(found)


def _alternatives(found: Iterable[_Needles]) -> _Needles:
    joined: dict[Needle, None] = {}
    for each in found:
        if each is None:
            return None
        joined.update(dict.fromkeys(each))
    return tuple(joined) if len(joined) <= MOST else None


def _of_comparison(sign: str, left: Operand, right: Operand) -> _Needles:
    if isinstance(left, Literal) and not isinstance(right, Literal):
        return _of_comparison(TURNED[sign], right, left)
    equal = None
    if sign == "=" and isinstance(right, Literal) and isinstance(right.value, str):
        equal = _text_in(left, right.value.encode(), begins=True, whole=True)
    return _best([equal, _present([left, right])])


def _present(operands: Iterable[Operand]) -> _Needles:
    """Return the needles of headers that must be present, because a condition on a missing header is unknown."""
    found: list[_Needles] = []
    for each in operands:
        if isinstance(each, Arithmetic):
            found.append(_present([each.left, each.right]))
        elif isinstance(each, Header) and _is_searched(each.name):
            found.append((Needle(each.name.encode(), b""),))
    return _best(found)


def _is_searched(name: str) -> bool:
    return bool(name) and _REPLACED not in name


def _text_in(field: Operand, data: bytes, *, begins: bool, whole: bool = False) -> _Needles:
    """Return the needle of bytes in a field.

    With `begins`, the field begins with these bytes; with `whole`, it has no other bytes.
    """
    if not data or isinstance(field, Path) or not isinstance(field, Header | Key | Whole):
        return None
    name = field.name.encode() if isinstance(field, Header) and begins and _is_searched(field.name) else b""
    return (Needle(name, data, bool(name) and whole),)


def _of_pattern(field: Operand, segments: tuple[Segment, ...]) -> _Needles:
    runs = [run for segment in segments for run in _runs(segment)]
    longest = _text_in(field, max(runs, key=len, default=b""), begins=False)
    first = "".join(takewhile(lambda each: each is not None, segments[0])).encode()  # type: ignore[arg-type]
    return _best([longest, _text_in(field, first, begins=True)])


def _runs(segment: Segment) -> list[bytes]:
    """Return the known texts between the wildcards `_` in a segment of a pattern."""
    runs = "".join("\0" if each is None else each for each in segment).split("\0")
    return [run.encode() for run in runs if run]
