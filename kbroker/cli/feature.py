"""`kbroker feature`: the levels of a cluster's features, looked at and changed, of any Kafka (KIP-584)."""

from __future__ import annotations

from typing import Any, Final

import click

from kbroker.admin.codes import code_error, error_text
from kbroker.admin.connection import Connection
from kbroker.admin.own_request import ask_any, ask_controller
from kbroker.cli.client import client_options
from kbroker.cli.output import json_option, print_json, print_table
from kbroker.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kbroker.protocol.messages.update_features import (
    FeatureUpdateKey,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

_UPGRADE: Final = 1
_SAFE_DOWNGRADE: Final = 2
_UNSAFE_DOWNGRADE: Final = 3
_OFF: Final = 0
_WITH_FEATURES: Final = 3
"""The version of ApiVersions that tells of them."""


@click.group("feature")
def command() -> None:
    """List the levels of features, and raise, lower and disable them."""


@command.command("list")
@json_option
@client_options
def list_features(as_json: bool, connection: Connection) -> None:
    """List features: what the broker supports, and the level that counts in the cluster."""
    with connection.admin() as admin:
        found = _features(admin)
    if as_json:
        print_json(found)
        return
    rows = [[each["feature"], each["lowest"], each["highest"], each["level"]] for each in found]
    print_table(["feature", "lowest", "highest", "level"], rows)


@command.command("upgrade")
@click.argument("levels", nargs=-1, required=True, metavar="FEATURE=LEVEL...")
@click.option("--dry-run", is_flag=True, help="Have it checked, and change nothing.")
@client_options
def upgrade(levels: tuple[str, ...], dry_run: bool, connection: Connection) -> None:
    """Raise features: all of them or, where one cannot be, none."""
    _change(connection, _parsed(levels), _UPGRADE, dry_run=dry_run)


@command.command("downgrade")
@click.argument("levels", nargs=-1, required=True, metavar="FEATURE=LEVEL...")
@click.option("--unsafe", is_flag=True, help="Also where metadata would be lost.")
@click.option("--dry-run", is_flag=True, help="Have it checked, and change nothing.")
@client_options
def downgrade(levels: tuple[str, ...], unsafe: bool, dry_run: bool, connection: Connection) -> None:
    """Lower features: all of them or, where one cannot be, none."""
    _change(connection, _parsed(levels), _UNSAFE_DOWNGRADE if unsafe else _SAFE_DOWNGRADE, dry_run=dry_run)


@command.command("disable")
@click.argument("features", nargs=-1, required=True, metavar="FEATURE...")
@click.option("--unsafe", is_flag=True, help="Also where metadata would be lost.")
@click.option("--dry-run", is_flag=True, help="Have it checked, and change nothing.")
@client_options
def disable(features: tuple[str, ...], unsafe: bool, dry_run: bool, connection: Connection) -> None:
    """Lower features to level 0."""
    kind = _UNSAFE_DOWNGRADE if unsafe else _SAFE_DOWNGRADE
    _change(connection, dict.fromkeys(features, _OFF), kind, dry_run=dry_run)


def _parsed(texts: tuple[str, ...]) -> dict[str, int]:
    found = {}
    for text in texts:
        name, _, level = text.partition("=")
        if not name or not (level.isascii() and level.isdecimal()) or int(level) > 32_767:
            raise click.UsageError(f"FEATURE=LEVEL, as group.version=1, not {text!r}")
        found[name] = int(level)
    return found


def _features(admin: Any) -> list[dict[str, Any]]:
    request = ApiVersionsRequest(client_software_name="kbroker-cli", client_software_version="1")
    answer = ask_any(admin, request, ApiVersionsResponse, _WITH_FEATURES)
    if answer is None:
        raise click.ClickException("this broker does not tell of features (Apache Kafka does since 2.4)")
    levels = {each.name: each.max_version_level for each in answer.finalized_features}
    return [
        {
            "feature": each.name,
            "lowest": each.min_version,
            "highest": each.max_version,
            "level": levels.get(each.name, _OFF),
        }
        for each in sorted(answer.supported_features, key=lambda each: each.name)
    ]


def _change(connection: Connection, levels: dict[str, int], kind: int, *, dry_run: bool) -> None:
    """Ask for it as every version of the API has it: the first, of Apache Kafka 2.7, knows no kinds of lowering."""
    updates = [FeatureUpdateKey(name, level, kind != _UPGRADE, kind) for name, level in levels.items()]
    with connection.admin() as admin:
        request = UpdateFeaturesRequest(feature_updates=updates, validate_only=dry_run)
        answer = ask_controller(admin, request, UpdateFeaturesResponse, at_least=int(dry_run))
    error = code_error(answer.error_code)
    if error is not None:
        raise click.ClickException(f"nothing is changed: {error_text(error, answer.error_message)}")
    for each in answer.results:
        error = code_error(each.error_code)
        if error is not None:
            raise click.ClickException(f"{each.feature}: {error_text(error, each.error_message)}")
    for name, level in levels.items():
        click.echo(f"{name}: level {level}{' is possible' if dry_run else ''}")
