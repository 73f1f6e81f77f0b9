"""Named moments (failpoints) at which a test ends the process, as a crash would.

Owns the names and their trigger. Failpoints mark the steps of changes that must happen completely or not at all:
replacing files, rolling, deleting, recovering or moving segments, ending transactions, writing dead letters and
archives. The environment variable KBROKER_FAILPOINTS names the failpoints at which the process ends. Without it,
failpoints do nothing, and cost next to nothing. An example:

    KBROKER_FAILPOINTS="atomic.renamed:3,roll.created:1"     end at the third pass of atomic.renamed, or at the
                                                             first pass of roll.created, whichever comes first
"""

from __future__ import annotations

import os
import signal
from typing import Final

VARIABLE: Final = "KBROKER_FAILPOINTS"

NAMES: Final = (
    "load.unmarked",
    "recovery.checked",
    "recovery.cut",
    "atomic.written",
    "atomic.renamed",
    "roll.created",
    "roll.sealed",
    "segment.marked",
    "partition.renamed",
    "journal.written",
    "journal.compacted",
    "swap.named",
    "swap.marked",
    "swap.done",
    "move.copied",
    "move.renamed",
    "close.flushed",
    "txn.ending",
    "txn.prepared",
    "txn.marker",
    "txn.marked",
    "txn.completed",
    "share.dead_letters_written",
    "schedule.intended",
    "schedule.delivered",
    "schedule.replayed",
    "tiers.announced",
    "tiers.sent",
    "tiers.copied",
    "tiers.deletion_announced",
    "tiers.deleted",
    "tiers.state_copied",
    "restore.own_topics",
    "restore.logs",
    "restore.snapshot",
    "restore.journal",
    "archive.staged",
    "archive.committed",
    "archive.moved",
    "archive.placed",
    "replay.begun",
    "replay.sent",
    "visits.written",
    "visits.committed",
    "visits.published",
)


def _parse(text: str) -> dict[str, int]:
    """Read "name:count,...". Raises ValueError for a name that does not exist."""
    counts = {}
    for item in filter(None, text.split(",")):
        name, _, count = item.partition(":")
        if name not in NAMES:
            raise ValueError(f"{VARIABLE}: there is no failpoint {name!r}")
        counts[name] = int(count or 1)
    return counts


_armed = _parse(os.environ.get(VARIABLE, ""))


def passed(name: str) -> None:
    """Count a pass of a failpoint; end the process if this is the configured pass."""
    if _armed and name in _armed:
        _armed[name] -= 1
        if _armed[name] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
