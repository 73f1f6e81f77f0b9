"""A compiled filter: it finds the records that match, and the batches that cannot contain a match.

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
"""The number of compiled filters that are kept.

Compiling the longest filter takes 15 ms, and a view's filter is needed twice: for its check, and for its use.
"""


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
        """The headers for which an index is useful."""
        self._prefilter: Final = Prefilter(found)
        self.header_values: Final = self._prefilter.header_values
        """A header's name, and some values (for record_walk.with_header).

        Each matching record has this header with one of these values. None if no such header is known.
        """
        self._decode: Final = decode
        self._unread: Final = Document(decode)

    def __call__(self, row: Row, partition: int) -> bool:
        """Return whether a record of this partition matches; never raises if `decode` never raises."""
        return self._test(row, partition, Document(self._decode) if self.reads_value else self._unread)

    def may_match(self, data: bytes | bytearray) -> bool:
        """Return False only if no record of a batch matches.

        `data` are the batch's records, uncompressed, as on the wire.
        """
        return self._prefilter.may_match(data)

    def places(self, data: bytes, passed: Callable[[int], int]) -> list[int] | None:
        """Return positions in the data of a batch (see `may_match`); None if every record might match.

        Each record that matches contains one of the positions. `passed` returns the end of the record at a position.
        """
        return self._prefilter.places(data, passed)

    def possible(self, lookup: Lookup, every: int) -> int:
        """Return the parts of a log that may have a match, as a set of bits; `every` is the set of all parts."""
        return possible(self._found, lookup, every)

    @property
    def needles(self) -> tuple[Needle, ...] | None:
        """Alternatives of bytes: each record that matches contains at least one of them. None if unknown."""
        return self._prefilter.needles


def compile_filter(text: str, decode: Decode = json_document) -> Filter:
    """Compile an expression.

    Raises FilterError; its text is a line with the position. `decode` returns the decoded form of a record's value for
    paths like `value.amount`.
    """
    return _kept(text) if decode is json_document else Filter(text, decode)


@lru_cache(maxsize=_KEPT)
def _kept(text: str) -> Filter:
    return Filter(text)
