"""The operations on an archive in any of its forms: files and a manifest (store.py), or a table (tables/).

Owns the interface. Each form has its own way to commit a batch completely or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from kbroker.pipeline.archive.manifest import Entry, File, Manifest
from kbroker.pipeline.ranges import Partition, Sums
from kbroker.pipeline.storage.files import Files


class Part(NamedTuple):
    """The records of a partition in one staged file: their sums, and their first and last offset."""

    file: str
    partition: Partition
    sums: Sums
    first: int
    last: int


class Place(Protocol):
    """An archive's place. Methods raise PipelineError."""

    files: Files

    def load(self) -> Manifest:
        """Return the manifest; it is empty if there is no archive yet."""

    def require(self, *, whole: bool = True) -> Manifest:
        """Return an existing archive's manifest. With `whole`, refuse a manifest with faults."""

    def layout(self, manifest: Manifest) -> str | None:
        """Return the columns of `--partition-by`. Return None if the archive is empty."""

    def unfinished(self, manifest: Manifest) -> list[str]:
        """Return the changes that are committed but not yet visible to all readers."""

    def file_faults(self, manifest: Manifest) -> list[str]:
        """Return a line for each file that is not what the manifest says."""

    def frame(self, manifest: Manifest) -> Any:
        """Return the archived records as a DataFrame with Spark's column names, and the columns of `--partition-by`."""

    def writing(self) -> AbstractContextManager[Manifest]:
        """Lock the archive for writing, complete earlier changes, and yield the manifest."""

    def stage_all(self, name: str, frames: Iterable[Any], partition_by: str) -> Any:
        """Prepare the records of a change. No topic is in more than one of the `frames`.

        Return the records without their decoded columns.
        """

    def parts(self, name: str, staged: Any) -> list[Part]:
        """Return the content of a staged change."""

    def counted(self, name: str, records: dict[str, int], columns: Callable[[str], str]) -> tuple[File, ...]:
        """Return the files of a staged change, with the numbers of records in them."""

    def commit(self, entry: Entry) -> None:
        """Commit a staged change."""

    def summarize(self, manifest: Manifest, name: str, least: int) -> Manifest:
        """Shorten the history of an archive that has more than `least` changes. Return the resulting manifest."""
