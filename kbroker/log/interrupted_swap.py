"""Repairs, at a start, a replacement of segments by compacted ones that a crash interrupted.

Owns which files are kept and which are removed. `cleaner/swap.py` owns the order of the renames, and explains why a
crash at any point leaves either the old segments or the new one.
"""

from __future__ import annotations

import os

from kbroker.log.batch_scan import end_of_file
from kbroker.log.files import (
    CLEANED_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SWAP_SUFFIX,
    offset_of,
    remove_quietly,
    sync_directory,
)

_BEYOND_ALL = 2**63


def settle_swap(directory: str) -> None:
    """Undo a replacement whose new segment was incomplete; finish one whose new segment was complete."""
    _undo(directory)
    _finish(directory)


def _undo(directory: str) -> None:
    names = os.listdir(directory)
    cleaned = [offset_of(name) for name in names if name.endswith(CLEANED_SUFFIX)]
    first_cleaned = min((offset for offset in cleaned if offset is not None), default=_BEYOND_ALL)
    for name in names:
        if name.endswith(SWAP_SUFFIX) and (offset_of(name) or 0) >= first_cleaned:
            remove_quietly(f"{directory}/{name}")
    # Last: if this is interrupted too, they show that the removed ones were incomplete.
    for name in names:
        if name.endswith(CLEANED_SUFFIX):
            remove_quietly(f"{directory}/{name}")


def _finish(directory: str) -> None:
    swaps = [name for name in os.listdir(directory) if name.endswith(SWAP_SUFFIX)]
    if not swaps:
        return
    first, end = _BEYOND_ALL, -1
    for name in swaps:
        base = offset_of(name)
        if name.endswith(LOG_SUFFIX + SWAP_SUFFIX) and base is not None:
            first, end = min(first, base), max(end, base + 1, end_of_file(f"{directory}/{name}", base))
    for name in os.listdir(directory):
        base = offset_of(name)
        if name.endswith(SEGMENT_SUFFIXES) and base is not None and first <= base < end:
            remove_quietly(f"{directory}/{name}")
    for name in swaps:
        os.replace(f"{directory}/{name}", f"{directory}/{name[: -len(SWAP_SUFFIX)]}")
    sync_directory(directory)
