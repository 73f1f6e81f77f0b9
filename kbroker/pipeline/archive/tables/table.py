"""An archive as a table of another engine, whose commits are atomic and name the archived offsets.

Owns the steps of a batch. Spark keeps the records while it computes their sums. Then Spark appends the records to the
table, in one commit that contains the note of all archived offsets (state.py). A batch without a commit leaves at most
files that no reader sees; the engines' own maintenance deletes these files. Only one process at a time writes
(storage/lock.py). Changes of other engines stay, if the columns of an archive still exist. Never deletes records.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from typing import Any, Protocol

from kbroker.failpoints import passed
from kbroker.pipeline.archive.manifest import MANY_ENTRIES, Entry, File, Manifest
from kbroker.pipeline.archive.place import Part
from kbroker.pipeline.archive.record_columns import COLUMNS, DECODED, SCHEMA, partition_of, sums, sums_of, with_folders
from kbroker.pipeline.archive.tables.state import decode, encode
from kbroker.pipeline.archive.tables.types import OtherTypeError, merged, nullable, selected
from kbroker.pipeline.errors import PipelineError, first_line
from kbroker.pipeline.spark.tasks import small_frame
from kbroker.pipeline.storage.files import Files, require_shared
from kbroker.pipeline.storage.lock import WriterLock
from kbroker.pipeline.storage.swap_lock import writer_lock


class Table(Protocol):
    """An engine's table at a path. Methods raise PipelineError, or Spark's errors."""

    kind: str
    widens: bool
    """Whether a column's type can change to a wider type."""

    def exists(self) -> bool:
        """Whether there is a table of any origin."""

    def note(self) -> str | None:
        """Return the newest note of an archive that the table's content includes.

        Return None if no archive has created the table.
        """

    def folders(self, partition_by: str) -> tuple[str, ...]:
        """Return the columns by which the table is partitioned, besides the columns of a record."""

    def create(self, schema: Any, partition_by: str, note: str) -> None:
        """Create an empty table."""

    def schema(self) -> Any:
        """Return the columns, as Spark's StructType."""

    def evolve(self, schema: Any) -> None:
        """Change the columns to the result of `merged`. Do nothing if an append itself changes the columns."""

    def frame(self) -> Any:
        """Return the table's rows."""

    def append(self, frame: Any, note: str, stream: str, batch: int) -> None:
        """Append rows and store the note, both in one commit."""

    def tidy(self, most: int) -> None:
        """Shorten the table's history by the table's own rules, if it has more than `most` commits."""


