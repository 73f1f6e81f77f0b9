"""The result of an audit of files: the findings, and the amount checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

Progress = Callable[[int], None]
"""Called with the number of bytes read since the last call."""


class Finding(NamedTuple):
    """A fault in a file; `position` in bytes, None for the file as a whole.

    `recovery` marks a fault that the next start repairs by itself, because the mark of a clean stop is absent.
    """

    path: str
    position: int | None
    what: str
    recovery: bool = False

    def __str__(self) -> str:
        where = self.path if self.position is None else f"{self.path} at {self.position}"
        return f"{where}: {self.what}"


@dataclass(slots=True)
class Checked:
    """The amount that an audit has checked; records as counted in the headers of their batches."""

    partitions: int = 0
    files: int = 0
    batches: int = 0
    records: int = 0

    def add(self, other: Checked) -> None:
        """Add the counts of another one."""
        self.partitions += other.partitions
        self.files += other.files
        self.batches += other.batches
        self.records += other.records
