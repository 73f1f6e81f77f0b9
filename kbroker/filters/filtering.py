"""A compiled filter: which records match, and which batches cannot contain a match.

Owns the interface of the package.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final

from kbroker.filters.compiling import compiled, reads_value
from kbroker.filters.operands import Decode, Document, Row, json_document
from kbroker.filters.parser import parse
from kbroker.filters.possible import Lookup, possible, tested
from kbroker.filters.prefilter import Needle, Prefilter

_KEPT: Final = 16
"""How many filters are kept. The longest ones take 15 ms to compile; the config of a view is checked, then used."""


class Filter:
    """A filter that can be used by several threads at once; make it with `compile_filter`."""

    def __init__(self, text: str, decode: Decode = json_document) -> None:
        found = parse(text)
        self.text: Final = text
        self.reads_value: Final = reads_value(found)
        """Whether the filter decodes the values of records."""
        self._test: Final = compiled(found)
        self._found: Final = found
        self.tested_headers: Final = tested(found)
        """The headers for which an index is of use."""
        self._prefilter: Final = Prefilter(found)
        self.header_values: Final = self._prefilter.header_values
        """The name of a header, and its values (record_walk.with_header) of which each record that matches has one.

        None if there is no such header.
        """
        self._decode: Final = decode
        self._unread: Final = Document(decode)

    def __call__(self, row: Row, partition: int) -> bool:
        """Return whether a record of this partition matches; never raises if `decode` does not."""
        return self._test(row, partition, Document(self._decode) if self.reads_value else self._unread)

    def may_match(self, data: bytes | bytearray) -> bool:
        """Return False only if no record of a batch matches. `data` are its records, uncompressed, as on the wire."""
        return self._prefilter.may_match(data)

    def places(self, data: bytes, passed: Callable[[int], int]) -> list[int] | None:
        """Return positions in such data so that each record that matches contains one; None if any record may match.

        `passed` returns the end of the record at a position.
        """
        return self._prefilter.places(data, passed)

    def possible(self, lookup: Lookup, every: int) -> int:
        """Return which parts of a log may have a match, as a set of bits; `every` are all parts."""
        return possible(self._found, lookup, every)

    @property
    def needles(self) -> tuple[Needle, ...] | None:
        """Bytes of which one is in each record that matches; None if unknown."""
        return self._prefilter.needles


def compile_filter(text: str, decode: Decode = json_document) -> Filter:
    """Compile an expression; raises FilterError, whose text is a line with the position.

    `decode` returns the decoded form of a record's value for paths like `value.amount`.
    """
    return _kept(text) if decode is json_document else Filter(text, decode)


@lru_cache(maxsize=_KEPT)
def _kept(text: str) -> Filter:
    return Filter(text)
