"""`archive` copies the records of topics to files, each offset once, even if the job ends at any moment.

Owns the stream and the work of one batch. A batch is a range of offsets for each partition, which Spark writes to its
checkpoint before it reads them, so that a repeated batch has the same offsets. A batch is committed once its entry is
in the archive's manifest (store.py), or in a commit of its table (tables/). The entry or commit names the stream and
the batch, so that a repeated batch is skipped. Records of aborted transactions are not read (`read_committed`). Never
deletes anything in the topics.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kbroker.pipeline.archive.manifest import MANY_ENTRIES, Entry, Manifest
from kbroker.pipeline.archive.opening import new_place
from kbroker.pipeline.archive.record_columns import holes, offsets_of, with_folders, within
from kbroker.pipeline.archive.store import FORMAT, now
from kbroker.pipeline.decoding.topics import DecodedTopics
from kbroker.pipeline.errors import PipelineError, first_line
from kbroker.pipeline.kafka.cluster import Cluster
from kbroker.pipeline.progress import Progress
from kbroker.pipeline.ranges import Partition, Range, Sums
from kbroker.pipeline.spark.checkpoint import Checkpoint, Offsets

_EARLIEST: Final = -2  # the value in Spark's `startingOffsets`
_SHORT_ID: Final = 8


@dataclass(frozen=True, slots=True)
class ArchiveOptions:
    """The topics to archive, and the destination."""

    topics: tuple[str, ...]
    pattern: str | None
    to: str
    checkpoint: str
    every: str | None = None
    """The interval between batches ("1 minute"). If None, the job ends when all current records are archived."""
    format: str = FORMAT
    partition_by: str = "date"
    allow_gaps: bool = False
    batch_records: int = 1_000_000
    """The maximum number of offsets in one batch.

    This limits the work that is lost after a kill, and the size of a file.
    """
    group: str = ""
    """The consumer group whose committed offsets show the progress; empty for no group."""


class Archive:
    """One run of the job."""

    most_entries = MANY_ENTRIES

    def __init__(
        self,
        session: Any,
        cluster: Cluster,
        options: ArchiveOptions,
        progress: Progress,
        decoding: DecodedTopics | None = None,
    ) -> None:
        self._session = session
        self._cluster = cluster
        self._options = options
        self._progress = progress
        self._decoding = decoding
        self._store = new_place(session, options.to, options.format)
        self._checkpoint = Checkpoint(session, options.checkpoint)
        self._topics: dict[str, int] = {}
        self._failure: BaseException | None = None
        self._ids: dict[str, str] = {}
        self._done: dict[str, int] = {}
        self._ends: Offsets = {}
        self._entries = 0
        self.records = 0
        """The number of records archived by this run."""

    def run(self) -> None:
        """Archive until all records are archived, or until the stream is stopped. Raises PipelineError."""
        self._topics = self._chosen()
        if self._decoding is not None:
            self._decoding.prepare(self._topics)
        with self._store.writing() as manifest:
            manifest = self._summarize(manifest)
            self._check(manifest)
            self._done, self._ends = manifest.queries, manifest.ends()
            self._ids = {name: known for name, known in manifest.topics.items() if name in self._topics}
            self._check_ids()
            self._run(self._start(manifest))

    def _run(self, query: Any) -> None:
        try:
            query.awaitTermination()
        except Exception as err:
            raise self._explained(err) from err
        finally:
            with contextlib.suppress(Exception):  # report the first error
                query.stop()
        if self._failure is not None:
            raise self._explained(self._failure)

    # -- before the start -----------------------------------------------------------------------------------

    def _chosen(self) -> dict[str, int]:
        """Return the topics to archive. Patterns are Java's, because Spark uses the same pattern to find new topics."""
        pattern = self._options.pattern
        if pattern is None:
            return self._cluster.chosen(self._options.topics)
        matches = self._session._jvm.java.util.regex.Pattern.matches  # noqa: SLF001 - pyspark has no other access to it
        existing = self._cluster.topics()
        try:
            found = {name: count for name, count in existing.items() if matches(pattern, name)}
        except Exception as err:
            raise PipelineError(f"--pattern {pattern}: {first_line(err)}") from err
        if not found:
            raise PipelineError(f"no topic at {self._cluster.clients.bootstrap} matches {pattern}")
        return found

    def _check(self, manifest: Manifest) -> None:
        """Refuse options that would leave a gap or write records twice."""
        options = self._options
        if _visible_below(self._checkpoint.url(), self._store.files.url()):
            raise PipelineError(f"the checkpoint {options.checkpoint} would lie among the files of {options.to}")
        if not manifest.entries and (others := self._store.files.visible()):
            raise PipelineError(f"{options.to} is no archive, and holds {others[0]}: take a folder of its own")
        if self._checkpoint.holds("stream"):
            raise PipelineError(f"the checkpoint {options.checkpoint} belongs to a count of visits; take a new one")
        if (found := self._store.layout(manifest)) not in (None, options.partition_by):
            raise PipelineError(f"{options.to} is partitioned by {found}, not by {options.partition_by}")
        if faults := manifest.faults():
            raise PipelineError(f"{options.to} is not whole: {faults[0]}")
        ends = manifest.ends()
        query = self._checkpoint.query()
        if query is not None:
            self._check_checkpoint(manifest, query, ends)
        self._check_upstream(ends)

    def _check_checkpoint(self, manifest: Manifest, query: str, ends: Offsets) -> None:
        where, done = self._options.checkpoint, self._checkpoint.committed()
        if self._checkpoint.planned() >= 0:
            known = {p.topic for p in self._checkpoint.ends(self._checkpoint.planned())}
            self._check_topics(known, under_way=self._checkpoint.planned() > done)
        archived = manifest.queries.get(query, -1)
        if archived < done:
            raise PipelineError(
                f"the checkpoint {where} is ahead of {self._options.to}: it is another archive's, or this is an old"
                " copy; take a new checkpoint"
            )
        if archived >= 0:
            for partition, end in self._checkpoint.ends(archived).items():
                if ends.get(partition, end) != end:
                    raise PipelineError(
                        f"the checkpoint {where} ends {partition} at {end}, but {self._options.to} was continued"
                        f" with another one up to {ends[partition]}; take a new one"
                    )
        elif (
            ends
            and self._checkpoint.planned() >= 0
            and any(ends.get(partition, start) != start for partition, start in self._checkpoint.starts(0).items())
        ):
            raise PipelineError(f"the checkpoint {where} is not the one of {self._options.to}; take a new one")

    def _check_topics(self, known: set[str], *, under_way: bool) -> None:
        """Refuse a checkpoint that contains other topics. Accept deleted topics only if gaps are allowed."""
        others = known - self._topics.keys()
        deleted = others - self._cluster.topics().keys() if others else set()
        if others - deleted:
            names = ", ".join(sorted(others - deleted))
            raise PipelineError(f"the checkpoint {self._options.checkpoint} belongs to topic {names}")
        if deleted and under_way:
            raise PipelineError(
                f"{', '.join(sorted(deleted))} was deleted upstream while it was being archived, and the batch under"
                f" way cannot be read any more: take a new checkpoint, which goes on where {self._options.to} ends"
            )
        if deleted and not self._options.allow_gaps:
            raise PipelineError(
                f"{', '.join(sorted(deleted))} was deleted upstream, and what it held last may not be archived;"
                " --allow-gaps goes on without it"
            )

    def _check_ids(self) -> None:
        """Refuse a topic that was recreated after it was archived. Record the ids of new topics."""
        for name, found in self._cluster.ids(self._topics).items():
            if self._ids.setdefault(name, found) != found:
                raise PipelineError(f"{name} was made anew since it was archived; archive it to another place")

    def _check_upstream(self, ends: Offsets) -> None:
        for partition, (first, last) in sorted(self._cluster.bounds(self._topics).items()):
            end = ends.get(partition, 0)
            if end > last:
                raise PipelineError(
                    f"{partition} ends at {last}, but was archived up to {end}: the topic was recreated or truncated"
                )
            if end < first and not self._options.allow_gaps:
                raise _deleted(partition, end, first)

    # -- the stream -----------------------------------------------------------------------------------------

    def _start(self, manifest: Manifest) -> Any:
        options = self._options
        reader = self._session.readStream.format("kafka").options(**self._cluster.spark_options())
        if options.pattern is not None:
            reader = reader.option("subscribePattern", options.pattern)
        else:
            reader = reader.option("subscribe", ",".join(self._topics))
        frame = (
            reader.option("startingOffsets", self._starting_offsets(manifest))
            .option("includeHeaders", "true")
            .option("failOnDataLoss", str(not options.allow_gaps).lower())
            .option("maxOffsetsPerTrigger", str(options.batch_records))
            .option("kafka.isolation.level", "read_committed")
            .load()
        )
        trigger = {"availableNow": True} if options.every is None else {"processingTime": options.every}
        writer = frame.writeStream.foreachBatch(self._on_batch)
        writer = writer.option("checkpointLocation", self._checkpoint.url())
        try:
            return writer.trigger(**trigger).start()
        except Exception as err:
            raise self._explained(err) from err

    def _starting_offsets(self, manifest: Manifest) -> str:
        """Return a new stream's start offsets: the ends of the archive. With a checkpoint, Spark ignores them."""
        ends = manifest.ends()
        places: dict[str, dict[str, int]] = {
            topic: {str(number): ends.get(Partition(topic, number), _EARLIEST) for number in range(count)}
            for topic, count in self._topics.items()
        }
        return json.dumps(places)

    def _on_batch(self, frame: Any, batch: int) -> None:
        try:
            self._take_in(frame, batch)
        except BaseException as err:
            self._failure = err
            raise

    def _take_in(self, frame: Any, batch: int) -> None:
        query = self._checkpoint.query()
        if query is None:
            raise PipelineError(f"the checkpoint {self._options.checkpoint} has vanished")
        if batch <= self._done.get(query, -1):
            return
        name = f"archive-{query[:_SHORT_ID]}-{batch:09d}"
        staged = self._stage(name, with_folders(frame, self._options.partition_by), batch)
        ranges, by_file = self._ranges(name, staged, batch)
        gaps = self._gaps(staged, ranges) if self._options.allow_gaps else ()
        topics = {each.partition.topic for each in ranges}
        self._topics |= dict.fromkeys(topics - self._topics.keys(), 0)
        self._cluster.patiently(self._check_ids)
        entry = Entry(
            name,
            "archive",
            now(),
            tuple(ranges),
            gaps,
            self._store.counted(name, by_file, self._columns),
            queries={query: batch},
            topics={name: self._ids[name] for name in topics & self._ids.keys()},
        )
        self._store.commit(entry)
        self._done[query] = batch
        self._entries += 1
        if self._entries >= self.most_entries:
            self._summarize(self._store.load())
        self._report(entry, batch)

    def _stage(self, name: str, frame: Any, batch: int) -> Any:
        """Write a batch's files, with the columns that each topic has. Return the records in the files."""
        partition_by = self._options.partition_by
        if self._decoding is None:
            return self._store.stage_all(name, [frame], partition_by)
        starts = self._checkpoint.starts(batch)
        topics = {each.topic for each, end in self._checkpoint.ends(batch).items() if starts.get(each, -1) != end}
        with self._decoding.frames(frame, topics) as frames:
            return self._store.stage_all(name, frames, partition_by)

    def _columns(self, topic: str) -> str:
        return "" if self._decoding is None else self._decoding.fingerprint(topic)

    def _summarize(self, manifest: Manifest) -> Manifest:
        """Combine the manifest's entries into one entry when there are many, because a stream may run for years."""
        summary = self._store.summarize(manifest, f"summary-{uuid.uuid4().hex}", self.most_entries)
        self._entries = len(summary.entries)
        return summary

    def _ranges(self, name: str, staged: Any, batch: int) -> tuple[list[Range], dict[str, int]]:
        """Return the range of each partition in a batch, and the records in each file."""
        found: dict[Partition, tuple[Sums, int, int]] = {}
        by_file: dict[str, int] = {}
        for file, partition, part, least, most in self._store.parts(name, staged):
            by_file[file] = by_file.get(file, 0) + part.records
            total, first, last = found.get(partition, (Sums(), least, most))
            found[partition] = (total + part, min(first, least), max(last, most))
        ranges = []
        starts = self._checkpoint.starts(batch)
        for partition, end in sorted(self._checkpoint.ends(batch).items()):
            start = self._ends.get(partition, 0)
            if starts.get(partition, 0) > start and not self._options.allow_gaps:
                raise _deleted(partition, start, starts[partition])
            if start == end:
                continue
            total, first, last = found.pop(partition, (Sums(), end, end - 1))
            if first < start or last >= end or total.records > end - start:
                raise PipelineError(f"{partition}: batch {batch} is {start} to {end - 1}, Spark read {first} to {last}")
            ranges.append(Range(partition, start, end, total))
        if found:
            raise PipelineError(f"batch {batch} has records of {min(found)}, which is not in its plan")
        return ranges, by_file

    def _gaps(self, staged: Any, ranges: list[Range]) -> tuple[Range, ...]:
        """Return the gaps in a batch: offsets of records that the topic deleted before the job could read them.

        Records that were read before their deletion are not gaps. Transaction markers and compacted records cannot be
        distinguished from deleted records afterwards, so they count as deleted.
        """
        before = self._log_starts({each.partition.topic for each in ranges})
        deleted = {
            each.partition: (each.start, min(before.get(each.partition, each.start), each.end))
            for each in ranges
            if before.get(each.partition, each.start) > each.start
        }
        if not deleted:
            return ()
        return tuple(
            Range(partition, start, end)
            for partition, bounds in sorted(deleted.items())
            for start, end in holes(offsets_of(within(staged, {partition: bounds})), bounds)
        )

    def _log_starts(self, topics: set[str]) -> Offsets:
        def ask() -> Offsets:
            existing = self._cluster.topics()
            bounds = self._cluster.bounds({name: existing[name] for name in topics & existing.keys()})
            return {partition: first for partition, (first, _) in bounds.items()}

        return self._cluster.patiently(ask)

    # -- after a batch --------------------------------------------------------------------------------------

    def _report(self, entry: Entry, batch: int) -> None:
        for each in entry.ranges:
            self._ends[each.partition] = each.end
        records = sum(each.sums.records for each in entry.ranges)
        self.records += records
        self._progress.step(records, self._lag(), batch=batch, gaps=len(entry.gaps))

    def _lag(self) -> int | None:
        """Return the number of offsets that are not archived yet, and update the progress group.

        Return None if no broker answers.
        """
        try:
            existing = self._cluster.topics()
            bounds = self._cluster.bounds({name: existing[name] for name in self._topics if name in existing})
            if self._options.group:
                self._cluster.show_progress(self._options.group, {p: self._ends[p] for p in bounds if p in self._ends})
        except Exception:  # noqa: BLE001 - it is for display only, and the stream continues without
            return None
        return sum(max(last - max(self._ends.get(p, 0), first), 0) for p, (first, last) in bounds.items())

    def _explained(self, err: BaseException) -> PipelineError:
        cause = self._failure or err
        if isinstance(cause, PipelineError):
            return cause
        return PipelineError(_in_words(cause))


def _deleted(partition: Partition, start: int, end: int) -> PipelineError:
    return PipelineError(
        f"{partition}: offsets {start} to {end - 1} were deleted before they were archived;"
        " --allow-gaps goes on behind them and notes the gap"
    )


def _visible_below(inner: str, outer: str) -> bool:
    """Whether `inner` is the folder `outer`, or is inside it and visible to readers (not below `_` or `.`)."""
    if inner == outer:
        return True
    return inner.startswith(f"{outer}/") and inner[len(outer) + 1] not in "_."


def _in_words(err: BaseException) -> str:
    text = str(err)
    for sign, words in _SIGNS.items():
        if sign in text:
            return f"{words}: {first_line(err)}"
    return first_line(err)


_SIGNS: Final[Mapping[str, str]] = {
    "data may have been lost": "offsets were deleted before they were archived (--allow-gaps goes on behind them)",
    "KAFKA_DATA_LOSS": "offsets were deleted before they were archived (--allow-gaps goes on behind them)",
    "TimeoutException": "the brokers do not answer",
}
