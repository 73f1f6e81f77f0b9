"""`kbroker pipeline demo`: the tour, with a broker of its own."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click

from kbroker.admin.connection import Connection
from kbroker.admin.errors import raise_any
from kbroker.cli.output import print_table
from kbroker.cli.pipeline.options import spark_options
from kbroker.pipeline.demo.tour import Tour, TourOptions, by_day, tour
from kbroker.pipeline.spark.session import SparkOptions, open_session

_HEADERS = ("day", "visits, streamed", "visits, recounted", "events", "late", "final")


@click.command("demo", short_help="Run a tour of the pipeline, with a chart.")
@click.option(
    "--out", default="demo", show_default=True, metavar="PATH", help="The folder for the picture and the page."
)
@click.option(
    "--days", type=click.IntRange(1, 30), default=3, show_default=True, help="The number of days with events."
)
@click.option("--records", type=click.IntRange(1000), default=60_000, show_default=True, help="The number of events.")
@spark_options
def demo(out: str, days: int, records: int, spark: SparkOptions) -> None:
    """Run a complete tour: a broker, events, streaming visits, an archive, and a recount that is compared."""
    with _broker() as connection, tempfile.TemporaryDirectory(prefix="kbroker-demo-") as folder:
        with open_session(spark, "kbroker demo") as session:
            options = TourOptions(days, records)
            found = tour(session, connection, Path(folder), options, lambda text: click.echo(text, err=True))
        picture, page = _kept(found, Path(out))
    print_table(_HEADERS, by_day(found))
    raise_any(found.faults)
    click.echo(f"the stream and the archive agree; the chart is in {picture} and {page}")


@contextlib.contextmanager
def _broker() -> Iterator[Connection]:
    from kbroker.embed import Broker

    with Broker() as broker:
        yield Connection(broker.bootstrap_servers, {})


def _kept(found: Tour, out: Path) -> tuple[Path, Path]:
    """Copy the chart and its page to their destination; the tour's other files are deleted."""
    out.mkdir(parents=True, exist_ok=True)
    kept = out / found.picture.name, out / found.page.name
    kept[0].write_bytes(found.picture.read_bytes())
    kept[1].write_bytes(found.page.read_bytes())
    return kept
