"""`optimize` merges an archive's small files, and summarizes its manifest in one document.

Owns the choice of files to merge: the files of one folder with less than half of the target size. The records
stay the same: the job compares their checksums before it commits the change.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from kbroker.pipeline.archive.manifest import Entry, File, Manifest
from kbroker.pipeline.archive.opening import kind_at
from kbroker.pipeline.archive.record_columns import partition_of, sums, sums_of
from kbroker.pipeline.archive.store import FORMAT, Store, layout, now
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.ranges import Partition, Sums

TARGET_MB: int = 128
"""The default size of files, in MB."""
_FEWEST: int = 2


class Optimization:
    """One run of the job. `target` is the size in bytes that files should have."""

    def __init__(self, session: Any, root: str, target: int) -> None:
        self._store = Store(session, root)
        self._target = target

    def run(self) -> tuple[int, int]:
        """Run the job. Return the numbers of files before and after.

        Raises PipelineError, also if the archive is a table.
        """
        kind = kind_at(self._store.files.exists)
        if kind not in (None, FORMAT):
            raise PipelineError(
                f"{self._store.files.root} is in the format {kind}, whose engines merge files themselves:"
                " rewrite_data_files of Iceberg, OPTIMIZE of Delta"
            )
        self._store.require()
        with self._store.writing() as manifest:
            before = len(manifest.files)
            partition_by = layout(manifest) or "date"
            for folder, files in sorted(small_files(manifest, self._target).items()):
                self._join(manifest, folder, files, partition_by)
            manifest = self._store.summarize(self._store.load(), f"summary-{uuid.uuid4().hex}", least=_FEWEST)
            return before, len(manifest.files)

    def _join(self, manifest: Manifest, folder: str, files: list[File], partition_by: str) -> None:
        name = f"optimize-{uuid.uuid4().hex}"
        number = max(round(sum(file.bytes for file in files) / self._target), 1)
        columns, paths = files[0].columns, [file.path for file in files]
        frame = self._store.decoded(manifest, paths) if columns else self._store.frame(manifest, paths)
        spread = frame.repartitionByRange(number, "partition", "offset") if number > 1 else frame.coalesce(1)
        file_format = files[0].path.rpartition(".")[2]
        ordered = spread.sortWithinPartitions("partition", "offset")
        parts = self._store.parts(name, self._store.stage_all(name, [ordered], partition_by, file_format))
        before = ((partition_of(row), sums_of(row)) for row in sums(frame, "topic", "partition"))
        if _total((part.partition, part.sums) for part in parts) != _total(before):
            raise PipelineError(f"{folder}: the merged files do not contain the same records as the original files")
        if sum(part.sums.records for part in parts) != sum(file.records for file in files):
            raise PipelineError(f"{folder}: the files do not hold as many records as the manifest says")
        by_file: defaultdict[str, int] = defaultdict(int)
        for part in parts:
            by_file[part.file] += part.sums.records
        new = self._store.counted(name, by_file, lambda _: columns)
        self._store.commit(Entry(name, "optimize", now(), files=new, removed=tuple(file.path for file in files)))


def small_files(manifest: Manifest, target: int) -> dict[str, list[File]]:
    """Return the files to merge, by folder, format and types of columns. A single small file is not merged."""
    found: defaultdict[tuple[str, str, str], list[File]] = defaultdict(list)
    for path, file in sorted(manifest.files.items()):
        if file.bytes < target // 2:
            found[path.rpartition("/")[0], path.rpartition(".")[2], file.columns].append(file)
    return {
        f"{folder} ({kind}{columns and f', {columns}'})": files
        for (folder, kind, columns), files in found.items()
        if len(files) >= _FEWEST
    }


def _total(found: Iterable[tuple[Partition, Sums]]) -> dict[Partition, Sums]:
    total: defaultdict[Partition, Sums] = defaultdict(Sums)
    for partition, each in found:
        total[partition] += each
    return dict(total)
