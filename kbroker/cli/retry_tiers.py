"""`kbroker retry-tiers`: the topics that deliver a failed record again after a delay."""

from __future__ import annotations

from typing import Final

import click

from kbroker.admin.connection import Connection
from kbroker.admin.retry_tiers import NAMINGS, create_tiers, tiers_of
from kbroker.cli.client import client_options
from kbroker.cli.completion import complete_topics
from kbroker.cli.output import Output, Verbs, output_option

_COLUMNS: Final = ("topic", "delay_ms", "partitions")


@click.group("retry-tiers", cls=Verbs)
def command() -> None:
    """Create and list the topics that deliver failed records again after a delay."""


@command.command("create")
@click.argument("topic", shell_complete=complete_topics)
@click.option(
    "--delays",
    required=True,
    metavar="DELAY,...",
    help="The delays of the tiers, for example 5s,1m,10m (units ms, s, m, h, d).",
)
@click.option(
    "--dead-letter", metavar="TOPIC", help="The topic after the last tier; without this option, dlq.TOPIC or TOPIC-dlt."
)
@click.option(
    "--naming",
    type=click.Choice(NAMINGS),
    default="delay",
    show_default=True,
    help="The names of tiers: orders-retry-5s, or Spring's orders-retry-5000.",
)
@click.option("--dry-run", is_flag=True, help="Check the change without creating anything.")
@client_options
def create(
    topic: str, delays: str, dead_letter: str | None, naming: str, dry_run: bool, connection: Connection
) -> None:
    """Create the retry tiers of a topic, and its dead letter topic.

    Consumers of TOPIC also read the tiers. They write a failed record to the next tier, and after the last one to the
    dead letter topic. The topics have as many partitions and replicas as TOPIC. Topics that exist already stay.
    """
    with connection.admin() as admin:
        tiers = create_tiers(admin, topic, delays.split(","), dead_letter, naming, dry_run=dry_run)
    for each in tiers:
        done = "exists" if each.exists else "could be created" if dry_run else "created"
        what = each.role if each.delay_ms is None else f"{each.role} after {each.delay_ms} ms"
        click.echo(f"{each.topic}: {what}, {done}")


@command.command("list")
@click.argument("topic", shell_complete=complete_topics)
@output_option
@client_options
def list_tiers(topic: str, output: Output, connection: Connection) -> None:
    """List the retry tiers of a topic, the shortest delay first."""
    with connection.admin() as admin:
        found = tiers_of(admin, topic)
    output.rows([{name: getattr(each, name) for name in _COLUMNS} for each in found], *_COLUMNS)
