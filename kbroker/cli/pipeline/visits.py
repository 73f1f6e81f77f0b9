"""`kbroker pipeline visits` and `recount`: count visits by organisation and day, from a stream and from an archive."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import click

from kbroker.admin.connection import Connection
from kbroker.admin.errors import Failures
from kbroker.admin.registry_schemas import RegistryPlace
from kbroker.cli.client import client_options
from kbroker.cli.output import Output, output_option
from kbroker.cli.pipeline.options import (
    decoding_registry,
    format_option,
    interval,
    milliseconds,
    require_archive,
    require_folder,
    require_lookup,
    spark_options,
)
from kbroker.pipeline.decoding.registry import require_registry
from kbroker.pipeline.kafka.cluster import Cluster
from kbroker.pipeline.progress import shown
from kbroker.pipeline.spark.session import SparkOptions, open_session
from kbroker.pipeline.visits.lookup import read_lookup
from kbroker.pipeline.visits.recount import (
    Row,
    as_far,
    differences,
    final_days,
    notes,
    published,
    recount_days,
    require_same,
    state_of,
    table_rows,
)
from kbroker.pipeline.visits.rules import BY_REGISTRY, GAP_MS, LATENESS_MS, VisitRules
from kbroker.pipeline.visits.stream import Visits, VisitsOptions

Result = TypeVar("Result")


def rules_options(function: Callable[..., Result]) -> Callable[..., Result]:
    """Add the options for the rules of visits to a verb. The verb gets the rules as its argument `rules`."""
    import functools

    gap, lateness = (f"{ms // 60_000}m" for ms in (GAP_MS, LATENESS_MS))

    @click.option(
        "--gap",
        default=gap,
        show_default=True,
        help="A visit ends when its visitor is quiet for longer than this time.",
    )
    @click.option(
        "--lateness",
        default=lateness,
        show_default=True,
        help="An event that is later than this time is only counted as late.",
    )
    @click.option(
        "--visitor-field", default="visitor", show_default=True, help="The field of an event with its visitor."
    )
    @click.option(
        "--time-field",
        default="time",
        show_default=True,
        help="The field of an event with its time: ISO 8601, or ms since 1970.",
    )
    @click.option(
        "--id-field",
        default="id",
        show_default=True,
        help="The field of an event with its id; events without an id all count.",
    )
    @click.option("--event-format", type=click.Choice(["json"]), default="json", show_default=True)
    @functools.wraps(function)
    def with_rules(
        *args: Any,
        gap: str,
        lateness: str,
        visitor_field: str,
        time_field: str,
        id_field: str,
        event_format: str,
        **kwargs: Any,
    ) -> Result:
        del event_format  # only one format exists so far
        names = visitor_field, time_field, id_field
        if any("`" in name for name in names) or len(set(names)) < len(names):
            raise click.UsageError("the names of an event's fields must differ from each other, and have no backticks")
        rules = VisitRules(milliseconds(gap, "--gap"), milliseconds(lateness, "--lateness"), *names)
        return function(*args, rules=rules, **kwargs)

    return with_rules


def _read_by(rules: VisitRules, registry: RegistryPlace | None) -> VisitRules:
    return rules if registry is None else replace(rules, event_format=BY_REGISTRY)


@click.command("visits", short_help="Count visits by organisation and day.")
@click.option("--topic", required=True, metavar="T", help="The topic of the events.")
@click.option(
    "--lookup",
    required=True,
    metavar="FILE",
    help="A CSV, JSON or Parquet file with the columns visitor and organisation.",
)
@click.option("--to", required=True, metavar="PATH", help="The folder of the table, with a file for each day.")
@click.option("--out-topic", metavar="T", help="The compacted topic of the numbers; without this option, T-visits.")
@click.option("--dead-letters", metavar="T", help="The topic of malformed events; without this option, T-malformed.")
@click.option(
    "--checkpoint", required=True, metavar="PATH", help="The folder in which the stream stores its position and state."
)
@click.option("--once", is_flag=True, help="End after counting all present events; this is the default.")
@click.option("--every", metavar="TIME", help="Run forever, with one batch per interval, for example 10s.")
@click.option(
    "--idle",
    default="1m",
    show_default=True,
    help="With --every: do not wait for a partition that is quiet for longer than this time.",
)
@click.option(
    "--batch-records",
    type=click.IntRange(1),
    default=500_000,
    show_default=True,
    help="The maximum number of records in a batch.",
)
@click.option("--group", default="kbroker-visits", show_default=True, help="The group that shows the progress.")
@rules_options
@decoding_registry(variable=False)
@spark_options
@client_options
def visits(
    topic: str,
    lookup: str,
    to: str,
    out_topic: str | None,
    dead_letters: str | None,
    checkpoint: str,
    once: bool,
    every: str | None,
    idle: str,
    batch_records: int,
    group: str,
    rules: VisitRules,
    registry: RegistryPlace | None,
    connection: Connection,
    spark: SparkOptions,
) -> None:
    """Count visits by organisation and day, into a table of Parquet files and a compacted topic."""
    if once and every:
        raise click.UsageError("give --once or --every")
    rules = _read_by(rules, registry)
    options = VisitsOptions(
        topic,
        lookup,
        to,
        out_topic or f"{topic}-visits",
        checkpoint,
        dead_letters or f"{topic}-malformed",
        interval(every),
        rules,
        batch_records,
        group,
        milliseconds(idle, "--idle"),
    )
    cluster = Cluster(connection)
    cluster.chosen((topic,))
    require_lookup(spark, lookup)
    if registry is not None:
        require_registry(registry)
    with open_session(spark, "kbroker visits") as session, shown("visits") as progress:
        job = Visits(session, cluster, options, progress, registry=registry)
        job.run()
    counts = job.state.counts
    facts = ", ".join(f"{counts.get(name, 0):,} {name}" for name in ("malformed", "late"))
    click.echo(f"counted {job.records:,} records; {counts.get('records', 0):,} so far, of which {facts}", err=True)


@click.command("recount", short_help="Count visits again, from an archive.")
@click.option("--from", "root", required=True, metavar="PATH", help="The folder of the archive.")
@click.option("--topic", required=True, metavar="T", help="The archived topic of the events.")
@click.option(
    "--lookup",
    required=True,
    metavar="FILE",
    help="A CSV, JSON or Parquet file with the columns visitor and organisation.",
)
@click.option("--day", metavar="DAY", help="Count only this day, for example 2026-11-21.")
@click.option(
    "--checkpoint",
    metavar="PATH",
    help="The checkpoint of a stream that counted, too. The clocks that the stream had to set are used.",
)
@click.option(
    "--compare", metavar="PATH", help="The table of the stream. The exit status is 1 if a final number differs."
)
@format_option
@output_option
@rules_options
@decoding_registry(variable=False)
@spark_options
def recount(
    root: str,
    topic: str,
    lookup: str,
    day: str | None,
    checkpoint: str | None,
    compare: str | None,
    file_format: str | None,
    output: Output,
    rules: VisitRules,
    registry: RegistryPlace | None,
    spark: SparkOptions,
) -> None:
    """Count visits by organisation and day again, from an archive."""
    if day is not None:
        try:
            datetime.date.fromisoformat(day)
        except ValueError:
            raise click.UsageError(f"--day takes a day such as 2026-11-21, not {day!r}") from None
    rules = _read_by(rules, registry)
    spark = require_archive(spark, root, file_format)
    require_lookup(spark, lookup)
    if registry is not None:
        require_registry(registry)
    for path, what in ((checkpoint, "checkpoint"), (compare, "table")):
        if path is not None:
            require_folder(spark, path, what)
    with open_session(spark, "kbroker recount") as session:
        known = read_lookup(session, lookup)
        state = state_of(session, checkpoint) if checkpoint is not None else None
        late = False
        if state is not None and checkpoint is not None:
            require_same(session, root, topic, known, rules, checkpoint, state)
            late = as_far(session, root, topic, state)
        streamed = table_rows(session, compare) if compare is not None else []
        clocks = state.set_clocks if state is not None else []
        rows = recount_days(session, root, topic, known, rules, clocks, day, registry)
        if state is not None and checkpoint is not None:
            # If the stream or the archive has continued meanwhile, the numbers of late events differ.
            late = late and as_far(session, root, topic, state) and published(session, checkpoint, state)
        remarks = notes(session, root, topic, state)
    output.rows(rows, "organisation", "day", "visits", "events", "late")
    for remark in remarks:
        click.echo(remark, err=True)
    if compare is not None:
        _compare(rows, streamed, day, late)


def _compare(rows: list[Row], streamed: list[Row], day: str | None, late: bool) -> None:
    """Compare a stream's final days with a recount and print the result. Raises Failures if they differ."""
    days = [each for each in final_days(streamed) if day in (None, each)]
    if faults := differences(rows, streamed, day, late=late):
        raise Failures(faults)
    what = "visits, events and late events" if late else "visits and events"
    summary = f"final days compared: {len(days)}; {what} agree" if days else "no day is final yet: none compared"
    click.echo(summary, err=True)
