"""The storage of an archive. Files become visible only after their entry is written.

Owns the order of a change. This order makes the change atomic, even if the process ends at any time:

 1. Spark writes the files below `_staging/<entry>/`, with their final names;
 2. the entry is written to `_manifest/`: this commits the change;
 3. the new files are moved to their places, replaced files are deleted, and the staging folder is deleted.

Only one process at a time changes the archive (storage/lock.py). This process first completes an unfinished step 3, and
deletes files that never reached step 2. Readers that use the folders (pandas, DuckDB, pyarrow) skip names that begin
with `_`. Between step 2 and the end of step 3, they see a part of the change. Never decides the content of an archive.
"""

from __future__ import annotations

import contextlib
import datetime
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from kbroker.failpoints import passed
from kbroker.pipeline.archive.manifest import MANY_ENTRIES, Entry, File, Manifest
from kbroker.pipeline.archive.place import Part
from kbroker.pipeline.archive.record_columns import COLUMNS, DECODED, FOLDERS, SCHEMA, partition_of, sums, sums_of
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.spark.tasks import small_frame
from kbroker.pipeline.storage.files import Files, require_shared
from kbroker.pipeline.storage.lock import WriterLock
from kbroker.pipeline.storage.swap_lock import writer_lock

MANIFEST: Final = "_manifest"
STAGING: Final = "_staging"
FORMAT: Final = "parquet"


