"""The job of cleaning one log, as the broker sends it to a worker process.

Owns the job's fields and their format on the pipe: one line of JSON. Never does the work (cleaning.py).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any

from kbroker.log.segment.transaction_index import AbortedTxn


@dataclass(frozen=True, slots=True)
class CleaningJob:
    """The segments to clean, and facts that their files lack. Offsets are absolute, sizes in bytes, times in ms."""

    directory: str
    segments: list[tuple[int, int]]
    """(base offset, size) of every segment before `upper`, in order; the files of these segments do not change."""
    first_dirty: int
    upper: int
    """The base offset of the first segment that must not be cleaned."""
    aborted: list[AbortedTxn]
    """The aborted transactions that have records before `upper`."""
    producers: list[tuple[int, int | None, int]]
    """The live producers: (producer id, last offset of the last data batch or None, epoch)."""
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    index_bytes: int
    index_interval: int
    map_bytes: int
    io_bytes: int
    max_message_bytes: int
    """The topic's limit for the size of a batch, which also limits its uncompressed size."""

    def encode(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)}  # asdict would copy each tuple in a list

    @classmethod
    def decode(cls, fields: dict[str, Any]) -> CleaningJob:
        """Decode the result of `encode` after a round trip through JSON."""
        lists = {
            "segments": [(base, size) for base, size in fields["segments"]],
            "aborted": [AbortedTxn(*txn) for txn in fields["aborted"]],
            "producers": [(producer_id, last, epoch) for producer_id, last, epoch in fields["producers"]],
        }
        return cls(**{**fields, **lists})


def to_line(message: dict[str, Any]) -> bytes:
    """Return a message as a line of JSON."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"
