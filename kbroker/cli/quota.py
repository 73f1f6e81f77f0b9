"""`kbroker quota`: set, list and remove limits of users, client ids and addresses, of any Kafka."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from kbroker.admin.codes import code_error, error_text
from kbroker.admin.connection import Connection
from kbroker.admin.own_request import ask_any
from kbroker.cli.client import client_options
from kbroker.cli.output import json_option, print_json, print_table
from kbroker.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntityData,
    EntryData,
    OpData,
)
from kbroker.protocol.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from kbroker.quota.entities import CLIENT_ID, IP, USER
from kbroker.quota.filters import EXACT, OF_DEFAULT
from kbroker.quota.values import CONNECTION, CONSUMER, MUTATION, PRODUCER, REQUEST

_T = TypeVar("_T")
_TYPES = {USER: "user", CLIENT_ID: "client_id", IP: "ip"}
"""Types of entities, and the options that name one."""
_LIMITS = {
    PRODUCER: "Bytes per second that may be produced.",
    CONSUMER: "Bytes per second that may be fetched.",
    REQUEST: "Percent of one thread's time that requests may take.",
    MUTATION: "Partitions per second that may be created and deleted.",
    CONNECTION: "New connections per second from an address.",
}


@click.group("quota")
def command() -> None:
    """Set, list and remove limits of users, client ids and addresses."""


def _entity_options(function: Callable[..., _T]) -> Callable[..., _T]:
    for option in reversed(
        [
            click.option("--user", metavar="NAME", help="A user, as alice of User:alice."),
            click.option("--default-user", is_flag=True, help="Each user who has no limit of his own."),
            click.option("--client-id", metavar="ID", help="A client id; with --user of that user."),
            click.option("--default-client-id", is_flag=True, help="Each client id that has no limit of its own."),
            click.option("--ip", metavar="ADDRESS", help="An address from which clients come."),
            click.option("--default-ip", is_flag=True, help="Each address that has no limit of its own."),
        ]
    ):
        function = option(function)
    return function


def _entity(options: dict[str, Any]) -> dict[str, str | None]:
    """Return whom the options name, None being the default."""
    found: dict[str, str | None] = {}
    for kind, option in _TYPES.items():
        name = options[option]
        if name is not None and options[f"default_{option}"]:
            raise click.UsageError(f"--{kind} and --default-{kind} exclude each other")
        if name is not None or options[f"default_{option}"]:
            found[kind] = name
    if IP in found and len(found) > 1:
        raise click.UsageError("an address has limits of its own, not together with a user or a client id")
    return found


def _named(options: dict[str, Any]) -> dict[str, str | None]:
    entity = _entity(options)
    if not entity:
        raise click.UsageError("say whose limit: --user, --client-id, --ip, or a default of these")
    return entity


def _limit_options(function: Callable[..., _T]) -> Callable[..., _T]:
    for key, text in reversed(_LIMITS.items()):
        function = click.option(f"--{key.replace('_', '-')}", key, type=float, metavar="NUMBER", help=text)(function)
    return function


@command.command("set")
@_entity_options
@_limit_options
@client_options
def set_limits(connection: Connection, **options: Any) -> None:
    """Set limits; those that are not named stay as they are."""
    entity = _named(options)
    limits = {key: options[key] for key in _LIMITS if options[key] is not None}
    if not limits:
        raise click.UsageError("say what to limit: --producer-byte-rate, --consumer-byte-rate, ...")
    with connection.admin() as admin:
        _alter(admin, entity, [OpData(key, value) for key, value in limits.items()])
    click.echo(f"{_text(entity)}: {', '.join(f'{key}={_number(value)}' for key, value in limits.items())}")


@command.command("list")
@_entity_options
@json_option
@client_options
def list_limits(connection: Connection, as_json: bool, **options: Any) -> None:
    """List limits: all, or those in which somebody is named."""
    with connection.admin() as admin:
        found = _described(admin, _entity(options), strict=False)
    if as_json:
        print_json([{"entity": entity, "limits": limits} for entity, limits in found])
        return
    rows = [[_text(entity), key, _number(limits[key])] for entity, limits in found for key in sorted(limits)]
    print_table(["for", "limit", "value"], rows)


@command.command("remove")
@_entity_options
@click.argument("keys", nargs=-1, metavar="[LIMIT...]", type=click.Choice(list(_LIMITS)))
@client_options
def remove(connection: Connection, keys: tuple[str, ...], **options: Any) -> None:
    """Remove limits, such as producer_byte_rate; where none is named, all of the user, client id or address."""
    entity = _named(options)
    with connection.admin() as admin:
        there = next((limits for each, limits in _described(admin, entity, strict=True) if each == entity), {})
        gone = [key for key in there if not keys or key in keys]
        if not gone:
            raise click.ClickException(f"{_text(entity)} has no {' and no '.join(keys) or 'limit'}")
        _alter(admin, entity, [OpData(key, remove=True) for key in gone])
    click.echo(f"{_text(entity)}: without {', '.join(gone)} from now on")


def _alter(admin: Any, entity: dict[str, str | None], ops: list[OpData]) -> None:
    entry = EntryData([EntityData(*part) for part in entity.items()], ops)
    answer = _answered(ask_any(admin, AlterClientQuotasRequest(entries=[entry]), AlterClientQuotasResponse))
    for each in answer.entries:
        error = code_error(each.error_code)
        if error is not None:
            raise click.ClickException(f"{_text(entity)}: {error_text(error, each.error_message)}")


def _described(
    admin: Any, entity: dict[str, str | None], *, strict: bool
) -> list[tuple[dict[str, str | None], dict[str, float]]]:
    components = [ComponentData(kind, OF_DEFAULT if name is None else EXACT, name) for kind, name in entity.items()]
    request = DescribeClientQuotasRequest(components=components, strict=strict)
    answer = _answered(ask_any(admin, request, DescribeClientQuotasResponse))
    error = code_error(answer.error_code)
    if error is not None:
        raise click.ClickException(f"cannot list limits: {error_text(error, answer.error_message)}")
    found = []
    for entry in answer.entries or ():
        names = {each.entity_type: each.entity_name for each in entry.entity}
        limits = {each.key: each.value for each in entry.values}
        found.append(({kind: names[kind] for kind in _TYPES if kind in names}, limits))
    return sorted(found, key=lambda each: [(kind, name or "") for kind, name in each[0].items()])


def _text(entity: dict[str, str | None]) -> str:
    return ", ".join(f"default {kind}" if name is None else f"{kind} {name}" for kind, name in entity.items())


def _number(value: float) -> str:
    return str(int(value)) if value.is_integer() else str(value)


def _answered(answer: _T | None) -> _T:
    if answer is None:
        raise click.ClickException("this broker knows no quotas")
    return answer
