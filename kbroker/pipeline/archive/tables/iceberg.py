"""An Iceberg table at a path, as Iceberg's own Spark runtime reads and writes it.

Owns the calls into Iceberg: HadoopTables, which needs no catalog, and Spark's data source. The note of an archive is a
property in the summary of each snapshot. The search for the newest note follows the current snapshot's ancestors, so an
append of another engine between two batches is harmless. After a rollback, the search correctly finds an older note.
"""

from __future__ import annotations

from typing import Any, Final

from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.spark.connectors import ICEBERG, require_class

NOTE: Final = "kbroker.archive"
"""The property that contains the note. It belongs to a snapshot, or to the table before the first snapshot."""
HINT: Final = "metadata/version-hint.text"
"""The file by which a table at a path is recognized."""
_PROPERTIES: Final = {
    "format-version": "2",
    # Each task writes the records of one partition to files of its own, without a shuffle by day.
    "write.distribution-mode": "none",
    # Without this property, each commit would leave a file of metadata forever.
    "write.metadata.delete-after-commit.enabled": "true",
}


class IcebergTable:
    """Implements Table."""

    kind = "Iceberg"
    widens = True

    def __init__(self, session: Any, url: str) -> None:
        self._session = session
        self._url = url
        self._jvm = session._jvm  # noqa: SLF001 - pyspark has no other access to Iceberg's tables
        tables = require_class(session, "org.apache.iceberg.hadoop.HadoopTables", ICEBERG.what)
        self._tables = tables(session._jsc.hadoopConfiguration())  # noqa: SLF001

    def exists(self) -> bool:
        return bool(self._tables.exists(self._url))

    def note(self) -> str | None:
        table = self._tables.load(self._url)
        snapshot = table.currentSnapshot()
        while snapshot is not None:
            found = snapshot.summary().get(NOTE)
            if found is not None:
                return str(found)
            parent = snapshot.parentId()
            if parent is None:
                break
            snapshot = table.snapshot(parent)
            if snapshot is None:
                raise PipelineError(
                    f"{self._url} does not say what was archived: the snapshots of the archive have expired;"
                    " archive to another place"
                )
        found = table.properties().get(NOTE)
        return None if found is None else str(found)

    def folders(self, partition_by: str) -> tuple[str, ...]:
        del partition_by
        return ()  # the table is partitioned by transforms of the timestamp

    def create(self, schema: Any, partition_by: str, note: str) -> None:
        converted = self._converted(schema)
        spec = self._jvm.org.apache.iceberg.PartitionSpec.builderFor(converted).identity("topic")
        spec = spec.hour("timestamp") if "hour" in partition_by else spec.day("timestamp")
        self._tables.create(converted, spec.build(), {**_PROPERTIES, NOTE: note}, self._url)

    def schema(self) -> Any:
        return self.frame().schema

    def evolve(self, schema: Any) -> None:
        self._tables.load(self._url).updateSchema().unionByNameWith(self._converted(schema)).commit()

    def frame(self) -> Any:
        return self._session.read.format("iceberg").load(self._url)

    def append(self, frame: Any, note: str, stream: str, batch: int) -> None:
        del stream, batch  # the note contains the stream and the batch
        frame.write.format("iceberg").mode("append").option(f"snapshot-property.{NOTE}", note).save(self._url)

    def tidy(self, most: int) -> None:
        table = self._tables.load(self._url)
        newest = table.currentSnapshot()
        if len(list(table.snapshots())) > most and newest is not None and newest.summary().get(NOTE) is not None:
            table.expireSnapshots().commit()

    def _converted(self, schema: Any) -> Any:
        kind = self._jvm.org.apache.spark.sql.types.DataType.fromJson(schema.json())
        return self._jvm.org.apache.iceberg.spark.SparkSchemaUtil.convert(kind)
