"""Whether the records of a batch are as nearly all are: with a key, in the order of their offsets, whole.

Owns a short cut for the checks of a produced batch (validation.py): what is plain is told run by run, without making a
record. Never says what is wrong: of a batch that is not plain only reading its records one by one tells more.
"""

from __future__ import annotations

from typing import NamedTuple

from kbroker.log.record_runs import read_runs
from kbroker.protocol.errors import Malformed


class PlainRecords(NamedTuple):
    """What a batch's records have in common; timestamps in ms, as they stand there, from the batch's base timestamp."""

    smallest_stamp: int
    largest_stamp: int


def read_plain(data: bytes, count: int) -> PlainRecords | None:
    """Look at the records of a batch, not compressed any more; None if they are not plain, or broken."""
    delta = 0
    smallest: list[int] = []
    largest: list[int] = []
    try:
        for run in read_runs(data, count):
            if run.key_size < 0 or not run.in_order(delta) or not run.well_formed(data):
                return None
            stamps = list(run.stamps(data))
            smallest.append(min(stamps))
            largest.append(max(stamps))
            delta += run.number
    except (Malformed, IndexError):
        return None
    return PlainRecords(min(smallest), max(largest)) if delta else None
