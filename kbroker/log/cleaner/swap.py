"""Swap a cleaned segment in for the segments it was made from.

Owns the order of the renames (Kafka's UnifiedLog.replaceSegments). After a crash at any point, the next start
(`log/interrupted_swap.py`) ends with either the old segments or the new one:

    1  NNN.log.cleaned ...      ->  NNN.log.swap ...       one `.cleaned` left: the old segments are the log
    2  NNN.log, MMM.log         ->  NNN.log.deleted ...    every `.swap` exists: recovery does the remaining steps
    3  NNN.log.swap ...         ->  NNN.log ...

The log file goes first in 1 and 3, so that the new segment never has an index without a log file. The files are on disk
before step 1; the caller makes the renames durable.
"""

from __future__ import annotations

import contextlib
import os

from kbroker.failpoints import passed
from kbroker.log.files import CLEANED_SUFFIX, SEGMENT_SUFFIXES, SWAP_SUFFIX, offset_name, remove_quietly
from kbroker.log.partition_log import PartitionLog
from kbroker.log.segment.segment import Segment


def replace_segments(log: PartitionLog, old: list[Segment], now_ms: int) -> None:
    """Swap in the `.cleaned` segment with the first one's base; `old` are neighbours in the log. Raises OSError.

    An error in step 1 changes nothing. A later error refuses further appends, and the next start examines the disk.
    """
    paths = [offset_name(log.directory, old[0].base_offset, suffix) for suffix in SEGMENT_SUFFIXES]
    try:
        for path in paths:
            os.rename(path + CLEANED_SUFFIX, path + SWAP_SUFFIX)
    except OSError:
        for path in reversed(paths):  # the log file last here, for the same reason
            with contextlib.suppress(OSError):
                remove_quietly(path + SWAP_SUFFIX)
        remove_cleaned(log.directory)
        raise
    try:
        passed("swap.named")
        marked = [segment.mark_replaced() for segment in old]
        passed("swap.marked")
        for path in paths:
            os.rename(path + SWAP_SUFFIX, path)
        passed("swap.done")
        # The first one's indexes have been replaced.
        garbage = [path for _, indexes in marked[1:] for path in indexes]
        log.exchange_segments(old, [files for files, _ in marked], garbage, now_ms)
    except OSError as error:
        log.refuse_appends(f"compacted segments could not be swapped in: {error}")
        raise


def remove_cleaned(directory: str) -> None:
    """Remove the files of segments that will not be swapped in."""
    with contextlib.suppress(OSError):
        for name in os.listdir(directory):
            if name.endswith(CLEANED_SUFFIX):
                remove_quietly(f"{directory}/{name}")
