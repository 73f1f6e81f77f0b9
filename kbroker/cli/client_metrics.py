"""`kbroker client-metrics`: subscriptions to clients' metrics (KIP-714), of any Kafka.

Owns the verbs; a subscription is a config resource, which `kbroker config --client-metrics NAME` shows too.
"""

from __future__ import annotations

import base64
import uuid
from typing import Any, Final

import click

from kbroker.admin.configs import Subject, alter_configs, described_configs, listed_subjects
from kbroker.admin.connection import Connection
from kbroker.admin.errors import raise_any
from kbroker.cli.client import client_options
from kbroker.cli.output import Column, Output, Verbs, output_option, with_options
from kbroker.config.operations import Op
from kbroker.protocol.messages.configs import IncrementalConfig

_KIND: Final = "client-metrics"
_KEYS: Final = ("interval.ms", "metrics", "match")
_SELECTORS: Final = (
    "client_id",
    "client_instance_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)


@click.group("client-metrics", cls=Verbs)
def command() -> None:
    """Create, list, describe, alter and delete subscriptions to clients' metrics."""


_content_options = with_options(
    click.option("--interval", type=click.IntRange(1), metavar="MS", help="The time between two pushes of a client."),
    click.option(
        "--metrics",
        multiple=True,
        metavar="PREFIX,...",
        help="Prefixes of the metrics' names; '*' selects all metrics.",
    ),
    click.option("--match", multiple=True, metavar="SELECTOR=REGEX", help=f"Clients: {', '.join(_SELECTORS)}."),
)


def _values(interval: int | None, metrics: tuple[str, ...], match: tuple[str, ...]) -> dict[str, str]:
    """Return the configs in the options. Raises UsageError."""
    selectors = [each for text in match for each in text.split(",")]
    for each in selectors:
        name, equals, pattern = each.partition("=")
        if not equals or not pattern or name not in _SELECTORS:
            raise click.UsageError(f"--match takes SELECTOR=REGEX with one of {', '.join(_SELECTORS)}, not {each!r}")
    found = {
        "interval.ms": None if interval is None else str(interval),
        "metrics": ",".join(metrics) or None,
        "match": ",".join(selectors) or None,
    }
    return {key: value for key, value in found.items() if value is not None}


@command.command("create")
@click.argument("name", required=False)
@click.option("--generate-name", is_flag=True, help="Generate the name, and print it.")
@_content_options
@client_options
def create(
    name: str | None,
    generate_name: bool,
    interval: int | None,
    metrics: tuple[str, ...],
    match: tuple[str, ...],
    connection: Connection,
) -> None:
    """Create a subscription: matching clients push these metrics at an interval."""
    if (name is None) != generate_name:
        raise click.UsageError("give either a name or --generate-name")
    values = _values(interval, metrics, match)
    if "metrics" not in values:
        raise click.UsageError("say which metrics: --metrics org.apache.kafka.producer., or '*' for all")
    chosen = name or base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    with connection.admin() as admin:
        if chosen in _names(admin):
            raise click.ClickException(f"there is a subscription {chosen}: `kbroker client-metrics alter` changes it")
        _set(admin, chosen, values)
    click.echo(f"created {chosen}")


@command.command("alter")
@click.argument("name")
@_content_options
@click.option(
    "--default", "defaults", type=click.Choice(_KEYS), multiple=True, help="Reset this setting to its default."
)
@client_options
def alter(
    name: str,
    interval: int | None,
    metrics: tuple[str, ...],
    match: tuple[str, ...],
    defaults: tuple[str, ...],
    connection: Connection,
) -> None:
    """Change a subscription; omitted values do not change."""
    changes: dict[str, str | None] = {**_values(interval, metrics, match), **dict.fromkeys(defaults)}
    if not changes:
        raise click.UsageError("nothing to change: give --interval, --metrics, --match or --default")
    with connection.admin() as admin:
        _require(admin, (name,))
        _set(admin, name, changes)
    click.echo(f"altered {name}")


@command.command("list")
@output_option
@client_options
def list_subscriptions(output: Output, connection: Connection) -> None:
    """List subscriptions."""
    with connection.admin() as admin:
        found = [{"name": name} for name in _names(admin)]
    output.rows(found, "name")


@command.command("describe")
@click.argument("names", nargs=-1, metavar="[NAME...]")
@output_option
@client_options
def describe(names: tuple[str, ...], output: Output, connection: Connection) -> None:
    """Describe the named subscriptions, or all if no name is given."""
    with connection.admin() as admin:
        known = _names(admin)
        found = [_described(admin, name) for name in names or known if name in known]
    output.rows(found, "name", Column("interval ms"), "metrics", "match")
    missing = [_missing(name, known) for name in names if name not in known]
    raise_any(missing)


@command.command("delete")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@client_options
def delete(names: tuple[str, ...], connection: Connection) -> None:
    """Delete subscriptions; clients then stop pushing the metrics."""
    with connection.admin() as admin:
        _require(admin, names)
        for name in names:
            there = [each.name for each in _own(admin, name)]
            _set(admin, name, dict.fromkeys(there))
            click.echo(f"deleted {name}")


def _names(admin: Any) -> list[str]:
    return [name for _, name in listed_subjects(admin, [_KIND])]


def _require(admin: Any, names: tuple[str, ...]) -> None:
    known = _names(admin)
    missing = [_missing(name, known) for name in names if name not in known]
    raise_any(missing)


def _missing(name: str, known: list[str]) -> str:
    there = f"there are {', '.join(known)}" if known else "there is none"
    return f"no subscription {name}; {there}"


def _own(admin: Any, name: str) -> list[Any]:
    subject = Subject(_KIND, name)
    return [
        each for each in described_configs(admin, subject, documentation=False) if subject.is_of(each.config_source)
    ]


def _described(admin: Any, name: str) -> dict[str, Any]:
    values = {each.name: each.value for each in described_configs(admin, Subject(_KIND, name), documentation=False)}
    return {"name": name, **{key.replace(".", "_"): values.get(key) or None for key in _KEYS}}


def _set(admin: Any, name: str, values: dict[str, str] | dict[str, str | None]) -> None:
    ops = [IncrementalConfig(key, Op.DELETE if value is None else Op.SET, value) for key, value in values.items()]
    alter_configs(admin, Subject(_KIND, name), ops, dry_run=False)
