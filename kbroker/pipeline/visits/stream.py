"""`visits` counts a topic's events as visits by organisation and day, while they arrive.

Owns the stream, and a batch's changes to the state (checkpointed_state.py) and to the outputs (outputs.py).

The state consists of the events that can still matter, and the numbers so far. A batch is a range of offsets, which
Spark writes to its checkpoint before it reads the records. A batch is counted when its state is committed. A repeated
batch is only published again, which changes nothing. Spark's own session windows are not used: they would drop events
that are late by Spark's watermark, which depends on the batches. Here lateness depends only on the records (rules.py).

An event can matter until the slowest partition's clock is later than the event by `gap` plus `lateness`. The stream
sets the clock of an idle partition that has been read to its end, if this clock is behind the fastest clock by more
than this sum. Otherwise the state would grow forever. The stream also sets the clock of a partition that is added to
the topic later. The state records each such setting, so that a recount sets the clock at the same offset.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kbroker.pipeline.decoding.registry import Registry
from kbroker.pipeline.errors import PipelineError, first_line
from kbroker.pipeline.kafka.cluster import Cluster
from kbroker.pipeline.progress import Progress
from kbroker.pipeline.ranges import Partition
from kbroker.pipeline.spark.checkpoint import Checkpoint
from kbroker.pipeline.storage.files import Files, require_shared
from kbroker.pipeline.storage.lock import WriterLock
from kbroker.pipeline.storage.swap_lock import writer_lock
from kbroker.pipeline.visits.checkpointed_state import EVENTS, TOTALS, Idle, StateFiles, VisitsState, joined
from kbroker.pipeline.visits.lookup import fingerprint, read_lookup, with_organisation
from kbroker.pipeline.visits.outputs import KEY, Outputs
from kbroker.pipeline.visits.rules import (
    DAY_MS,
    Clock,
    VisitRules,
    day_of,
    events,
    on_time,
    with_begins,
    with_clocks,
)

_LARGEST: Final = 32 << 20  # in bytes; brokers may accept more than librdkafka's default
_HEADERS_ROOM: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class VisitsOptions:
    """The topic to count, and the outputs. Raises PipelineError if the stream would count its own outputs."""

    topic: str
    lookup: str
    to: str
    """The folder of the table, which contains `day=.../visits.parquet`."""
    out_topic: str
    checkpoint: str
    """A folder for Spark's checkpoint (`stream`) and for the state (`state`)."""
    dead_letters: str
    every: str | None = None
    rules: VisitRules = field(default_factory=VisitRules)
    batch_records: int = 500_000
    group: str = ""
    idle_ms: int = 60_000
    """The time in ms for which a partition must be idle before its clock is set. Used only with `every`."""

    def __post_init__(self) -> None:
        names = self.topic, self.out_topic, self.dead_letters
        if len(set(names)) < len(names):
            raise PipelineError(
                "the topics of events, of numbers and of malformed events must be three different topics"
            )


