"""What an audit of files says: what it found, and how much it has looked at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

Progress = Callable[[int], None]
"""Called with the number of bytes that have been read since the last call."""


class Finding(NamedTuple):
    """Something in a file that is not as it should be; `position` in bytes, None where it is the file as a whole.

    `recovery` marks what the next start mends by itself, because the mark of a clean stop is absent.
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
    """How much an audit has looked at; records as the headers of their batches count them."""

    partitions: int = 0
    files: int = 0
    batches: int = 0
    records: int = 0

    def add(self, other: Checked) -> None:
        """Count what another one has looked at, too."""
        self.partitions += other.partitions
        self.files += other.files
        self.batches += other.batches
        self.records += other.records
