"""The organisations of visitors: the lookup table for the events of generator.py.

Owns the invented organisations and their sizes. A visitor's organisation depends only on the visitor's name, so that
every lookup table is correct for every run with any seed. Some visitors are in no lookup table.
"""

from __future__ import annotations

import csv
from bisect import bisect_right
from collections.abc import Iterable
from hashlib import blake2b
from itertools import accumulate
from typing import Final, TextIO

ORGANISATIONS: Final = (
    "Alder & Finch Insurance",
    "Brightwater Utilities",
    "Corvane Logistics",
    "Dunmore University",
    "Eastbank Savings",
    "Fernhill Hospitals",
    "Granite Row Builders",
    "Halden Shipping",
    "Ivorne Textiles",
    "Juniper Street Schools",
    "Kestrel Rail",
    "Larkfield Council",
    "Marlow Instruments",
    "Northgate Foods",
    "Ostrava Lane Press",
    "Pellworth Chemicals",
    "Quarry Hill Museum",
    "Redfern Telecom",
    "Silverbeck Hotels",
    "Tamsin Ode Theatre",
)
UNKNOWN_SHARE: Final = 0.05
"""The share of visitors without an organisation."""

_BITS: Final = 64
_WEIGHTS: Final = tuple(1 / rank for rank in range(1, len(ORGANISATIONS) + 1))
_BOUNDS: Final = tuple(
    UNKNOWN_SHARE + (1 - UNKNOWN_SHARE) * upto / sum(_WEIGHTS) for upto in accumulate(_WEIGHTS, initial=0.0)
)


def organisation_of(visitor: str) -> str | None:
    """Return the organisation of a visitor. Return None for a visitor who is not in the lookup table."""
    digest = blake2b(visitor.encode("utf-8", "surrogatepass"), digest_size=_BITS // 8).digest()
    place = bisect_right(_BOUNDS, int.from_bytes(digest, "big") / (1 << _BITS))
    return ORGANISATIONS[min(place, len(ORGANISATIONS)) - 1] if place else None


def write_lookup(file: TextIO, visitors: Iterable[str]) -> int:
    """Write the CSV `visitor,organisation` of the known visitors. Return their number.

    The file should be open with newline="".
    """
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(("visitor", "organisation"))
    known = 0
    for visitor in visitors:
        organisation = organisation_of(visitor)
        if organisation is not None:
            writer.writerow((visitor, organisation))
            known += 1
    return known