class TableStore:
    """Implements Place."""

    def __init__(self, session: Any, files: Files, table: Table) -> None:
        self.files = files
        self._session = session
        self._table = table
        self._lock: WriterLock | None = None
        self._manifest = Manifest(())
        self._partition_by = "date"
        self._kept: Any = None
        """The records of the batch under way, with all columns."""
        self._parts: list[Part] = []

    # -- reading ------------------------------------------------------------------------------------------

    def load(self) -> Manifest:
        if not self._table.exists():
            return Manifest(())
        note = self._table.note()
        if note is None:
            raise PipelineError(f"{self.files.root} is a table that no archive has created: use another place")
        entry, self._partition_by = decode(note, self.files.root)
        return Manifest([entry])

    def require(self, *, whole: bool = True) -> Manifest:
        manifest = self.load()
        if not manifest.entries:
            raise PipelineError(f"{self.files.root} is no archive: there is no {self._table.kind} table")
        if whole and (faults := manifest.faults()):
            raise PipelineError(f"{self.files.root} is not whole: {faults[0]}")
        return manifest

    def layout(self, manifest: Manifest) -> str | None:
        return self._partition_by if manifest.entries else None

    def unfinished(self, manifest: Manifest) -> list[str]:
        del manifest
        return []  # a table's commit is atomic

    def file_faults(self, manifest: Manifest) -> list[str]:
        del manifest
        return []  # the engine manages the table's files, and may replace them at any time

    def frame(self, manifest: Manifest) -> Any:
        rows = self._table.frame()
        self._require_columns(rows.schema)
        # Another writer may store rows of other kinds in the table.
        rows = rows.where(rows["topic"].isin(*{partition.topic for partition in manifest.ranges}))
        kinds = {each.name: each.dataType for each in self._own_schema().fields}
        return with_folders(rows.select(*(rows[name].cast(kinds[name]) for name in COLUMNS)), self._partition_by)

    def _own_schema(self) -> Any:
        return nullable(small_frame(self._session, [], f"topic string, {SCHEMA}").select(*COLUMNS).schema)

    def _require_columns(self, schema: Any) -> None:
        """Refuse a table that lacks a column of an archive, or has a column whose type cannot contain the values."""
        there, own = nullable(schema), self._own_schema()
        if missing := [name for name in COLUMNS if name not in there.names]:
            raise PipelineError(
                f"{self.files.root} has no column {missing[0]} any more: somebody else changed the table;"
                " archive to another place"
            )
        try:
            merged(there, own, widens=False)
        except OtherTypeError as err:
            raise self._other_type(err) from err

    def _other_type(self, err: OtherTypeError) -> PipelineError:
        return PipelineError(f"a column of {self.files.root} has another type, {err}; archive to another place")

    # -- writing ------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def writing(self) -> Iterator[Manifest]:
        with writer_lock(self.files) as lock:
            self._lock = lock
            try:
                require_shared(self._session, self.files, "_staging/trial")
                self._manifest = self.load()
                if self._manifest.entries:
                    self._require_columns(self._table.schema())
                yield self._manifest
            finally:
                self._lock = None

    def stage_all(self, name: str, frames: Iterable[Any], partition_by: str) -> Any:
        del name
        if not self._manifest.entries:
            self._partition_by = partition_by
        self._forget()
        self._kept = self._in_one(list(frames)).persist()
        self._parts = [
            Part("", partition_of(row), sums_of(row), row["first"], row["last"])
            for row in sums(self._kept, "topic", "partition")
        ]
        return self._kept.select(*COLUMNS)

    def parts(self, name: str, staged: Any) -> list[Part]:
        del name, staged
        return self._parts

    def counted(self, name: str, records: dict[str, int], columns: Callable[[str], str]) -> tuple[File, ...]:
        del name, records, columns
        return ()

    def commit(self, entry: Entry) -> None:
        assert self._lock is not None, "only the writer commits"
        passed("archive.staged")
        whole = Manifest([*self._manifest.entries, entry])
        note = encode(whole, self._partition_by, entry.at)
        (stream, batch) = next(iter(entry.queries.items()))
        rows = self._for_the_table(entry.at)
        self._lock.check()
        self._table.append(rows, note, stream, batch)
        passed("archive.committed")
        self._forget()
        if self._table.note() != note:
            raise PipelineError(f"{self.files.root} did not take batch {batch}: another job writes to this table")
        self._manifest = Manifest([decode(note, self.files.root)[0]])
        passed("archive.placed")

    def summarize(self, manifest: Manifest, name: str, least: int = MANY_ENTRIES) -> Manifest:
        del name
        if manifest.entries:
            self._table.tidy(least)
        return manifest

    def _forget(self) -> None:
        if self._kept is not None:
            self._kept.unpersist()
        self._kept = None

    def _in_one(self, frames: list[Any]) -> Any:
        """Return one frame with the records of several frames, and with one type for each decoded column."""
        frames = [frame.select(*COLUMNS, *(name for name in DECODED if name in frame.columns)) for frame in frames]
        every = reduce(self._both, (nullable(frame.schema) for frame in frames))
        return reduce(lambda one, other: one.unionByName(other), (selected(frame, every) for frame in frames))

    def _both(self, table: Any, batch: Any) -> Any:
        """Return a schema with the columns of both schemas."""
        try:
            return merged(table, batch, widens=self._table.widens)
        except OtherTypeError as err:
            raise self._other_type(err) from err

    def _for_the_table(self, at: str) -> Any:
        """Return the kept records with the table's columns. Create the table, or change its columns, if necessary."""
        rows = self._kept
        if self._table.folders(self._partition_by):
            rows = with_folders(rows, self._partition_by)
        try:
            if not self._table.exists():
                note = encode(self._manifest, self._partition_by, at)
                self._table.create(nullable(rows.schema), self._partition_by, note)
            there = nullable(self._table.schema())
            self._require_columns(there)
            wanted = self._both(there, rows.schema)
            if wanted != there:
                self._table.evolve(wanted)
        except PipelineError:
            raise
        except Exception as err:
            raise PipelineError(f"cannot use the table {self.files.root}: {first_line(err)}") from err
        return selected(rows, wanted)
