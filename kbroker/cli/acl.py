"""`kbroker acl`: add, list and remove access control lists, of any Kafka; options are named as kafka-acls has them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import click

from kbroker.admin.codes import code_error, error_text
from kbroker.admin.connection import Connection
from kbroker.admin.errors import Failures
from kbroker.admin.own_request import ask_any
from kbroker.cli.client import client_options
from kbroker.cli.output import json_option, print_json, print_table
from kbroker.protocol.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from kbroker.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest, DeleteAclsResponse
from kbroker.protocol.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from kbroker.security.authorizer.acls import (
    CLUSTER_NAME,
    Acl,
    AclFilter,
    Entry,
    Operation,
    Pattern,
    PatternType,
    Permission,
    ResourceType,
    code,
)
from kbroker.security.authorizer.options import (
    RESOURCES,
    AclOptions,
    allowed_and_denied,
    check_principal,
    operation_named,
)

_T = TypeVar("_T")
_PATTERNS = ["any", "match", "literal", "prefixed"]


@click.group("acl")
def command() -> None:
    """Add, list and remove access control lists."""


def _principal(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    try:
        return tuple(check_principal(each) for each in values)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _resource_options(patterns: Sequence[str]) -> Callable[[Callable[..., _T]], Callable[..., _T]]:
    def decorate(function: Callable[..., _T]) -> Callable[..., _T]:
        for option in reversed(
            [
                click.option("--topic", multiple=True, metavar="NAME", help="A topic, or *."),
                click.option("--group", multiple=True, metavar="NAME", help="A consumer group, or *."),
                click.option("--cluster", is_flag=True, help="The cluster."),
                click.option("--transactional-id", multiple=True, metavar="ID", help="A transactional id, or *."),
                click.option("--delegation-token", multiple=True, metavar="ID", help="A delegation token, or *."),
                click.option("--user-principal", multiple=True, metavar="USER", help="A user, or *."),
                click.option(
                    "--resource-pattern-type",
                    type=click.Choice(patterns, case_sensitive=False),
                    default="literal",
                    show_default=True,
                    help="Whether names are whole or beginnings.",
                ),
            ]
        ):
            function = option(function)
        return function

    return decorate


def _entry_options(function: Callable[..., _T]) -> Callable[..., _T]:
    kinds = [each.title for each in Operation if each > Operation.ANY]
    for option in reversed(
        [
            click.option("--allow-principal", multiple=True, callback=_principal, metavar="USER", help="User:alice."),
            click.option("--deny-principal", multiple=True, callback=_principal, metavar="USER", help="User:alice."),
            click.option("--allow-host", multiple=True, metavar="ADDRESS", help="From where; everywhere without."),
            click.option("--deny-host", multiple=True, metavar="ADDRESS", help="From where; everywhere without."),
            click.option(
                "--operation",
                multiple=True,
                type=click.Choice(kinds, case_sensitive=False),
                help="What may be done; All without.",
            ),
            click.option("--producer", is_flag=True, help="What a producer needs."),
            click.option("--consumer", is_flag=True, help="What a consumer needs."),
            click.option("--idempotent", is_flag=True, help="What an idempotent producer needs of the cluster."),
        ]
    ):
        function = option(function)
    return function


def _resources(options: dict[str, Any]) -> tuple[tuple[ResourceType, str], ...]:
    found = [(kind, name) for option, kind in RESOURCES.items() for name in options[option]]
    return (*found, *([(ResourceType.CLUSTER, CLUSTER_NAME)] if options["cluster"] else []))


def _asked(options: dict[str, Any]) -> AclOptions:
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
    """Add ACLs: who may, or may not, do what from where."""
    acls = _meant(_asked(options).acls)
    creations = [
        AclCreation(p.resource_type, p.name, p.pattern_type, e.principal, e.host, e.operation, e.permission)
        for p, e in acls
    ]
    with connection.admin() as admin:
        answer = _answered(ask_any(admin, CreateAclsRequest(creations=creations), CreateAclsResponse))
    failures = []
    for acl, result in zip(acls, answer.results, strict=True):
        error = code_error(result.error_code)
        if error is None:
            click.echo(f"added: {acl}")
        else:
            failures.append(f"cannot add {acl}: {error_text(error, result.error_message)}")
    if failures:
        raise Failures(failures)


@command.command("list")
@_resource_options(_PATTERNS)
@click.option("--principal", multiple=True, callback=_principal, metavar="USER", help="Only those of somebody.")
@json_option
@client_options
def list_acls(connection: Connection, principal: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """List ACLs: all, or those of resources."""
    pattern = PatternType[options["resource_pattern_type"].upper()]
    resources = _resources(options)
    filters = [AclFilter(kind, name, pattern) for kind, name in resources] or [AclFilter()]
    found: dict[Acl, None] = {}
    with connection.admin() as admin:
        for wanted in filters:
            found.update(dict.fromkeys(_described(admin, wanted)))
    acls = sorted(acl for acl in found if not principal or acl.entry.principal in principal)
    if as_json:
        print_json([_as_json(acl) for acl in acls])
        return
    rows = [
        [
            p.resource_type.title,
            p.name,
            p.pattern_type.title,
            e.principal,
            e.host,
            e.permission.title,
            e.operation.title,
        ]
        for p, e in acls
    ]
    print_table(["resource", "name", "pattern", "principal", "host", "permission", "operation"], rows)


def _described(admin: Any, wanted: AclFilter) -> Iterable[Acl]:
    request = DescribeAclsRequest(
        resource_type_filter=wanted.resource_type,
        resource_name_filter=wanted.name,
        pattern_type_filter=wanted.pattern_type,
        operation=wanted.operation,
        permission_type=wanted.permission,
        principal_filter=wanted.principal,
        host_filter=wanted.host,
    )
    answer = _answered(ask_any(admin, request, DescribeAclsResponse))
    error = code_error(answer.error_code)
    if error is not None:
        raise click.ClickException(error_text(error, answer.error_message))
    for resource in answer.resources:
        kind, pattern_type = code(ResourceType, resource.resource_type), code(PatternType, resource.pattern_type)
        pattern = Pattern(kind, resource.resource_name, pattern_type)
        for acl in resource.acls:
            operation, permission = code(Operation, acl.operation), code(Permission, acl.permission_type)
            yield Acl(pattern, Entry(acl.principal, acl.host, operation, permission))


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
    """Remove ACLs; where nobody is named, all of the resources."""
    filters = _meant(_asked(options).filters)
    if not filters:
        raise click.UsageError("say which resource: --topic, --group, --cluster, --transactional-id, ...")
    asked = [
        DeleteAclsFilter(
            resource_type_filter=each.resource_type,
            resource_name_filter=each.name,
            pattern_type_filter=each.pattern_type,
            principal_filter=each.principal,
            host_filter=each.host,
            operation=each.operation,
            permission_type=each.permission,
        )
        for each in filters
    ]
    with connection.admin() as admin:
        answer = _answered(ask_any(admin, DeleteAclsRequest(filters=asked), DeleteAclsResponse))
    failures, count = [], 0
    for result in answer.filter_results:
        for matching in result.matching_acls:
            pattern_type = code(PatternType, matching.pattern_type)
            pattern = Pattern(code(ResourceType, matching.resource_type), matching.resource_name, pattern_type)
            operation, permission = code(Operation, matching.operation), code(Permission, matching.permission_type)
            click.echo(f"removed: {Acl(pattern, Entry(matching.principal, matching.host, operation, permission))}")
            count += 1
        error = code_error(result.error_code)
        if error is not None:
            failures.append(f"cannot remove: {error_text(error, result.error_message)}")
    if failures:
        raise Failures(list(dict.fromkeys(failures)))
    if not count:
        click.echo("no ACL is like that")


def _answered(answer: _T | None) -> _T:
    if answer is None:
        raise click.ClickException("this broker knows no ACLs")
    return answer
