"""`kbroker acl`: add, list and remove access control lists of any Kafka; options have kafka-acls' names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from kbroker.admin.acls import add_acls, described_acls, remove_acls
from kbroker.admin.connection import Connection
from kbroker.admin.errors import raise_any
from kbroker.cli.client import client_options
from kbroker.cli.completion import complete_groups, complete_topics
from kbroker.cli.output import Decorator, Output, Verbs, output_option, with_options
from kbroker.security.authorizer.acl_shorthands import (
    RESOURCES,
    AclOptions,
    allowed_and_denied,
    check_principal,
    operation_named,
)
from kbroker.security.authorizer.acls import CLUSTER_NAME, Acl, AclFilter, Operation, PatternType, ResourceType

_T = TypeVar("_T")
_PATTERNS = ["any", "match", "literal", "prefixed"]


@click.group("acl", cls=Verbs)
def command() -> None:
    """Add, list and remove access control lists."""


def _principal(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    try:
        return tuple(check_principal(each) for each in values)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _resource_options(patterns: Sequence[str]) -> Decorator:
    return with_options(
        click.option("--topic", multiple=True, metavar="NAME", shell_complete=complete_topics, help="A topic, or *."),
        click.option(
            "--group",
            multiple=True,
            metavar="NAME",
            shell_complete=complete_groups,
            help="A consumer group, or *.",
        ),
        click.option("--cluster", is_flag=True, help="The cluster."),
        click.option("--transactional-id", multiple=True, metavar="ID", help="A transactional id, or *."),
        click.option("--delegation-token", multiple=True, metavar="ID", help="A delegation token, or *."),
        click.option("--user-principal", multiple=True, metavar="USER", help="A user, or *."),
        click.option(
            "--resource-pattern-type",
            type=click.Choice(patterns, case_sensitive=False),
            default="literal",
            show_default=True,
            help="Whether a name is a complete name or a prefix.",
        ),
    )


_KINDS = [each.title for each in Operation if each > Operation.ANY]
_entry_options = with_options(
    click.option("--allow-principal", multiple=True, callback=_principal, metavar="USER", help="User:alice."),
    click.option("--deny-principal", multiple=True, callback=_principal, metavar="USER", help="User:alice."),
    click.option(
        "--allow-host", multiple=True, metavar="ADDRESS", help="The host of the clients; by default every host."
    ),
    click.option(
        "--deny-host", multiple=True, metavar="ADDRESS", help="The host of the clients; by default every host."
    ),
    click.option(
        "--operation",
        multiple=True,
        type=click.Choice(_KINDS, case_sensitive=False),
        help="The operation; All by default.",
    ),
    click.option("--producer", is_flag=True, help="The operations of a producer."),
    click.option("--consumer", is_flag=True, help="The operations of a consumer."),
    click.option("--idempotent", is_flag=True, help="The operations of an idempotent producer on the cluster."),
)


def _resources(options: dict[str, Any]) -> tuple[tuple[ResourceType, str], ...]:
    found = [(kind, name) for option, kind in RESOURCES.items() for name in options[option]]
    return (*found, *([(ResourceType.CLUSTER, CLUSTER_NAME)] if options["cluster"] else []))


def _acl_options(options: dict[str, Any]) -> AclOptions:
    return AclOptions(
        _resources(options),
        PatternType[options["resource_pattern_type"].upper()],
        allowed_and_denied(options["allow_principal"], options["deny_principal"]),
        allowed_and_denied(options["allow_host"], options["deny_host"]),
        tuple(operation_named(each) for each in options["operation"]),
        options["producer"],
        options["consumer"],
        options["idempotent"],
    )


def _meant(find: Callable[[], list[_T]]) -> list[_T]:
    try:
        return find()
    except ValueError as error:
        raise click.UsageError(str(error)) from None


@command.command("add")
@_resource_options(["literal", "prefixed"])
@_entry_options
@client_options
def add(connection: Connection, **options: Any) -> None:
    """Add ACLs that allow or deny principals operations on resources, by host."""
    acls = _meant(_acl_options(options).acls)
    failures = []
    with connection.admin() as admin:
        for acl, failure in add_acls(admin, acls):
            if failure is None:
                click.echo(f"added: {acl}")
            else:
                failures.append(f"cannot add {acl}: {failure}")
    raise_any(failures)


@command.command("list")
@_resource_options(_PATTERNS)
@click.option("--principal", multiple=True, callback=_principal, metavar="USER", help="Only those of this principal.")
@output_option
@client_options
def list_acls(connection: Connection, principal: tuple[str, ...], output: Output, **options: Any) -> None:
    """List ACLs: all of them, or those of resources."""
    pattern = PatternType[options["resource_pattern_type"].upper()]
    resources = _resources(options)
    filters = [AclFilter(kind, name, pattern) for kind, name in resources] or [AclFilter()]
    found: dict[Acl, None] = {}
    with connection.admin() as admin:
        for wanted in filters:
            found.update(dict.fromkeys(described_acls(admin, wanted)))
    acls = sorted(acl for acl in found if not principal or acl.entry.principal in principal)
    rows = [_as_json(acl) for acl in acls]
    output.rows(rows, "resource", "name", "pattern", "principal", "host", "permission", "operation")


def _as_json(acl: Acl) -> dict[str, str]:
    pattern, entry = acl
    return {
        "resource": pattern.resource_type.title,
        "name": pattern.name,
        "pattern": pattern.pattern_type.title,
        "principal": entry.principal,
        "host": entry.host,
        "permission": entry.permission.title,
        "operation": entry.operation.title,
    }


@command.command("remove")
@_resource_options(_PATTERNS)
@_entry_options
@client_options
def remove(connection: Connection, **options: Any) -> None:
    """Remove the ACLs of principals on resources; without principals, remove all ACLs on these resources."""
    filters = _meant(_acl_options(options).filters)
    if not filters:
        raise click.UsageError("say which resource: --topic, --group, --cluster, --transactional-id, ...")
    with connection.admin() as admin:
        removed, failures = remove_acls(admin, filters)
    for acl in removed:
        click.echo(f"removed: {acl}")
    raise_any(failures)
    if not removed:
        click.echo("no ACL matches")
