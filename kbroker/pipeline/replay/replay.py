"""`replay` sends an archive's records to a topic, in order per partition.

Owns the run from slice to slice, and the selection of the records to send. Spark's own sink sends them. One task has
all records of a partition, sorted by offset, and the producer is idempotent, so they arrive in order.

A run that ends within a slice leaves some of its records in the target. With `exactly_once`, each sent record has a
header with the record's position in the archive. The next run reads the target from the end offsets at which that slice
began, and skips the records that have arrived. Without `exactly_once`, the complete slice is sent again, with a
warning.

Only our own producer (`writer.py`) can keep timestamps, because Spark's sink has no column for timestamps.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from kbroker.failpoints import passed
from kbroker.pipeline.archive.manifest import Manifest
from kbroker.pipeline.archive.opening import open_place
from kbroker.pipeline.archive.record_columns import within
from kbroker.pipeline.errors import PipelineError, first_line
from kbroker.pipeline.kafka.cluster import Cluster
from kbroker.pipeline.progress import Progress
from kbroker.pipeline.ranges import Partition
from kbroker.pipeline.replay.plan import Bounds, Bucket, Slice, after, by_count, by_time
from kbroker.pipeline.replay.state import ReplayState, StateFile
from kbroker.pipeline.replay.writer import write_with_timestamps
from kbroker.pipeline.spark.tasks import first_attempt_only, lost_in, one_task_each

HEADER: Final = "kbroker.replay"
"""The header of a sent record that contains its origin: `replay's id/topic/partition/offset`."""
_STEP_S: Final = 2.0  # the length of a timed replay's slice, in seconds: a Spark job takes a large part of a second
_MOST_BUCKETS: Final = 100_000
_SETTLED_S: Final = 1.0
_MOST_CHECKS: Final = 20
_DELIVERY_MS: Final = 600_000


def check_delay(cluster: Cluster, topic: str, *, exactly_once: bool) -> None:
    """Raise PipelineError if the target of an exactly-once replay is a delay topic.

    A resumed replay reads the target to find the records that it has sent, but this read would not return delayed
    records.
    """
    if exactly_once and cluster.config(topic, "delivery.delay.ms") not in ("", "0"):
        raise PipelineError(f"{topic} has delivery.delay.ms: --exactly-once cannot see records that wait; set it later")


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """The records to replay, and the options of the replay."""

    root: str
    to_topic: str
    topics: tuple[str, ...] = ()
    since: str | None = None
    until: str | None = None
    where: str | None = None
    speed: float | None = None
    """The speed relative to the original timestamps. If None, records are sent as fast as possible."""
    keep_timestamps: bool = False
    exactly_once: bool = False
    restart: bool = False
    slice_records: int = 1_000_000

    def identity(self) -> dict[str, Any]:
        """Return the options that must be the same when a replay is resumed."""
        names = ("topics", "since", "until", "where", "keep_timestamps", "exactly_once")
        return {name: list(v) if isinstance(v := getattr(self, name), tuple) else v for name in names}


class Replay:
    """One run of the job. `report` receives lines for people."""

    def __init__(
        self, session: Any, cluster: Cluster, options: ReplayOptions, progress: Progress, report: Callable[[str], None]
    ) -> None:
        self._session = session
        self._cluster = cluster
        self._options = options
        self._progress = progress
        self._report = report
        self._store = open_place(session, options.root)
        self._manifest = Manifest(())
        self._frame: Any = None
        self._file = StateFile(session, self._store.files, cluster.identity(), options.to_topic)
        self.records = 0
        """The number of records sent by this run."""

    def run(self) -> None:
        """Send the remaining records. Raises PipelineError."""
        self._manifest = self._store.require()
        if unfinished := self._store.unfinished(self._manifest):
            raise PipelineError(f"{unfinished[0]} is not finished: run archive or optimize once more")
        bounds = self._bounds()
        self._frame = self._records()
        with self._file.only_one():
            self._replay(bounds)

    def _replay(self, bounds: Bounds) -> None:
        state = self._begin()
        self._prepare_target(bounds, state)
        if state.under_way:
            self._take_up(state)
        slices = after(self._slices(bounds), state.done)
        if not slices:
            self._report(f"{self._options.to_topic} has all of it; --restart sends it again")
        left = sum(end - start for each in slices for start, end in each.bounds.values())
        started = time.monotonic()
        for each in slices:
            time.sleep(max(started + each.due - time.monotonic(), 0))
            sent = self._send(state, each.bounds)
            left -= sum(end - start for start, end in each.bounds.values())
            self._progress.step(sent, left)

    # -- the records ------------------------------------------------------------------------------------------

    def _bounds(self) -> Bounds:
        chosen = set(self._options.topics) or {p.topic for p in self._manifest.ranges}
        if missing := chosen - {p.topic for p in self._manifest.ranges}:
            raise PipelineError(f"{', '.join(sorted(missing))} is not in {self._options.root}")
        return {p: (r[0].start, r[-1].end) for p, r in self._manifest.ranges.items() if p.topic in chosen}

    def _records(self) -> Any:
        """Return the records to send, in no particular order."""
        from pyspark.sql import functions as f

        options = self._options
        frame = self._store.frame(self._manifest)
        try:
            if options.topics:
                frame = frame.where(f.col("topic").isin(*options.topics))
            if options.since is not None:
                frame = frame.where(f.col("timestamp") >= f.lit(options.since).cast("timestamp"))
            if options.until is not None:
                frame = frame.where(f.col("timestamp") < f.lit(options.until).cast("timestamp"))
            return frame.where(options.where) if options.where is not None else frame
        except Exception as err:
            raise PipelineError(f"--where: {first_line(err)}") from err

    def _slices(self, bounds: Bounds) -> list[Slice]:
        if self._options.speed is None:
            return by_count(bounds, self._options.slice_records)
        from pyspark.sql import functions as f

        total = sum(end - start for start, end in bounds.values())
        width = max(total // _MOST_BUCKETS, 1)
        rows = (
            self._frame.groupBy("topic", "partition", f.floor(f.col("offset") / width))
            .agg(f.min("offset").alias("first"), f.unix_millis(f.max("timestamp")).alias("newest"))
            .collect()
        )
        buckets = [Bucket(Partition(row["topic"], row["partition"]), row["first"], row["newest"]) for row in rows]
        return by_time(bounds, buckets, self._options.speed, _STEP_S)

    # -- start and resume --------------------------------------------------------------------------------------

    def _begin(self) -> ReplayState:
        identity = self._options.identity()
        if self._options.restart:
            self._file.forget()
        state = self._file.load()
        if state is None:
            state = ReplayState(identity)
        elif state.options != identity:
            raise PipelineError(
                f"a replay into {self._options.to_topic} was begun with other options; --restart begins anew"
            )
        return state

    def _prepare_target(self, bounds: Bounds, state: ReplayState) -> None:
        needed = max((p.number for p in bounds), default=0) + 1
        # Retention would delete records with old timestamps as soon as a segment is rolled.
        configs = {"retention.ms": "-1"} if self._options.keep_timestamps else {}
        number = self._cluster.ensure_topic(self._options.to_topic, needed, configs)
        if number < needed:
            raise PipelineError(
                f"{self._options.to_topic} has {number} partitions, {needed} are needed to keep the records' order"
            )
        check_delay(self._cluster, self._options.to_topic, exactly_once=self._options.exactly_once)
        found = self._cluster.ids([self._options.to_topic]).get(self._options.to_topic, "")
        if state.target_id not in ("", found):
            raise PipelineError(f"{self._options.to_topic} was recreated after the replay began; --restart begins anew")
        state.target_id = found

    def _take_up(self, state: ReplayState) -> None:
        """Resume an unfinished slice, without the records that the target already contains."""
        number = sum(end - start for start, end in state.under_way.values())
        topic = self._options.to_topic
        if not self._options.exactly_once:
            self._report(f"the last run ended within {number:,} offsets: {topic} may have their records twice now")
            return
        self._report(f"the last run ended within {number:,} offsets: looking which of their records {topic} has")
        self._settle()
        self._send(state, dict(state.under_way), self._present(state))

    def _settle(self) -> None:
        """Wait until no more records arrive in the target, because requests of the last run may still be in flight."""
        before = None
        for _ in range(_MOST_CHECKS):
            now = self._cluster.high_watermarks(self._options.to_topic)
            if now == before:
                return
            before = now
            time.sleep(_SETTLED_S)
        self._report(f"{self._options.to_topic} does not stand still: somebody else writes there")

    def _present(self, state: ReplayState) -> Any:
        """Return the positions in the archive (topic, partition, offset) of the records in the target."""
        from pyspark.sql import functions as f

        topic = self._options.to_topic
        ends = self._cluster.high_watermarks(topic)
        starts = {str(p.number): state.target.get(p, 0) for p in ends}
        frame = (
            self._session.read.format("kafka")
            .options(**self._cluster.spark_options())
            .option("subscribe", topic)
            .option("startingOffsets", json.dumps({topic: starts}))
            .option("endingOffsets", json.dumps({topic: {str(p.number): end for p, end in ends.items()}}))
            .option("includeHeaders", "true")
            .load()
        )
        marks = frame.select(f.explode(f.expr(f"filter(headers, h -> h.key = '{HEADER}')")).alias("header"))
        parts = f.split(f.col("header.value").cast("string"), "/")
        ours = marks.select(parts.alias("parts")).where(f.expr(f"size(parts) = 4 and get(parts, 0) = '{state.id}'"))
        places = ["get(parts, 1) topic", "try_cast(get(parts, 2) as int) partition"]
        return ours.selectExpr(*places, "try_cast(get(parts, 3) as bigint) offset").distinct()

    # -- sending ----------------------------------------------------------------------------------------------

    def _send(self, state: ReplayState, bounds: Bounds, present: Any = None) -> int:
        """Send one slice. Return the number of records."""
        if present is None:
            state.target = self._cluster.high_watermarks(self._options.to_topic)
            state.under_way = bounds
            self._file.save(state)
            passed("replay.begun")
        frame = within(self._frame, bounds)
        if present is not None:
            frame = frame.join(present, ["topic", "partition", "offset"], "left_anti")
        sent = self._count(frame)
        ordered = one_task_each(frame, bounds)
        self._write(ordered.sortWithinPartitions("topic", "partition", "offset"), state.id)
        passed("replay.sent")
        self.records += sent
        state.done |= {partition: end for partition, (_, end) in bounds.items()}
        state.under_way = {}
        self._file.save(state)
        return sent

    def _count(self, frame: Any) -> int:
        """Return the number of records to send, because Spark's sink does not report it."""
        from pyspark.sql import functions as f

        without_time = f.count_if(f.col("timestamp") == f.timestamp_millis(f.lit(0)))
        try:
            records, unsendable = frame.agg(f.count("*"), without_time).collect()[0]
        except Exception as err:
            where = "" if self._options.where is None else ", or judged by --where"
            raise PipelineError(f"the records cannot be read{where}: {first_line(err)}") from err
        if unsendable and self._options.keep_timestamps:
            raise PipelineError(
                f"{unsendable:,} records have the timestamp 0, which the client would replace with the current time;"
                " leave them out with --where, or send without --keep-timestamps"
            )
        return int(records)

    def _write(self, frame: Any, replay_id: str) -> None:
        from pyspark.sql import functions as f

        if self._options.exactly_once:
            place = f.concat_ws("/", f.lit(replay_id), "topic", "partition", "offset").cast("binary")
            header = f.array(f.struct(f.lit(HEADER).alias("key"), place.alias("value")))
            frame = frame.withColumn("headers", f.concat(f.coalesce("headers", f.array().cast(_HEADERS)), header))
        try:
            if self._options.keep_timestamps:
                once = self._options.exactly_once
                write_with_timestamps(frame, self._cluster.clients, self._options.to_topic, once=once)
            else:
                frame = frame.select("key", "value", "headers", "partition")
                self._sink(first_attempt_only(frame) if self._options.exactly_once else frame)
        except PipelineError:
            raise
        except Exception as err:
            if self._options.exactly_once and lost_in(err):
                raise PipelineError(
                    f"Spark lost an executor that was sending to {self._options.to_topic}: run this once more:"
                    " the next run checks which records have arrived, and sends the others"
                ) from err
            raise PipelineError(f"writing to {self._options.to_topic} failed: {first_line(err)}") from err

    def _sink(self, frame: Any) -> None:
        producer = {
            "kafka.acks": "all",
            "kafka.enable.idempotence": "true",
            "kafka.delivery.timeout.ms": str(_DELIVERY_MS),
            "kafka.linger.ms": "5",
        }
        options = {**producer, **self._cluster.spark_options(), "topic": self._options.to_topic}
        frame.write.format("kafka").options(**options).save()


_HEADERS: Final = "array<struct<key: string, value: binary>>"
