"""`kbroker quota`: set, list and remove quotas of users, client ids and addresses, of any Kafka."""

from __future__ import annotations

from typing import Any

import click

from kbroker.admin.connection import Connection
from kbroker.admin.quotas import LIMITS, TYPES, alter_quotas, described_quotas, entity_text, number_text
from kbroker.cli.client import client_options
from kbroker.cli.output import Output, Table, Verbs, output_option, with_options
from kbroker.quota.configured import IP


@click.group("quota", cls=Verbs)
def command() -> None:
    """Set, list and remove limits of users, client ids and addresses."""


_entity_options = with_options(
    click.option("--user", metavar="NAME", help="The limits of this user, such as alice for User:alice."),
    click.option("--default-user", is_flag=True, help="The limits of each user without limits of its own."),
    click.option("--client-id", metavar="ID", help="The limits of this client id; with --user, only for this user."),
    click.option("--default-client-id", is_flag=True, help="The limits of each client id without limits of its own."),
    click.option("--ip", metavar="ADDRESS", help="The limits of clients with this address."),
    click.option("--default-ip", is_flag=True, help="The limits of each address without limits of its own."),
)


def _entity(options: dict[str, Any]) -> dict[str, str | None]:
    """Return the entity in the options; the name None means the default."""
    found: dict[str, str | None] = {}
    for kind, option in TYPES.items():
        name = options[option]
        if name is not None and options[f"default_{option}"]:
            raise click.UsageError(f"--{kind} and --default-{kind} exclude each other")
        if name is not None or options[f"default_{option}"]:
            found[kind] = name
    if IP in found and len(found) > 1:
        raise click.UsageError("an address has limits of its own, which cannot be combined with a user or a client id")
    return found


def _named(options: dict[str, Any]) -> dict[str, str | None]:
    entity = _entity(options)
    if not entity:
        raise click.UsageError("say whose limit: --user, --client-id, --ip, or a default of these")
    return entity


_limit_options = with_options(
    *(
        click.option(f"--{key.replace('_', '-')}", key, type=float, metavar="NUMBER", help=text)
        for key, text in LIMITS.items()
    )
)


@command.command("set")
@_entity_options
@_limit_options
@client_options
def set_limits(connection: Connection, **options: Any) -> None:
    """Set limits; limits that are not given stay unchanged."""
    entity = _named(options)
    limits = {key: options[key] for key in LIMITS if options[key] is not None}
    if not limits:
        raise click.UsageError("say what to limit: --producer-byte-rate, --consumer-byte-rate, ...")
    with connection.admin() as admin:
        alter_quotas(admin, entity, limits)
    click.echo(f"{entity_text(entity)}: {', '.join(f'{key}={number_text(value)}' for key, value in limits.items())}")


@command.command("list")
@_entity_options
@output_option
@client_options
def list_limits(connection: Connection, output: Output, **options: Any) -> None:
    """List limits: all, or those of the named users, client ids and addresses."""
    with connection.admin() as admin:
        found = described_quotas(admin, _entity(options), strict=False)
    rows = [
        {"for": entity_text(entity), "limit": key, "value": number_text(limits[key])}
        for entity, limits in found
        for key in sorted(limits)
    ]
    document = [{"entity": entity, "limits": limits} for entity, limits in found]
    output.show(document, Table(rows, ["for", "limit", "value"]))


@command.command("remove")
@_entity_options
@click.argument("keys", nargs=-1, metavar="[LIMIT...]", type=click.Choice(list(LIMITS)))
@client_options
def remove(connection: Connection, keys: tuple[str, ...], **options: Any) -> None:
    """Remove limits, such as producer_byte_rate; without names, all limits of the user, client id or address."""
    entity = _named(options)
    with connection.admin() as admin:
        there = next((limits for each, limits in described_quotas(admin, entity, strict=True) if each == entity), {})
        removed = [key for key in there if not keys or key in keys]
        if not removed:
            raise click.ClickException(f"{entity_text(entity)} has no {' and no '.join(keys) or 'limit'}")
        alter_quotas(admin, entity, dict.fromkeys(removed))
    click.echo(f"{entity_text(entity)}: without {', '.join(removed)} from now on")
