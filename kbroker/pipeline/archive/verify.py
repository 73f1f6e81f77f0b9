"""`verify` checks whether the archive contains every record of the topics exactly once.

Owns the three comparisons: the manifest with itself (no offset is missing or repeated), the files with the manifest
(names, sizes, numbers of records and checksums), and the records with those that the brokers still have. Never changes
an archive. Records that were deleted on the brokers meanwhile (retention, compaction) are reported, but are not a
fault.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from kbroker.pipeline.archive.manifest import Manifest
from kbroker.pipeline.archive.opening import open_place
from kbroker.pipeline.archive.record_columns import partition_of, record_hash, sums, sums_of, within
from kbroker.pipeline.errors import PipelineError, first_line, of_spark
from kbroker.pipeline.kafka.cluster import Cluster
from kbroker.pipeline.ranges import Partition, Sums

HEADERS: Final = ("partition", "offsets", "records", "checksum", "gaps", "deleted upstream", "to archive", "compared")
_TRIES: Final = 5
_PAUSE_S: Final = 1.0
Bounds = dict[Partition, tuple[int, int]]


@dataclass(slots=True)
class PartitionState:
    """The result for one partition. All numbers are offsets; `end` is exclusive."""

    topic: str
    partition: int
    start: int
    end: int
    records: int
    checksum: str
    gaps: int
    """The number of offsets that the manifest lists as deleted before they were archived."""
    deleted_upstream: int = 0
    """The number of archived offsets that the brokers no longer have."""
    to_archive: int = 0
    """The number of offsets that the brokers have, but the archive does not have yet."""
    compared: int = 0
    """The number of records that are equal in the archive and on the brokers."""

    def row(self) -> tuple[object, ...]:
        """Return the cells of a table row, in the order of HEADERS."""
        place = f"{self.topic}-{self.partition}"
        offsets = f"{self.start}..{self.end - 1}"
        after = (self.gaps, self.deleted_upstream, self.to_archive, self.compared)
        return (place, offsets, self.records, self.checksum, *after)


@dataclass(slots=True)
class Report:
    """The result of a verification."""

    partitions: list[PartitionState] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def encode(self) -> dict[str, Any]:
        """Return the report as values for JSON."""
        return {"partitions": [asdict(each) for each in self.partitions], "faults": self.faults}


class Verification:
    """One run of the job, for all topics of an archive or for some of them."""

    def __init__(self, session: Any, cluster: Cluster, root: str, topics: tuple[str, ...]) -> None:
        self._session = session
        self._cluster = cluster
        self._store = open_place(session, root)
        self._topics = topics
        self._report = Report()
        self._missing: dict[Partition, int] = {}

    def run(self) -> Report:
        """Compare the archive with the topics. Raises PipelineError if the archive or a topic does not exist.

        If another job writes to the archive meanwhile, an apparent fault is checked again.
        """
        for _ in range(_TRIES):
            manifest = self._store.require(whole=False)
            before = self._written(manifest)
            self._report, self._missing = Report(), {}
            failure = self._compare_or_fail(manifest)
            if failure is None and not self._report.faults:
                break
            changes, unfinished = self._written(self._store.require(whole=False))
            if (changes, unfinished) == before and not unfinished:
                break
            time.sleep(_PAUSE_S)
        if failure is not None:
            raise PipelineError(f"cannot compare {self._store.files.root} with the brokers: {failure}")
        return self._report

    def _compare_or_fail(self, manifest: Manifest) -> str | None:
        """Compare everything.

        Return the text of Spark's error, if any: a job that merges files may delete files meanwhile.
        """
        try:
            self._compare_all(manifest)
        except Exception as err:
            if not of_spark(err):
                raise
            return first_line(err)
        return None

    def _written(self, manifest: Manifest) -> tuple[list[str], list[str]]:
        """Return facts that another job's writes change: the entries, and the changes not yet in place."""
        return sorted(entry.name for entry in manifest.entries), self._store.unfinished(manifest)

    def _compare_all(self, manifest: Manifest) -> None:
        present = {partition.topic for partition in manifest.ranges}
        if unknown := sorted(set(self._topics) - present):
            raise PipelineError(f"{', '.join(unknown)} is not in {self._store.files.root}")
        wanted = set(self._topics) or present
        existing = self._cluster.topics()
        topics = {name: existing.get(name, 0) for name in sorted(wanted)}
        self._report.faults += manifest.faults()
        if self._check_files(manifest):
            found = self._sums(self._store.frame(manifest))
            if found is None:
                return
            self._check_sums(manifest, found, topics)
            self._check_twice(self._store.frame(manifest))
            self._check_upstream(manifest, {name: count for name, count in topics.items() if count})

    # -- files ----------------------------------------------------------------------------------------------

    def _check_files(self, manifest: Manifest) -> bool:
        """Compare the files with the manifest. Return False after faults: records cannot be compared then."""
        faults = self._store.file_faults(manifest)
        self._report.faults += faults
        return not faults

    def _sums(self, frame: Any) -> dict[Partition, Sums] | None:
        try:
            return {partition_of(row): sums_of(row) for row in sums(frame, "topic", "partition")}
        except Exception as err:  # noqa: BLE001 - a damaged file may raise any of a reader's errors
            self._report.faults.append(f"the files cannot be read: {first_line(err)}")
            return None

    def _check_sums(self, manifest: Manifest, found: dict[Partition, Sums], topics: dict[str, int]) -> None:
        for partition, ranges in sorted(manifest.ranges.items()):
            if partition.topic not in topics:
                continue
            noted, there = _sum_of(manifest, partition), found.get(partition, Sums())
            if there.records != noted.records:
                self._report.faults.append(
                    f"{partition}: {there.records:,} records in the files, {noted.records:,} in the manifest"
                )
            elif there != noted:
                self._report.faults.append(f"{partition}: the files' checksum is not the manifest's")
            gaps = sum(gap.end - gap.start for gap in manifest.gaps.get(partition, ()))
            self._report.partitions.append(
                PartitionState(
                    *partition, ranges[0].start, ranges[-1].end, there.records, f"{there.checksum:016x}", gaps
                )
            )

    def _check_twice(self, frame: Any) -> None:
        """Report offsets that have more than one record in the archive."""
        from pyspark.sql import functions as f

        twice = frame.groupBy("topic", "partition", "offset").count().where("count > 1")
        for row in twice.groupBy("topic", "partition").agg(f.count("*").alias("offsets")).collect():
            self._report.faults.append(f"{partition_of(row)}: {row['offsets']:,} offsets are there more than once")

    # -- upstream -------------------------------------------------------------------------------------------

    def _check_upstream(self, manifest: Manifest, topics: dict[str, int]) -> None:
        bounds = self._cluster.bounds(topics)
        ids = self._cluster.ids(topics)
        for name in sorted(ids):
            if manifest.topics.get(name, ids[name]) != ids[name]:
                self._report.faults.append(f"{name} was created again after it was archived")
        common: Bounds = {}
        for state in self._report.partitions:
            partition = Partition(state.topic, state.partition)
            first, last = bounds.get(partition, (state.end, state.end))
            if last < state.end:
                self._report.faults.append(
                    f"{partition} ends at {last}, but was archived up to {state.end}: it was made anew or cut off"
                )
            state.deleted_upstream = max(min(first, state.end) - state.start, 0)
            state.to_archive = max(last - max(state.end, first), 0)
            start, end = max(first, state.start), min(last, state.end)
            if start < end:
                common[partition] = (start, end)
        for partition, (first, last) in sorted(bounds.items()):
            if partition not in manifest.ranges and first < last:
                state = PartitionState(*partition, first, first, 0, f"{0:016x}", 0, to_archive=last - first)
                self._report.partitions.append(state)
        if common:
            self._compare(manifest, common)

    def _compare(self, manifest: Manifest, common: Bounds) -> None:
        """Compare the archived records with the brokers' records, at the offsets that both have."""
        upstream = self._upstream(common)
        archived = within(self._store.frame(manifest), common)
        there = {partition_of(row): sums_of(row) for row in sums(upstream, "topic", "partition")}
        here = {partition_of(row): sums_of(row) for row in sums(archived, "topic", "partition")}
        states = {Partition(each.topic, each.partition): each for each in self._report.partitions}
        different: Bounds = {}
        for partition, bounds in common.items():
            if here.get(partition) == there.get(partition):
                states[partition].compared = here.get(partition, Sums()).records
            else:
                different[partition] = bounds
        if different := self._still_upstream(different, states):
            self._explain(within(upstream, different), within(archived, different), states)
            self._judge_missing(states, different)

    def _still_upstream(self, bounds: Bounds, states: dict[Partition, PartitionState]) -> Bounds:
        """Return the bounds, but without the offsets that retention has deleted meanwhile.

        Count these offsets as deleted upstream.
        """
        existing = self._cluster.topics()
        numbers = {p.topic: existing[p.topic] for p in bounds if p.topic in existing}
        now = self._cluster.bounds(numbers)
        found: Bounds = {}
        for partition, (start, end) in bounds.items():
            first = min(max(now[partition][0], start), end) if partition in now else end
            states[partition].deleted_upstream += first - start
            if first < end:
                found[partition] = (first, end)
        return found

    def _explain(self, upstream: Any, archived: Any, states: dict[Partition, PartitionState]) -> None:
        """Report records that only the archive has, that only the brokers have, or that differ."""
        from pyspark.sql import functions as f

        place = ["topic", "partition", "offset"]
        here = archived.select(*place, record_hash().alias("here"))
        there = upstream.select(*place, record_hash().alias("there"))
        counts: defaultdict[Partition, dict[str, int]] = defaultdict(dict)
        kind = f.when(f.isnull("here"), "missing").when(f.isnull("there"), "gone").when(f.expr("here = there"), "same")
        rows = here.join(there, place, "full_outer").groupBy(
            "topic", "partition", kind.otherwise("other").alias("kind")
        )
        for row in rows.count().collect():
            counts[partition_of(row)][row["kind"]] = row["count"]
        for partition, found in sorted(counts.items()):
            states[partition].compared = found.get("same", 0)
            self._missing[partition] = found.get("gone", 0)
            if "missing" in found:
                self._report.faults.append(f"{partition}: {found['missing']:,} records are not archived")
            if "other" in found:
                self._report.faults.append(f"{partition}: {found['other']:,} records are not what the brokers have")

    def _judge_missing(self, states: dict[Partition, PartitionState], bounds: Bounds) -> None:
        """Count archived records that the brokers lack.

        Report a fault if neither retention nor compaction explains the lack.
        """
        missing = {partition: number for partition, number in self._missing.items() if number}
        for partition, number in missing.items():
            states[partition].deleted_upstream += number
        compacted = self._cluster.compacted({p.topic for p in missing} & self._cluster.topics().keys())
        left = self._still_upstream({partition: bounds[partition] for partition in missing}, states) if missing else {}
        for partition, number in sorted(missing.items()):
            if partition.topic not in compacted and left.get(partition) == bounds[partition]:
                self._report.faults.append(
                    f"{partition}: {number:,} archived records are not in the topic, which is not compacted"
                )

    def _upstream(self, common: Bounds) -> Any:
        starts: defaultdict[str, dict[str, int]] = defaultdict(dict)
        ends: defaultdict[str, dict[str, int]] = defaultdict(dict)
        for partition, (start, end) in common.items():
            starts[partition.topic][str(partition.number)] = start
            ends[partition.topic][str(partition.number)] = end
        chosen = {topic: sorted(map(int, numbers)) for topic, numbers in starts.items()}
        return (
            self._session.read.format("kafka")
            .options(**self._cluster.spark_options())
            .option("assign", json.dumps(chosen))
            .option("startingOffsets", json.dumps(starts))
            .option("endingOffsets", json.dumps(ends))
            .option("includeHeaders", "true")
            .option("failOnDataLoss", "false")
            .option("kafka.isolation.level", "read_committed")
            .load()
        )


def _sum_of(manifest: Manifest, partition: Partition) -> Sums:
    return sum((each.sums for each in manifest.ranges.get(partition, ())), Sums())
