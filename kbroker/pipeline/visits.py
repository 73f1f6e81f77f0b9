"""`visits`: a topic's events into visits by organisation and day, as they come.

Owns the stream, its state, and where the numbers go: a table of Parquet files, one a day, each replaced whole; and a
compacted topic with a record for each organisation and day, written anew when its numbers change.

The state is the events that can still matter and the numbers so far, as files of the last batch that counts. A batch
is a range of offsets that Spark's checkpoint names before they are read. It counts once `state/<batch>.json` is there;
done again, it is only published again, which changes nothing. Spark's own session windows would drop what its watermark
calls late, which depends on how the stream was cut into batches; here only the records decide (visit_rules.py).

An event can matter until the slowest partition's clock is past it by `gap` and `lateness`. A partition that has been
read to its end and is behind the fastest by more than that has its clock set: the state would grow for ever. That is
written into the state, so that a recount sets it at the same offset.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from kbroker.failpoints import passed
from kbroker.pipeline.checkpoint import Checkpoint
from kbroker.pipeline.errors import PipelineError, first_line
from kbroker.pipeline.files import Files
from kbroker.pipeline.kafka import Cluster
from kbroker.pipeline.lookup import fingerprint, read_lookup
from kbroker.pipeline.manifest import Partition
from kbroker.pipeline.progress import Progress
from kbroker.pipeline.shared_folder import require_shared
from kbroker.pipeline.small_frame import small_frame
from kbroker.pipeline.visit_rules import (
    DAY_MS,
    Clock,
    VisitRules,
    day_of,
    events,
    on_time,
    with_begins,
    with_clocks,
    with_organisation,
)

_EVENTS: Final = "visitor string, id string, time bigint, begins boolean, organisation string"
_TOTALS: Final = "organisation string, day date, visits bigint, events bigint, late bigint, final boolean"
TABLE: Final = "organisation string, visits bigint, events bigint, late bigint, final boolean, day date"
"""The columns of the table; the day is in the folders' names."""
_KEY: Final = ["organisation", "day"]


@dataclass(frozen=True, slots=True)
class VisitsOptions:
    """What to count, and where the numbers go."""

    topic: str
    lookup: str
    to: str
    """The folder of the table: `day=.../visits.parquet`."""
    out_topic: str
    checkpoint: str
    """A folder for Spark's checkpoint (`stream`) and for the state (`state`)."""
    dead_letters: str
    every: str | None = None
    rules: VisitRules = field(default_factory=VisitRules)
    batch_records: int = 500_000
    group: str = ""


@dataclass(slots=True)
class VisitsState:
    """What the batches so far amount to, besides the files beside it."""

    batch: int = -1
    query: str = ""
    lookup: str = ""
    rules: dict[str, Any] = field(default_factory=dict)
    clocks: dict[str, int] = field(default_factory=dict)
    """By partition: the largest timestamp so far, in ms."""
    set_clocks: list[Clock] = field(default_factory=list)
    """Clocks that were set because a partition stood still."""
    counts: dict[str, int] = field(default_factory=dict)

    def slowest(self) -> int | None:
        """Return the clock of the slowest partition in ms; None before any record."""
        return min(self.clocks.values(), default=None)


class StateFiles:
    """The state's folder: `<batch>.json`, and `<batch>/events`, `<batch>/totals`."""

    def __init__(self, session: Any, root: str) -> None:
        self._session = session
        self.files = Files(session, root)

    def load(self) -> VisitsState:
        """Return the newest state; an empty one where there is none."""
        found = [int(each.name.removesuffix(".json")) for each in self.files.listing() if each.name.endswith(".json")]
        if not found:
            return VisitsState()
        text = self.files.read(f"{max(found)}.json")
        try:
            fields = json.loads(text)
            fields["set_clocks"] = [(p, offset, ms) for p, offset, ms in fields["set_clocks"]]
            return VisitsState(**fields)
        except (ValueError, TypeError, KeyError) as err:
            raise PipelineError(f"the state {self.files.root} is damaged: {err!r}") from err

    def frame(self, batch: int, name: str, schema: str) -> Any:
        """Return the rows of a batch's state."""
        if batch < 0:
            return small_frame(self._session, [], schema)
        return self._session.read.schema(schema).parquet(self.files.url(f"{batch}/{name}"))

    def commit(self, state: VisitsState) -> None:
        """Let a batch count; what is older than the one before it goes."""
        passed("visits.written")
        self.files.delete(f"{state.batch}.json")
        self.files.write(f"{state.batch}.json", json.dumps(asdict(state), indent=1) + "\n")
        passed("visits.committed")
        for each in self.files.listing():
            number = each.name.removesuffix(".json")
            if number.isdecimal() and int(number) < state.batch - 1:
                self.files.delete(each.name)


