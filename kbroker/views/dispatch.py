"""Finds the filters, among many, that may select records of a batch. The work hardly grows with the number of filters.

Owns the search for many values of one header together: one pass over a batch finds the values in it, and a table has
the filters that select each value. Most views of one topic differ only in the value of one header. Other filters are
tested one by one. Never misses a filter that selects a record.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from kbroker.filters.filtering import Filter
from kbroker.filters.prefilter import Needle
from kbroker.log import record_walk
from kbroker.long_work import turn

FEW: Final = 4
"""The maximum number of filters, in total or of one header, that are tested one by one."""
_LARGEST: Final = 4 << 20
"""The maximum number of bytes that are searched together, in some ms.

For a larger batch, every filter is a candidate.
"""
_MOST_RECORDS: Final = 1 << 15
"""The maximum number of records whose headers are read in one step, in some ms."""
_LONGEST: Final = 63
"""The maximum length of a value whose length takes one byte in a record."""


class _Group(NamedTuple):
    """The filters that select whole values of one header."""

    name: bytes
    pattern: re.Pattern[bytes]
    """Finds the name, and captures the length byte and the value after it."""
    by_value: dict[bytes, list[Filter]]
    every: list[Filter]


class Dispatch:
    """A set of filters."""

    def __init__(self, filters: Iterable[Filter]) -> None:
        self._alone: list[Filter] = []
        self._groups: list[_Group] = []
        every = list(filters)
        if len(every) <= FEW:
            self._alone = every
            return
        by_name: dict[bytes, list[Filter]] = {}
        for each in every:
            name = _common_name(each.needles)
            if name is None:
                self._alone.append(each)
            else:
                by_name.setdefault(name, []).append(each)
        for name, some in by_name.items():
            if len(some) <= FEW:
                self._alone += some
            else:
                self._groups.append(_group(name, some))

    async def candidates(self, data: bytes, count: int) -> list[Filter]:
        """Return the filters that may select some of these `count` uncompressed records.

        The test of a single filter takes up to some ms, so other requests get a turn between two tests.
        """
        if not self._groups and len(self._alone) <= FEW:
            return self._alone  # the selection of records by these filters begins with the same test
        if len(data) > _LARGEST:
            return [*self._alone, *(each for group in self._groups for each in group.every)]
        found = []
        for each in self._alone:
            if each.may_match(data):
                found.append(each)
            await turn
        for group in self._groups:
            there = _values_in(data, count, group)
            if there is None:
                found += group.every
                continue
            some: dict[Filter, None] = {}
            for value in there:
                some.update(dict.fromkeys(group.by_value.get(value, ())))
            found += some
            await turn
        return found


def _values_in(data: bytes, count: int, group: _Group) -> set[bytes] | None:
    """Return the possible values of the group's header; None if it may have any value."""
    if record_walk.header_values is not None and count <= _MOST_RECORDS:
        known = record_walk.header_values(data, count, group.name)
        if known is not None:
            return known
    there = set(group.pattern.findall(data))
    if any(value[0] > 0x7F for value in there):  # after a length of several bytes, the value may be any value
        return None
    return {value[1:] for value in there}


def _common_name(needles: tuple[Needle, ...] | None) -> bytes | None:
    """Return the header's name if a filter only selects short whole values of one header."""
    if not needles:
        return None
    name = needles[0].name
    if not all(each.is_whole and each.name == name and 0 < len(each.text) <= _LONGEST for each in needles):
        return None
    overlaps = any(name.startswith(name[each:]) for each in range(1, len(name)))
    return name if name and not overlaps else None


def _group(name: bytes, filters: list[Filter]) -> _Group:
    by_value: dict[bytes, list[Filter]] = {}
    for each in filters:
        for needle in each.needles or ():
            by_value.setdefault(needle.text, []).append(each)
    lengths = sorted({len(value) for value in by_value})
    texts = b"|".join(re.escape(bytes([length << 1])) + b".{%d}" % length for length in lengths)
    # Only the name is consumed: a value may contain the name of the next header.
    pattern = re.compile(re.escape(name) + b"(?=([\\x80-\\xff]|" + texts + b"))", re.DOTALL)
    return _Group(name, pattern, by_value, filters)
