"""`kbroker pipeline archive`, `verify` and `optimize`."""

from __future__ import annotations

import functools
from operator import itemgetter

import click

from kbroker.admin.connection import Connection
from kbroker.admin.errors import raise_any
from kbroker.admin.registry_schemas import RegistryPlace
from kbroker.cli.client import client_options
from kbroker.cli.output import Column, Output, Table, output_option
from kbroker.cli.pipeline.options import (
    decoding_registry,
    format_option,
    interval,
    names_of,
    require_archive,
    spark_options,
    with_connectors,
)
from kbroker.pipeline.archive.archive import Archive, ArchiveOptions
from kbroker.pipeline.archive.opening import FORMATS
from kbroker.pipeline.archive.optimize import TARGET_MB, Optimization
from kbroker.pipeline.archive.verify import HEADERS, Verification
from kbroker.pipeline.decoding.registry import PARTS
from kbroker.pipeline.decoding.topics import DecodedTopics
from kbroker.pipeline.kafka.cluster import Cluster
from kbroker.pipeline.progress import shown
from kbroker.pipeline.spark.session import SparkOptions, open_session
from kbroker.pipeline.storage.files import refuse_pattern


@click.command("archive", short_help="Archive records, each offset once.")
@click.option("--topics", metavar="A,B", help="The topics.")
@click.option("--pattern", metavar="RE", help="All topics whose whole name matches, also future ones.")
@click.option("--to", required=True, metavar="PATH", help="The archive's folder.")
@click.option("--checkpoint", required=True, metavar="PATH", help="The folder in which the stream keeps its position.")
@click.option("--once", is_flag=True, help="End when all present records are archived; this is the default.")
@click.option("--every", metavar="TIME", help="Continue forever, with a batch per interval, such as 1m.")
@click.option("--format", "file_format", type=click.Choice(FORMATS), default="parquet", show_default=True)
@click.option("--partition-by", type=click.Choice(["date", "date,hour"]), default="date", show_default=True)
@click.option("--allow-gaps", is_flag=True, help="Continue after offsets that were deleted, and note the gap.")
@click.option(
    "--batch-records",
    type=click.IntRange(1),
    default=1_000_000,
    show_default=True,
    help="The maximum number of records in a batch.",
)
@click.option("--group", default="kbroker-archive", show_default=True, help="The group that shows the progress.")
@click.option(
    "--decode", multiple=True, type=click.Choice(PARTS), help="Add typed columns by the registry; may be repeated."
)
@decoding_registry(variable=True)
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
    decode: tuple[str, ...],
    registry: RegistryPlace | None,
    connection: Connection,
    spark: SparkOptions,
) -> None:
    """Archive the records of topics: every offset exactly once, however and whenever the job ends."""
    if (topics is None) == (pattern is None):
        raise click.UsageError("give --topics or --pattern")
    if once and every:
        raise click.UsageError("give --once or --every")
    if decode and registry is None:
        raise click.UsageError("--decode needs a --registry")
    names = names_of(topics)
    options = ArchiveOptions(
        names, pattern, to, checkpoint, interval(every), file_format, partition_by, allow_gaps, batch_records, group
    )
    cluster = Cluster(connection)
    refuse_pattern(to)
    refuse_pattern(checkpoint)
    cluster.chosen(names)  # report missing topics before Spark starts, which takes seconds
    decoding = None
    if decode and registry is not None:
        decoding = DecodedTopics(registry, decode, functools.partial(click.echo, err=True))
        decoding.prepare(names)
    spark = with_connectors(spark, file_format, to, checkpoint)
    with open_session(spark, "kbroker archive") as session, shown("archive") as progress:
        job = Archive(session, cluster, options, progress, decoding)
        job.run()
    click.echo(f"archived {job.records:,} records to {to}", err=True)


@click.command("verify", short_help="Compare an archive with its topics.")
@click.option("--topics", metavar="A,B", help="Only these topics; by default all.")
@click.option("--from", "root", required=True, metavar="PATH", help="The archive's folder.")
@format_option
@output_option
@spark_options
@client_options
def verify(
    topics: str | None,
    root: str,
    file_format: str | None,
    output: Output,
    connection: Connection,
    spark: SparkOptions,
) -> None:
    """Compare an archive with its manifest and with its topics; exit with 1 if there is a fault."""
    spark = require_archive(spark, root, file_format)
    with open_session(spark, "kbroker verify") as session:
        report = Verification(session, Cluster(connection), root, names_of(topics)).run()
    rows = [dict(zip(HEADERS, state.row(), strict=True)) for state in report.partitions]
    output.show(report.encode(), Table(rows, [Column(header, itemgetter(header)) for header in HEADERS]))
    raise_any(report.faults)
    click.echo("nothing is wrong", err=True)


@click.command("optimize", short_help="Merge an archive's small files.")
@click.option("--at", "root", required=True, metavar="PATH", help="The archive's folder.")
@click.option(
    "--target-mb",
    type=click.IntRange(1),
    default=TARGET_MB,
    show_default=True,
    help="The intended size of merged files.",
)
@spark_options
def optimize(root: str, target_mb: int, spark: SparkOptions) -> None:
    """Merge the small files of an archive, and merge its manifest into one document."""
    spark = require_archive(spark, root)
    with open_session(spark, "kbroker optimize") as session:
        before, after = Optimization(session, root, target_mb << 20).run()
    click.echo(f"{before:,} files are {after:,} now" if after != before else "there was nothing to put together")