class Visits:
    """One run of the job."""

    def __init__(
        self,
        session: Any,
        cluster: Cluster,
        options: VisitsOptions,
        progress: Progress,
        now: Callable[[], float] = time.monotonic,
        registry: Registry | None = None,
    ) -> None:
        self._session = session
        self._cluster = cluster
        self._options = options
        self._progress = progress
        self._now = now
        self._registry = registry
        self._checkpoint = Checkpoint(session, f"{options.checkpoint}/stream")
        self._states = StateFiles(session, f"{options.checkpoint}/state")
        self._outputs = Outputs(session, cluster, options.to, options.out_topic)
        self._lookup: Any = None
        self._failure: BaseException | None = None
        self._query: Any = None
        self._stopped = False
        self._counted: dict[Partition, int] = {}
        self._idle = Idle(options.rules.kept_ms(), options.idle_ms / 1000 if options.every is not None else 0.0)
        self._lock: WriterLock | None = None
        self._compared = False
        self.state = VisitsState()
        self.records = 0
        """The number of records counted by this run."""

    def run(self) -> None:
        """Count until all records are counted, or until the stream is stopped. Raises PipelineError."""
        options = self._options
        self._cluster.chosen((options.topic,))
        existing = self._cluster.topics()
        if options.out_topic in existing and self._cluster.config(options.out_topic, "cleanup.policy") != "compact":
            raise PipelineError(
                f"{options.out_topic} would lose numbers by its retention: set its cleanup.policy to compact"
            )
        with writer_lock(Files(self._session, options.checkpoint)) as self._lock, writer_lock(self._outputs.table):
            self._lookup = read_lookup(self._session, options.lookup)
            self.state = self._states.load()
            self._check()
            self._check_upstream()
            require_shared(self._session, self._states.files, "_trial")
            require_shared(self._session, self._outputs.table, "_new")
            self._make_topics()
            if self.state.batch >= 0:
                self._publish(self.state.batch)
            self._run()

    def _run(self) -> None:
        self._query = query = self._start()
        try:
            if not self._stopped:
                query.awaitTermination()
        except Exception as err:
            if not self._stopped:
                raise self._explained(err) from err
        finally:
            query.stop()
        if self._failure is not None and not self._stopped:
            raise self._explained(self._failure)

    def stop(self) -> None:
        """Let `run` return. `run` runs in another thread. The running batch may be abandoned."""
        self._stopped = True
        if self._query is not None:
            self._query.stop()

    def counted(self) -> int:
        """Return the number of offsets that have been counted and published."""
        return sum(self._counted.values())

    # -- before the start -----------------------------------------------------------------------------------------

    def _check(self) -> None:
        if others := [name for name in self._outputs.table.visible() if not name.startswith("day=")]:
            raise PipelineError(
                f"{self._options.to} is not a table of visits, but has {others[0]}: take another folder"
            )
        if Files(self._session, self._options.checkpoint).exists("metadata"):
            raise PipelineError(f"the checkpoint {self._options.checkpoint} belongs to another job; take a new one")
        known, rules = fingerprint(self._lookup), self._options.rules.facts()
        query, planned = self._checkpoint.query(), self._checkpoint.planned()
        topics = {partition.topic for partition in self._checkpoint.ends(planned)} if planned >= 0 else set()
        if topics - {self._options.topic}:
            raise PipelineError(
                f"the checkpoint {self._options.checkpoint} belongs to topic {', '.join(sorted(topics))}"
            )
        topic_id = self._topic_id()
        if self.state.batch < 0:
            if query is not None and self._checkpoint.committed() >= 0:
                raise PipelineError(f"{self._options.checkpoint} has a stream, but no state; take a new checkpoint")
            self.state.lookup, self.state.rules, self.state.topic_id = known, rules, topic_id
            return
        if query is None or query != self.state.query:
            raise PipelineError(f"{self._options.checkpoint} has a state of another stream; take a new checkpoint")
        if not self._fits(planned):
            raise PipelineError(
                f"{self._options.checkpoint} has a state that is older or newer than its stream; take a new checkpoint"
            )
        if self.state.topic_id != topic_id:
            raise self._recreated()
        if self.state.lookup != known:
            raise PipelineError(
                f"{self._options.lookup} has changed since the visits so far were counted:"
                " count anew with a new checkpoint, or use `recount`"
            )
        if self.state.rules != rules:
            raise PipelineError("the visits so far were counted by other rules; take a new checkpoint")

    def _fits(self, planned: int) -> bool:
        """Whether the state belongs to the stream's last batch or the batch before it.

        If the state is older, a batch is lost.
        """
        batch = self.state.batch
        if not self._checkpoint.committed() <= batch <= planned:
            return False
        return self.state.ends == {str(p.number): end for p, end in self._checkpoint.ends(batch).items()}

    def _check_upstream(self) -> None:
        """Refuse to continue after a gap."""
        topic = self._options.topic
        begun = {str(p.number): offset for p, offset in self._begun().items()}
        for partition, (first, last) in sorted(self._cluster.bounds(self._cluster.chosen((topic,))).items()):
            end = begun.get(str(partition.number))
            if end is not None and end > last:
                raise PipelineError(f"{partition} ends at {last}, but was counted up to {end}: it was cut off")
            if end is not None and end < first:
                raise PipelineError(
                    f"{partition}: offsets {end} to {first - 1} were deleted before they were counted;"
                    " count what is left with a new checkpoint"
                )

    def _begun(self) -> dict[Partition, int]:
        """Return the known offsets from which the stream continues."""
        if self.state.batch >= 0:
            return {Partition(self._options.topic, int(number)): end for number, end in self.state.ends.items()}
        return self._checkpoint.starts(0) if self._checkpoint.planned() >= 0 else {}

    def _topic_id(self) -> str:
        return self._cluster.ids([self._options.topic]).get(self._options.topic, "")

    def _recreated(self) -> PipelineError:
        return PipelineError(f"{self._options.topic} was deleted, or made anew, since it was counted")

    def _make_topics(self) -> None:
        options = self._options
        self._cluster.ensure_topic(options.out_topic, 1, {"cleanup.policy": "compact"})
        if options.dead_letters not in self._cluster.topics():
            largest = int(self._cluster.config(options.topic, "max.message.bytes"))
            self._cluster.ensure_topic(options.dead_letters, 1, {"max.message.bytes": str(largest + _HEADERS_ROOM)})

    def _start(self) -> Any:
        options = self._options
        frame = (
            self._session.readStream.format("kafka")
            .options(**self._cluster.spark_options())
            .option("subscribe", options.topic)
            .option("startingOffsets", "earliest")
            .option("failOnDataLoss", "true")
            .option("includeHeaders", "true")
            .option("maxOffsetsPerTrigger", str(options.batch_records))
            .option("kafka.isolation.level", "read_committed")
            .load()
        )
        trigger = {"availableNow": True} if options.every is None else {"processingTime": options.every}
        writer = frame.writeStream.foreachBatch(self._on_batch)
        writer = writer.option("checkpointLocation", f"{options.checkpoint}/stream").trigger(**trigger)
        try:
            return writer.start()
        except Exception as err:
            raise self._explained(err) from err

    def _on_batch(self, frame: Any, batch: int) -> None:
        try:
            records = self._take_in(frame, batch) if batch > self.state.batch else 0
            self._publish(batch)
            self._counted = self._checkpoint.ends(batch)
            self._report(batch, records)
        except BaseException as err:
            self._failure = err
            raise

    # -- one batch --------------------------------------------------------------------------------------------

    def _take_in(self, frame: Any, batch: int) -> int:
        """Count a batch and commit its state. Return its number of records."""
        from pyspark.sql import functions as f

        before, rules = self.state, self._options.rules
        ends = {str(partition.number): end for partition, end in self._checkpoint.ends(batch).items()}
        newcomers = before.newcomers(ends)
        known = [(int(number), -1, clock) for number, clock in before.clocks.items()]
        clocked = with_clocks(events(frame, rules, self._registry), rules, [*known, *newcomers]).persist()
        try:
            found = clocked.groupBy("partition").agg(
                f.max("clock").alias("clock"),
                f.count("*").alias("records"),
                f.count_if(f.isnotnull("reason")).alias("malformed"),
                f.count_if("late").alias("late"),
            )
            rows = found.collect()
            if any(row["malformed"] for row in rows):
                self._send_dead_letters(frame, clocked)
            state = self._next_state(batch, ends, newcomers, rows)
            combined = self._combined(before, clocked).persist()
            self._write(before, state, clocked, combined)
            combined.unpersist()
        finally:
            clocked.unpersist()
        if self._cluster.patiently(self._topic_id) != before.topic_id:
            raise self._recreated()
        assert self._lock is not None, "a run has it"
        self._lock.check()
        self._states.commit(state)
        self.state = state
        records: int = sum(row["records"] for row in rows)
        self.records += records
        return records

    def _next_state(self, batch: int, ends: dict[str, int], newcomers: list[Clock], rows: list[Any]) -> VisitsState:
        before = self.state
        clocks = {**before.clocks, **{str(n): clock for n, _, clock in newcomers}}
        clocks |= {str(row["partition"]): row["clock"] for row in rows}
        added = self._set_clocks(ends, clocks)
        clocks |= {str(partition): clock for partition, _, clock in added}
        names = ("records", "malformed", "late")
        return VisitsState(
            batch,
            self._checkpoint.query() or "",
            before.topic_id,
            before.lookup,
            before.rules,
            ends,
            clocks,
            joined([*before.set_clocks, *newcomers, *added]),
            {name: before.counts.get(name, 0) + sum(row[name] for row in rows) for name in names},
        )

    def _set_clocks(self, ends: Mapping[str, int], clocks: Mapping[str, int]) -> list[Clock]:
        """Return the clocks to set, for idle partitions that delay the final results."""
        topic = self._options.topic

        def last() -> dict[int, int]:
            ends = self._cluster.patiently(lambda: self._cluster.ends(topic))
            return {partition.number: end for partition, end in ends.items()}

        return self._idle.set_clocks(ends, clocks, last, self._now())

    def _combined(self, before: VisitsState, clocked: Any) -> Any:
        """Return all events that can still matter.

        `was` has the old value of `begins` (null for new events), and `begins` has the new value.
        """
        from pyspark.sql import functions as f

        rules = self._options.rules
        kept = self._states.frame(before.batch, "events", EVENTS)
        new = on_time(clocked).join(kept.select("visitor", "id", "time"), ["visitor", "id", "time"], "left_anti")
        new = with_organisation(new, self._lookup).withColumn("begins", f.lit(None).cast("boolean"))
        both = kept.unionByName(new).withColumnRenamed("begins", "was")
        # Keep the old value of a final event, because the events before it may be forgotten.
        settled = f.isnotnull("was") & (f.col("time") < self._final_before(before))
        computed = with_begins(both, rules)
        return computed.withColumn("begins", f.when(settled, f.col("was")).otherwise(f.col("begins")))

    def _write(self, before: VisitsState, state: VisitsState, clocked: Any, combined: Any) -> None:
        """Write the files of the next state."""
        from pyspark.sql import functions as f

        folder = str(state.batch)
        self._states.files.delete(folder)
        changed = combined.groupBy("organisation", day_of().alias("day")).agg(
            f.sum(f.col("begins").cast("bigint") - f.coalesce(f.col("was").cast("bigint"), f.lit(0))).alias("visits"),
            f.count_if(f.isnull("was")).alias("events"),
        )
        late = with_organisation(clocked.where("late"), self._lookup)
        late = late.groupBy("organisation", day_of().alias("day")).agg(f.count("*").alias("late"))
        parts = [self._states.frame(before.batch, "totals", TOTALS).drop("final"), changed, late]
        whole = parts[0].unionByName(parts[1], allowMissingColumns=True).unionByName(parts[2], allowMissingColumns=True)
        sums = [f.coalesce(f.sum(name), f.lit(0)).cast("bigint").alias(name) for name in ("visits", "events", "late")]
        final = f.unix_millis(f.col("day").cast("timestamp")) + DAY_MS <= self._final_before(state)
        totals = whole.groupBy(*KEY).agg(*sums).withColumn("final", final)
        totals.coalesce(1).write.parquet(self._states.files.url(f"{folder}/totals"))
        slowest = state.slowest()
        least = 0 if slowest is None else slowest - self._options.rules.kept_ms()
        left = combined.where(f.col("time") >= least).select("visitor", "id", "time", "begins", "organisation")
        left.write.parquet(self._states.files.url(f"{folder}/events"))

    def _final_before(self, state: VisitsState) -> int:
        """Return the time before which all results are final, in ms (the watermark)."""
        return self._options.rules.final_before(state.slowest())

    # -- the outputs --------------------------------------------------------------------------------------------

    def _publish(self, batch: int) -> None:
        """Publish a batch's numbers to the table and the topic."""
        now = self._states.frame(batch, "totals", TOTALS)
        before = self._states.frame(self._before(batch), "totals", TOTALS) if self._compared else None
        self._outputs.bring_up(now, before)
        self._compared = True

    def _before(self, batch: int) -> int:
        return batch - 1 if batch > 0 and self._states.files.exists(f"{batch - 1}.json") else -1

    def _send_dead_letters(self, frame: Any, clocked: Any) -> None:
        """Send malformed events to the dead letter topic. Headers contain the reason and the original position."""
        from pyspark.sql import functions as f

        bad = clocked.where(f.isnotnull("reason")).select("partition", "offset", "reason")
        joined = frame.drop("timestamp").join(f.broadcast(bad), ["partition", "offset"])
        facts = {"kbroker.reason": "reason", "kbroker.topic": "topic", "kbroker.partition": "partition"}
        facts["kbroker.offset"] = "offset"
        header = "array<struct<key: string, value: binary>>"
        own = f.array(
            *(
                f.struct(f.lit(name).alias("key"), f.col(column).cast("string").cast("binary").alias("value"))
                for name, column in facts.items()
            )
        )
        rows = joined.select(
            "key", "value", f.concat(f.coalesce("headers", f.array().cast(header)), own).alias("headers")
        )
        options = {**self._cluster.spark_options(), "topic": self._options.dead_letters, "kafka.acks": "all"}
        options |= {"kafka.max.request.size": str(_LARGEST), "kafka.buffer.memory": str(2 * _LARGEST)}
        rows.write.format("kafka").options(**options).save()

    def _report(self, batch: int, records: int) -> None:
        ends = {p: end for p, end in self._checkpoint.ends(batch).items() if p.topic == self._options.topic}
        lag: int | None = None
        try:
            last = self._cluster.ends(self._options.topic)
            lag = sum(max(last[p] - ends.get(p, 0), 0) for p in last)
            if self._options.group:
                self._cluster.show_progress(self._options.group, ends)
        except Exception:  # noqa: BLE001 - it is for display only, and the stream continues without
            lag = None
        counts = {name: self.state.counts.get(name, 0) for name in ("malformed", "late")}
        self._progress.step(records, lag, batch=batch, **counts)

    def _explained(self, err: BaseException) -> PipelineError:
        cause = self._failure or err
        if isinstance(cause, PipelineError):
            return cause
        text, line = str(cause), first_line(cause)
        return PipelineError(next((f"{words}: {line}" for sign, words in _SIGNS.items() if sign in text), line))


_SIGNS: Final[Mapping[str, str]] = {
    "data may have been lost": "offsets were deleted before they were counted",
    "KAFKA_DATA_LOSS": "offsets were deleted before they were counted",
    "RecordTooLargeException": "a malformed event is larger than its topic takes (max.message.bytes)",
    "TimeoutException": "the brokers do not answer",
}
