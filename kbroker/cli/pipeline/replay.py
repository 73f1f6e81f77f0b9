"""`kbroker pipeline replay`."""

from __future__ import annotations

import datetime
import functools
from dataclasses import replace

import click

from kbroker.admin.connection import Connection
from kbroker.cli.client import client_options
from kbroker.cli.pipeline.options import format_option, names_of, require_archive, spark_options
from kbroker.pipeline.kafka.cluster import Cluster
from kbroker.pipeline.progress import shown
from kbroker.pipeline.replay.replay import Replay, ReplayOptions
from kbroker.pipeline.spark.session import SparkOptions, open_session


@click.command("replay", short_help="Send archived records to a topic.")
@click.option("--from", "root", required=True, metavar="PATH", help="The archive's folder.")
@click.option("--to-topic", required=True, metavar="T", help="The target topic; it is created if it does not exist.")
@click.option("--topics", metavar="A,B", help="Only these archived topics; by default all.")
@click.option("--since", metavar="TIME", help="Only records from this time on, such as 2026-11-21T10:00:00 (UTC).")
@click.option("--until", metavar="TIME", help="Only records before this time.")
@click.option("--where", metavar="SQL", help="Only records that satisfy this condition on columns.")
@click.option(
    "--speed",
    default="max",
    show_default=True,
    help="10x sends ten times as fast as the records came; max sends as fast as possible.",
)
@click.option("--keep-timestamps", is_flag=True, help="Keep the records' timestamps; this is slower.")
@click.option("--exactly-once", is_flag=True, help="Mark each record with its place in a header; never send it twice.")
@click.option("--restart", is_flag=True, help="Begin again, regardless of the records sent before.")
@click.option(
    "--slice-records",
    type=click.IntRange(1),
    default=1_000_000,
    show_default=True,
    help="The number of records in a slice.",
)
@format_option
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
    file_format: str | None,
    connection: Connection,
    spark: SparkOptions,
) -> None:
    """Send archived records to a topic, in order per partition; a run that was interrupted is resumed."""
    options = ReplayOptions(
        root,
        to_topic,
        names_of(topics),
        _time(since, "--since"),
        _time(until, "--until"),
        where,
        _speed(speed),
        keep_timestamps,
        exactly_once,
        restart,
        slice_records,
    )
    spark = require_archive(spark, root, file_format)
    cluster = Cluster(connection)
    with (
        open_session(replace(spark, retries=not exactly_once), "kbroker replay") as session,
        shown("replay") as progress,
    ):
        job = Replay(session, cluster, options, progress, functools.partial(click.echo, err=True))
        job.run()
    click.echo(f"sent {job.records:,} records to {to_topic}", err=True)


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
    """Check a time and return it in UTC, in Spark's form."""
    if text is None:
        return None
    try:
        time = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(f"{option} takes a time such as 2026-11-21T10:00:00, not {text!r}") from None
    return (time if time.tzinfo else time.replace(tzinfo=datetime.UTC)).astimezone(datetime.UTC).isoformat()
