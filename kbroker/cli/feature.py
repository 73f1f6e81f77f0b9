"""`kbroker feature`: show and change the levels of a cluster's features, of any Kafka (KIP-584)."""

from __future__ import annotations

import click

from kbroker.admin.connection import Connection
from kbroker.admin.features import (
    OFF,
    SAFE_DOWNGRADE,
    UNSAFE_DOWNGRADE,
    UPGRADE,
    change_features,
    described_features,
)
from kbroker.cli.client import client_options
from kbroker.cli.output import Output, Verbs, output_option


@click.group("feature", cls=Verbs)
def command() -> None:
    """List the levels of features, and raise, lower and disable them."""


@command.command("list")
@output_option
@client_options
def list_features(output: Output, connection: Connection) -> None:
    """List features: the levels that the broker supports, and the level of the cluster."""
    with connection.admin() as admin:
        found = described_features(admin)
    output.rows(found, "feature", "lowest", "highest", "level")


@command.command("upgrade")
@click.argument("levels", nargs=-1, required=True, metavar="FEATURE=LEVEL...")
@click.option("--dry-run", is_flag=True, help="Check the change without making it.")
@client_options
def upgrade(levels: tuple[str, ...], dry_run: bool, connection: Connection) -> None:
    """Raise the levels of features: either all of them or, if one is refused, none."""
    _change(connection, _parsed(levels), UPGRADE, dry_run=dry_run)


@command.command("downgrade")
@click.argument("levels", nargs=-1, required=True, metavar="FEATURE=LEVEL...")
@click.option("--unsafe", is_flag=True, help="Allow the loss of metadata.")
@click.option("--dry-run", is_flag=True, help="Check the change without making it.")
@client_options
def downgrade(levels: tuple[str, ...], unsafe: bool, dry_run: bool, connection: Connection) -> None:
    """Lower the levels of features: either all of them or, if one is refused, none."""
    _change(connection, _parsed(levels), UNSAFE_DOWNGRADE if unsafe else SAFE_DOWNGRADE, dry_run=dry_run)


@command.command("disable")
@click.argument("features", nargs=-1, required=True, metavar="FEATURE...")
@click.option("--unsafe", is_flag=True, help="Allow the loss of metadata.")
@click.option("--dry-run", is_flag=True, help="Check the change without making it.")
@client_options
def disable(features: tuple[str, ...], unsafe: bool, dry_run: bool, connection: Connection) -> None:
    """Lower features to level 0."""
    kind = UNSAFE_DOWNGRADE if unsafe else SAFE_DOWNGRADE
    _change(connection, dict.fromkeys(features, OFF), kind, dry_run=dry_run)


def _parsed(texts: tuple[str, ...]) -> dict[str, int]:
    found = {}
    for text in texts:
        name, _, level = text.partition("=")
        if not name or not (level.isascii() and level.isdecimal()) or int(level) > 32_767:
            raise click.UsageError(f"FEATURE=LEVEL, for example group.version=1, not {text!r}")
        found[name] = int(level)
    return found


def _change(connection: Connection, levels: dict[str, int], kind: int, *, dry_run: bool) -> None:
    with connection.admin() as admin:
        change_features(admin, levels, kind, dry_run=dry_run)
    for name, level in levels.items():
        click.echo(f"{name}: level {level}{' is possible' if dry_run else ''}")