class Visits:
    """One run of the job."""

    def __init__(self, session: Any, cluster: Cluster, options: VisitsOptions, progress: Progress) -> None:
        self._session = session
        self._cluster = cluster
        self._options = options
        self._progress = progress
        self._checkpoint = Checkpoint(session, f"{options.checkpoint}/stream")
        self._states = StateFiles(session, f"{options.checkpoint}/state")
        self._table = Files(session, options.to)
        self._lookup: Any = None
        self._failure: BaseException | None = None
        self._partitions = 0
        self._query: Any = None
        self._stopped = False
        self._counted: dict[Partition, int] = {}
        self.state = VisitsState()

    def run(self) -> None:
        """Count until all is counted, or until the stream is stopped; raises PipelineError."""
        options = self._options
        self._partitions = self._cluster.chosen((options.topic,))[options.topic]
        self._lookup = read_lookup(self._session, options.lookup)
        self.state = self._states.load()
        self._check()
        require_shared(self._session, self._states.files, "_trial")
        require_shared(self._session, self._table, "_new")
        self._cluster.ensure_topic(options.out_topic, 1, {"cleanup.policy": "compact"})
        self._cluster.ensure_topic(options.dead_letters, 1)
        self._query = query = self._start()
        try:
            if not self._stopped:
                query.awaitTermination()
        except Exception as err:
            raise self._explained(err) from err
        finally:
            query.stop()
        if self._failure is not None and not self._stopped:
            raise self._explained(self._failure)

    def stop(self) -> None:
        """Let `run`, in another thread, return; the batch under way may be left undone."""
        self._stopped = True
        if self._query is not None:
            self._query.stop()

    def counted(self) -> int:
        """Return how many offsets have been counted, and their numbers published."""
        return sum(self._counted.values())

    def _check(self) -> None:
        known, rules = fingerprint(self._lookup), asdict(self._options.rules)
        query = self._checkpoint.query()
        if self.state.batch < 0:
            if query is not None and self._checkpoint.committed() >= 0:
                raise PipelineError(f"{self._options.checkpoint} has a stream and no state; take a new checkpoint")
            self.state.lookup, self.state.rules = known, rules
            return
        if query is None or query != self.state.query:
            raise PipelineError(f"{self._options.checkpoint} has a state of another stream; take a new checkpoint")
        topics = {partition.topic for partition in self._checkpoint.ends(self.state.batch)}
        if topics != {self._options.topic}:
            raise PipelineError(
                f"the checkpoint {self._options.checkpoint} is one of topic {', '.join(sorted(topics))}"
            )
        if self.state.lookup != known:
            raise PipelineError(
                f"{self._options.lookup} has changed since the visits so far were counted:"
                " count anew with a new checkpoint, or use `recount`"
            )
        if self.state.rules != rules:
            raise PipelineError("the visits so far were counted by other rules; take a new checkpoint")

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
            if batch > self.state.batch:
                self._take_in(frame, batch)
            self._publish(batch)
            self._counted = self._checkpoint.ends(batch)
        except BaseException as err:
            self._failure = err
            raise

    # -- one batch --------------------------------------------------------------------------------------------

    def _take_in(self, frame: Any, batch: int) -> None:
        from pyspark.sql import functions as f

        before, rules = self.state, self._options.rules
        known = [(int(number), -1, clock) for number, clock in before.clocks.items()]
        clocked = with_clocks(events(frame, rules), rules, known).persist()
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
            state = self._next_state(batch, rows)
            combined = self._combined(before, clocked).persist()
            self._write(before, state, clocked, combined)
            combined.unpersist()
        finally:
            clocked.unpersist()
        self._states.commit(state)
        self.state = state
        self._tell(batch, sum(row["records"] for row in rows))

    def _next_state(self, batch: int, rows: list[Any]) -> VisitsState:
        before = self.state
        clocks = {**before.clocks, **{str(row["partition"]): row["clock"] for row in rows}}
        added = self._set_clocks(batch, clocks)
        for partition, _, clock in added:
            clocks[str(partition)] = clock
        names = ("records", "malformed", "late")
        total = {name: before.counts.get(name, 0) + sum(row[name] for row in rows) for name in names}
        query = self._checkpoint.query() or ""
        return VisitsState(batch, query, before.lookup, before.rules, clocks, [*before.set_clocks, *added], total)

    def _set_clocks(self, batch: int, clocks: Mapping[str, int]) -> list[Clock]:
        """Return the clocks to set: of partitions that stand still and hold the others up."""
        if not clocks:
            return []
        rules, topic = self._options.rules, self._options.topic
        least = max(clocks.values()) - rules.kept_ms()
        behind = [n for n in range(self._partitions) if clocks.get(str(n), -1) < least]
        if not behind:
            return []
        ends = {p.number: end for p, end in self._checkpoint.ends(batch).items()}
        last = {p.number: end for p, end in self._cluster.ends(topic).items()}
        return [(n, ends.get(n, 0), least) for n in behind if ends.get(n, 0) >= last.get(n, 0)]

    def _combined(self, before: VisitsState, clocked: Any) -> Any:
        """Return the events that matter, old and new, with `begins` as it was (null for new ones) and as it is."""
        from pyspark.sql import functions as f

        rules = self._options.rules
        kept = self._states.frame(before.batch, "events", _EVENTS)
        new = on_time(clocked).join(kept.select("visitor", "id", "time"), ["visitor", "id", "time"], "left_anti")
        new = with_organisation(new, self._lookup).withColumn("begins", f.lit(None).cast("boolean"))
        both = kept.unionByName(new).withColumnRenamed("begins", "was")
        slowest = before.slowest()
        frozen = 0 if slowest is None else slowest - rules.lateness_ms
        settled = f.isnotnull("was") & (f.col("time") < frozen)  # its predecessors may be gone
        computed = with_begins(both, rules)
        return computed.withColumn("begins", f.when(settled, f.col("was")).otherwise(f.col("begins")))

    def _write(self, before: VisitsState, state: VisitsState, clocked: Any, combined: Any) -> None:
        """Write the next state's files."""
        from pyspark.sql import functions as f

        folder = str(state.batch)
        self._states.files.delete(folder)
        changed = combined.groupBy("organisation", day_of().alias("day")).agg(
            f.sum(f.col("begins").cast("bigint") - f.coalesce(f.col("was").cast("bigint"), f.lit(0))).alias("visits"),
            f.count_if(f.isnull("was")).alias("events"),
        )
        late = with_organisation(clocked.where("late"), self._lookup)
        late = late.groupBy("organisation", day_of().alias("day")).agg(f.count("*").alias("late"))
        parts = [self._states.frame(before.batch, "totals", _TOTALS).drop("final"), changed, late]
        whole = parts[0].unionByName(parts[1], allowMissingColumns=True).unionByName(parts[2], allowMissingColumns=True)
        sums = [f.coalesce(f.sum(name), f.lit(0)).cast("bigint").alias(name) for name in ("visits", "events", "late")]
        final = f.unix_millis(f.col("day").cast("timestamp")) + DAY_MS <= self._final_before(state)
        totals = whole.groupBy(*_KEY).agg(*sums).withColumn("final", final)
        totals.coalesce(1).write.parquet(self._states.files.url(f"{folder}/totals"))
        slowest = state.slowest()
        least = 0 if slowest is None else slowest - self._options.rules.kept_ms()
        left = combined.where(f.col("time") >= least).select("visitor", "id", "time", "begins", "organisation")
        left.write.parquet(self._states.files.url(f"{folder}/events"))

    def _final_before(self, state: VisitsState) -> int:
        """Return the time before which nothing changes any more, in ms: the watermark."""
        if len(state.clocks) < self._partitions:
            return 0
        slowest = state.slowest()
        return 0 if slowest is None else slowest - self._options.rules.lateness_ms

    # -- where the numbers go -----------------------------------------------------------------------------------

    def _publish(self, batch: int) -> None:
        """Bring the table and the topic up to a batch's numbers; done twice, it changes nothing."""
        from pyspark.sql import functions as f

        now = self._states.frame(batch, "totals", _TOTALS)
        before = self._states.frame(self._before(batch), "totals", _TOTALS)
        changed = now.join(before, now.columns, "left_anti").persist()
        try:
            days = [row["day"] for row in changed.select("day").distinct().collect()]
            if not days:
                return
            self._replace(now.where(f.col("day").isin(days)))
            passed("visits.published")
            key = f.to_json(f.struct(*_KEY))
            value = f.to_json(f.struct(*_KEY, "visits", "events", "late", "final"))
            rows = changed.select(key.alias("key"), value.alias("value"))
            options = {**self._cluster.spark_options(), "topic": self._options.out_topic, "kafka.acks": "all"}
            rows.coalesce(1).write.format("kafka").options(**options).save()
        finally:
            changed.unpersist()

    def _before(self, batch: int) -> int:
        return batch - 1 if batch > 0 and self._states.files.exists(f"{batch - 1}.json") else -1

    def _replace(self, rows: Any) -> None:
        """Put each day's file in the place of the one before, in one step."""
        self._table.delete("_new")
        rows.repartition("day").sortWithinPartitions(*_KEY).write.partitionBy("day").parquet(self._table.url("_new"))
        for found in self._table.walk("_new"):
            if found.name.endswith(".parquet"):
                self._table.replace(found.name, f"{found.name.split('/')[1]}/visits.parquet")
        self._table.delete("_new")

    def _send_dead_letters(self, frame: Any, clocked: Any) -> None:
        """Send malformed events on, with the reason and the place in headers."""
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
        rows.write.format("kafka").options(**options).save()

    def _tell(self, batch: int, records: int) -> None:
        ends = {p: end for p, end in self._checkpoint.ends(batch).items() if p.topic == self._options.topic}
        lag: int | None = None
        try:
            last = self._cluster.ends(self._options.topic)
            lag = sum(max(last[p] - ends.get(p, 0), 0) for p in last)
            if self._options.group:
                self._cluster.show_progress(self._options.group, ends)
        except Exception:  # noqa: BLE001 - it is only shown, and the stream goes on without
            lag = None
        counts = {name: self.state.counts.get(name, 0) for name in ("malformed", "late")}
        self._progress.step(records, lag, batch=batch, **counts)

    def _explained(self, err: BaseException) -> PipelineError:
        cause = self._failure or err
        return cause if isinstance(cause, PipelineError) else PipelineError(first_line(cause))