class Store:
    """An archive's folder. Implements Place."""

    def __init__(self, session: Any, root: str) -> None:
        self.files = Files(session, root)
        self._session = session
        self._lock: WriterLock | None = None

    # -- reading ------------------------------------------------------------------------------------------

    def load(self) -> Manifest:
        """Return the manifest; it is empty for a missing folder. Raises PipelineError if the manifest is damaged.

        If another job summarizes entries meanwhile, the manifest is read again, with the summary.
        """
        while True:
            names = self._entries()
            try:
                texts = [(name.removesuffix(".json"), self.files.read(f"{MANIFEST}/{name}")) for name in names]
            except PipelineError:
                if self._entries() == names:
                    raise
            else:
                return Manifest(Entry.decode(name, text) for name, text in texts)

    def _entries(self) -> list[str]:
        found = (each.name for each in self.files.listing(MANIFEST))
        return [name for name in found if name.endswith(".json") and not name.startswith(".")]

    def require(self, *, whole: bool = True) -> Manifest:
        """Return an existing archive's manifest. With `whole`, refuse a manifest with faults. Raises PipelineError."""
        manifest = self.load()
        if not manifest.entries:
            raise PipelineError(f"{self.files.root} is no archive: it has no {MANIFEST}")
        if whole and (faults := manifest.faults()):
            raise PipelineError(f"{self.files.root} is not whole: {faults[0]}")
        return manifest

    def unfinished(self, manifest: Manifest) -> list[str]:
        """Return the changes that are committed but whose files are not yet in their places."""
        staged = {folder.name for folder in self.files.listing(STAGING)}
        return sorted(staged & {entry.name for entry in manifest.entries})

    def layout(self, manifest: Manifest) -> str | None:
        """Return the columns, besides the topic, by which this archive is partitioned.

        Return None if the archive is empty.
        """
        return layout(manifest)

    def file_faults(self, manifest: Manifest) -> list[str]:
        """Compare the folders with the manifest. Return a line for each difference."""
        there = {each.name: each.size for each in self.files.walk("")}
        faults = [f"{name} is not finished: run archive or optimize once more" for name in self.unfinished(manifest)]
        for path, file in sorted(manifest.files.items()):
            if path not in there:
                faults.append(f"{path} is missing")
            elif there[path] != file.bytes:
                faults.append(f"{path} has {there[path]:,} bytes instead of {file.bytes:,}")
        extra = sorted(there.keys() - manifest.files.keys())
        return faults + [f"{path} does not belong to the archive" for path in extra]

    def frame(self, manifest: Manifest, paths: Iterable[str] | None = None) -> Any:
        """Return the archived records of all files or of some files, as a DataFrame with Spark's column names."""
        by_format: defaultdict[str, list[str]] = defaultdict(list)
        for path in sorted(manifest.files) if paths is None else paths:
            by_format[path.rpartition(".")[2]].append(self.files.url(path))
        partition_by = layout(manifest) or "date"
        frames = [self._read(name, urls, partition_by) for name, urls in sorted(by_format.items())]
        if not frames:
            return small_frame(self._session, [], f"{SCHEMA}, {FOLDERS[partition_by]}")
        whole = frames[0]
        for each in frames[1:]:
            whole = whole.unionByName(each)
        return whole

    def decoded(self, manifest: Manifest, paths: list[str]) -> Any:
        """Return the records of some files with their decoded columns. The columns have the same types in all files."""
        partition_by, urls = layout(manifest) or "date", [self.files.url(path) for path in paths]
        file_format = paths[0].rpartition(".")[2]
        schema = small_frame(self._session, [], SCHEMA).schema
        for each in self._session.read.format(file_format).load(urls[0]).schema.fields:
            if each.name in DECODED:
                schema.add(each)
        for each in small_frame(self._session, [], FOLDERS[partition_by]).schema.fields:
            schema.add(each)
        reader = self._session.read.schema(schema).format(file_format)
        return reader.option("basePath", self.files.url()).load(urls)

    def _read(self, file_format: str, urls: list[str], partition_by: str, base: str = "") -> Any:
        reader = self._session.read.schema(f"{SCHEMA}, {FOLDERS[partition_by]}").format(file_format)
        return reader.option("basePath", self.files.url(base)).load(urls)

    # -- writing ------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def writing(self) -> Iterator[Manifest]:
        """Lock the archive for writing, complete earlier changes, and yield the manifest. Raises PipelineError."""
        with writer_lock(self.files) as lock:
            self._lock = lock
            try:
                require_shared(self._session, self.files, f"{STAGING}/trial")
                manifest = self.load()
                self.recover(manifest)
                yield manifest
            finally:
                self._lock = None

    def recover(self, manifest: Manifest) -> None:
        """Complete committed changes, and remove uncommitted changes."""
        by_name = {entry.name: entry for entry in manifest.entries}
        for folder in self.files.listing(STAGING):
            entry = by_name.get(folder.name)
            if entry is not None:
                self.place(entry)
            else:
                self.files.delete(f"{STAGING}/{folder.name}")
        for name in manifest.obsolete:
            self.files.delete(f"{MANIFEST}/{name}.json")
        for each in self.files.listing(MANIFEST):
            if each.name.startswith("."):  # an incomplete entry: its writer was killed
                self.files.delete(f"{MANIFEST}/{each.name}")

    def stage_all(self, name: str, frames: Iterable[Any], partition_by: str, file_format: str = FORMAT) -> Any:
        """Write the records of a change. Return the records as read from the files, without decoded columns.

        Each frame has its own topics and its own decoded columns.
        """
        self.files.delete(f"{STAGING}/{name}")
        url = self.files.url(f"{STAGING}/{name}")
        folders = partition_by.split(",")
        for frame in frames:
            decoded = [column for column in DECODED if column in frame.columns]
            writer = frame.select(*COLUMNS, *decoded, *folders).write.format(file_format).mode("append")
            writer.partitionBy("topic", *folders).save(url)
        return self._read(file_format, [url], partition_by, f"{STAGING}/{name}")

    def parts(self, name: str, staged: Any) -> list[Part]:
        """Return the content of a change's files. `staged` has the records as read from these files."""
        from pyspark.sql import functions as f

        rows = sums(staged.withColumn("file", f.col("_metadata.file_path")), "file", "topic", "partition")
        return [
            Part(row["file"].rpartition(f"/{name}/")[2], partition_of(row), sums_of(row), row["first"], row["last"])
            for row in rows
        ]

    def counted(self, name: str, records: dict[str, int], columns: Callable[[str], str]) -> tuple[File, ...]:
        """Return the files of a change, with the numbers of records and the text about their topic's columns."""
        return tuple(
            File(path, size, records.get(path, 0), columns(topic_of(path)))
            for path, size in sorted(self.staged(name).items())
        )

    def staged(self, name: str) -> dict[str, int]:
        """Return the files of a change, by final path, with their sizes in bytes."""
        folder = f"{STAGING}/{name}"
        return {each.name.removeprefix(f"{folder}/"): each.size for each in self.files.walk(folder)}

    def commit(self, entry: Entry) -> None:
        """Commit a change. Raises PipelineError if its name exists already."""
        assert self._lock is not None, "only the writer commits"
        self.files.sync(f"{STAGING}/{entry.name}/{file.path}" for file in entry.files)
        passed("archive.staged")
        self._lock.check()
        self.files.write(f"{MANIFEST}/{entry.name}.json", entry.encode())
        passed("archive.committed")
        self.place(entry)
        passed("archive.placed")

    def place(self, entry: Entry) -> None:
        """Complete a committed change: move its files to their places."""
        folder = f"{STAGING}/{entry.name}"
        for file in entry.files:
            if self.files.exists(f"{folder}/{file.path}"):
                self.files.move(f"{folder}/{file.path}", file.path)
                passed("archive.moved")
            elif not self.files.exists(file.path):
                raise PipelineError(f"{self.files.url(file.path)} is lost: it is neither in its place nor staged")
        self.files.sync(file.path for file in entry.files)
        for path in entry.removed:
            self.files.delete(path)
        self.files.delete(folder)

    def summarize(self, manifest: Manifest, name: str, least: int = MANY_ENTRIES) -> Manifest:
        """Combine the manifest's entries into one if there are many. Return the resulting manifest."""
        if len(manifest.entries) < least:
            return manifest
        assert self._lock is not None, "only the writer summarizes"
        self._lock.check()
        self.files.write(f"{MANIFEST}/{name}.json", manifest.summary(name, now()).encode())
        manifest = self.load()
        self.recover(manifest)
        return manifest


def layout(manifest: Manifest) -> str | None:
    """Return the columns, besides the topic, by which an archive is partitioned.

    Return None if the archive is empty.
    """
    path = next(iter(manifest.files), None)
    if path is None:
        return None
    return ",".join(part.partition("=")[0] for part in path.split("/")[1:-1])


def topic_of(path: str) -> str:
    """Return the topic that a file's path contains."""
    return path.partition("/")[0].partition("=")[2]


def now() -> str:
    """Return the current time in UTC, as text for readers of the manifest."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
