"""`kbroker pipeline`: archive topics on Apache Spark, check, pack and replay archives; the source of events."""

from __future__ import annotations

import datetime
import functools
from dataclasses import replace

import click

from kbroker.cli.client import Connection, Failures, client_options
from kbroker.cli.output import json_option, print_json, print_table
from kbroker.cli.pipeline_demo import demo
from kbroker.cli.pipeline_events import command as events
from kbroker.cli.pipeline_visits import recount, visits
from kbroker.cli.spark_options import interval, spark_options
from kbroker.pipeline.archive import Archive, ArchiveOptions
from kbroker.pipeline.kafka import Cluster
from kbroker.pipeline.optimize import Optimization
from kbroker.pipeline.progress import shown
from kbroker.pipeline.replay import Replay, ReplayOptions
from kbroker.pipeline.spark import SparkOptions, open_session
from kbroker.pipeline.store import FORMATS
from kbroker.pipeline.verify import HEADERS, Verification


@click.group("pipeline")
def command() -> None:
    """Archive topics, check, pack and replay archives, count visits, on Apache Spark."""


@command.command("archive")
@click.option("--topics", metavar="A,B", help="The topics.")
@click.option("--pattern", metavar="RE", help="All topics whose whole name matches, also those to come.")
@click.option("--to", required=True, metavar="PATH", help="The archive's folder.")
@click.option("--checkpoint", required=True, metavar="PATH", help="Where the stream keeps its position.")
@click.option("--once", is_flag=True, help="End when all that is there now is archived; this is the default.")
@click.option("--every", metavar="TIME", help="Go on for ever, with a batch so often, such as 1m.")
@click.option("--format", "file_format", type=click.Choice(FORMATS), default="parquet", show_default=True)
@click.option("--partition-by", type=click.Choice(["date", "date,hour"]), default="date", show_default=True)
@click.option("--allow-gaps", is_flag=True, help="Go on behind offsets that were deleted, and note the gap.")
@click.option("--batch-records", type=click.IntRange(1), default=1_000_000, show_default=True, help="In a batch.")
@click.option("--group", default="kbroker-archive", show_default=True, help="The group that shows the progress.")
@spark_options
@client_options
def archive(
    topics: str | None,
    pattern: str | None,
    to: str,
    checkpoint: str,
    once: bool,
    every: str | None,
    file_format: str,
    partition_by: str,
    allow_gaps: bool,
    batch_records: int,
    group: str,
    connection: Connection,
    spark: SparkOptions,
) -> None:
    """Archive the records of topics: every offset once, whatever ends the job and when."""
    if (topics is None) == (pattern is None):
        raise click.UsageError("give --topics or --pattern")
    if once and every:
        raise click.UsageError("give --once or --every")
    names = _names(topics)
    options = ArchiveOptions(
        names, pattern, to, checkpoint, interval(every), file_format, partition_by, allow_gaps, batch_records, group
    )
    cluster = Cluster(connection)
    cluster.chosen(names)  # what is not there is told before Spark takes its seconds to start
    with open_session(spark, "kbroker archive") as session, shown("archive") as progress:
        job = Archive(session, cluster, options, progress)
        job.run()
    click.echo(f"archived {job.records:,} records to {to}", err=True)


@command.command("verify")
@click.option("--topics", metavar="A,B", help="Only these topics; all without.")
@click.option("--from", "root", required=True, metavar="PATH", help="The archive's folder.")
@json_option
@spark_options
@client_options
def verify(topics: str | None, root: str, as_json: bool, connection: Connection, spark: SparkOptions) -> None:
    """Compare an archive with its manifest and with the topics it came from; exit 1 when something is wrong."""
    with open_session(spark, "kbroker verify") as session:
        report = Verification(session, Cluster(connection), root, _names(topics)).run()
    if as_json:
        print_json(report.encode())
    else:
        print_table(HEADERS, [state.row() for state in report.partitions])
    if report.faults:
        raise Failures(report.faults)
    click.echo("nothing is wrong", err=True)


@command.command("optimize")
@click.option("--at", "root", required=True, metavar="PATH", help="The archive's folder.")
@click.option("--target-mb", type=click.IntRange(1), default=128, show_default=True, help="Size of files to aim at.")
@spark_options
def optimize(root: str, target_mb: int, spark: SparkOptions) -> None:
    """Put the small files of an archive together, and its manifest into one document."""
    with open_session(spark, "kbroker optimize") as session:
        before, after = Optimization(session, root, target_mb << 20).run()
    click.echo(f"{before:,} files are {after:,} now" if after != before else "there was nothing to put together")


@command.command("replay")
@click.option("--from", "root", required=True, metavar="PATH", help="The archive's folder.")
@click.option("--to-topic", required=True, metavar="T", help="Where to; it is created if it does not exist.")
@click.option("--topics", metavar="A,B", help="Only these archived topics; all without.")
@click.option("--since", metavar="TIME", help="Records from this time on, such as 2026-11-21T10:00:00 (UTC).")
@click.option("--until", metavar="TIME", help="Records before this time.")
@click.option("--where", metavar="SQL", help="Records for which this holds, by the columns' names.")
@click.option("--speed", default="max", show_default=True, help="10x for ten times as fast as they came, or max.")
@click.option("--keep-timestamps", is_flag=True, help="Keep the records' timestamps; slower.")
@click.option("--exactly-once", is_flag=True, help="Mark each record with its place in a header; never send it twice.")
@click.option("--restart", is_flag=True, help="Begin anew, whatever was sent before.")
@click.option("--slice-records", type=click.IntRange(1), default=1_000_000, show_default=True, help="Sent in one go.")
@spark_options
@client_options
def replay(
    root: str,
    to_topic: str,
    topics: str | None,
    since: str | None,
    until: str | None,
    where: str | None,
    speed: str,
    keep_timestamps: bool,
    exactly_once: bool,
    restart: bool,
    slice_records: int,
    connection: Connection,
    spark: SparkOptions,
) -> None:
    """Send archived records to a topic, in order per partition; a run that was ended is taken up again."""
    options = ReplayOptions(
        root,
        to_topic,
        _names(topics),
        _time(since, "--since"),
        _time(until, "--until"),
        where,
        _speed(speed),
        keep_timestamps,
        exactly_once,
        restart,
        slice_records,
    )
    cluster = Cluster(connection)
    with (
        open_session(replace(spark, retries=not exactly_once), "kbroker replay") as session,
        shown("replay") as progress,
    ):
        job = Replay(session, cluster, options, progress, functools.partial(click.echo, err=True))
        job.run()
    click.echo(f"sent {job.records:,} records to {to_topic}", err=True)


def _names(topics: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in (topics or "").split(",") if name.strip())


def _speed(text: str) -> float | None:
    if text == "max":
        return None
    try:
        factor = float(text.removesuffix("x"))
    except ValueError:
        factor = 0.0
    if not 0 < factor < float("inf"):
        raise click.UsageError(f"--speed takes a factor such as 10x, or max, not {text!r}")
    return factor


def _time(text: str | None, option: str) -> str | None:
    """Check a time and return it in UTC, as Spark reads it."""
    if text is None:
        return None
    try:
        time = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(f"{option} takes a time such as 2026-11-21T10:00:00, not {text!r}") from None
    return (time if time.tzinfo else time.replace(tzinfo=datetime.UTC)).astimezone(datetime.UTC).isoformat()


for verb in (events, visits, recount, demo):
    command.add_command(verb)
