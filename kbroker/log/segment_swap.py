"""Replace segments by the cleaned segment that was made from them.

Owns the order of the renames (Kafka's UnifiedLog.replaceSegments), and the repair, at a start, of a replacement that a
crash interrupted. After a crash at any point, the next start ends with either the old segments or the new segment:

    1  NNN.log.cleaned ...      ->  NNN.log.swap ...       one `.cleaned` left: the old segments are the log
    2  NNN.log, MMM.log         ->  NNN.log.deleted ...    every `.swap` exists: the next start does the remaining steps
    3  NNN.log.swap ...         ->  NNN.log ...

The log file is renamed first in steps 1 and 3, so that the new segment never has an index without a log file. The files
are on disk before step 1; the caller makes the renames durable.
"""

from __future__ import annotations

import contextlib
import os

from kbroker.failpoints import passed
from kbroker.log.batch_scan import end_of_file
from kbroker.log.files import (
    CLEANED_SUFFIX,
    HEADERS_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SWAP_SUFFIX,
    offset_name,
    offset_of,
    remove_quietly,
    sync_directory,
)
from kbroker.log.segment.segment import Segment

_BEYOND_ALL = 2**63


def announce_swap(directory: str, base: int) -> list[str]:
    """Do step 1 for the `.cleaned` segment with this base offset; return the segment's future names.

    If this raises OSError, nothing has changed.
    """
    paths = [offset_name(directory, base, suffix) for suffix in SEGMENT_SUFFIXES]
    try:
        for path in paths:
            os.rename(path + CLEANED_SUFFIX, path + SWAP_SUFFIX)
    except OSError:
        for path in reversed(paths):  # the log file is last, so that no index exists without it
            with contextlib.suppress(OSError):
                remove_quietly(path + SWAP_SUFFIX)
        remove_cleaned(directory)
        raise
    return paths


def complete_swap(paths: list[str], old: list[Segment]) -> list[tuple[list[str], list[str]]]:
    """Do steps 2 and 3; return, for each old segment, the current names of its log file and of its indexes.

    Raise OSError on failure.
    """
    passed("swap.named")
    marked = [segment.mark_replaced() for segment in old]
    passed("swap.marked")
    for path in paths:
        os.rename(path + SWAP_SUFFIX, path)
    passed("swap.done")
    return marked


def remove_cleaned(directory: str) -> None:
    """Remove the files of cleaned segments that will not replace other segments."""
    with contextlib.suppress(OSError):
        for name in os.listdir(directory):
            if name.endswith(CLEANED_SUFFIX):
                remove_quietly(f"{directory}/{name}")


def settle_swap(directory: str) -> None:
    """Undo a replacement whose new segment is incomplete; finish a replacement whose new segment is complete."""
    _undo(directory)
    _finish(directory)


def _undo(directory: str) -> None:
    names = os.listdir(directory)
    cleaned = [offset_of(name) for name in names if name.endswith(CLEANED_SUFFIX)]
    first_cleaned = min((offset for offset in cleaned if offset is not None), default=_BEYOND_ALL)
    for name in names:
        if name.endswith(SWAP_SUFFIX) and (offset_of(name) or 0) >= first_cleaned:
            remove_quietly(f"{directory}/{name}")
    # Do this last: if this repair is also interrupted, the `.cleaned` files still show that the `.swap` files are
    # incomplete.
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
        if name.endswith((*SEGMENT_SUFFIXES, HEADERS_SUFFIX)) and base is not None and first <= base < end:
            remove_quietly(f"{directory}/{name}")
    for name in swaps:
        os.replace(f"{directory}/{name}", f"{directory}/{name[: -len(SWAP_SUFFIX)]}")
    sync_directory(directory)
