"""`kbroker config`: the configs of topics, brokers, loggers, groups and client metrics, of any Kafka."""

from __future__ import annotations

from typing import Any

import click

from kbroker.admin.client_properties import read_file
from kbroker.admin.configs import (
    TYPES,
    Subject,
    alter_configs,
    described_configs,
    listed_subjects,
    no_such_config,
    source_name,
)
from kbroker.admin.connection import Connection
from kbroker.cli.client import client_options, warn
from kbroker.cli.completion import complete_brokers, complete_groups, complete_topics
from kbroker.cli.output import Column, Output, Verbs, output_option, wide, with_options
from kbroker.config.model import ConfigType
from kbroker.config.operations import Op
from kbroker.protocol.messages.configs import DescribeConfigsResourceResult, IncrementalConfig


@click.group("config", cls=Verbs)
def command() -> None:
    """List, describe, set and unset configs of topics, brokers, loggers, groups and client metrics."""


_subject_options = with_options(
    click.option("--topic", metavar="NAME", shell_complete=complete_topics, help="The configs of this topic."),
    click.option(
        "--broker",
        type=click.IntRange(0),
        metavar="ID",
        shell_complete=complete_brokers,
        help="The configs of this broker.",
    ),
    click.option("--all-brokers", is_flag=True, help="The cluster-wide defaults of all brokers."),
    click.option("--logger", type=click.IntRange(0), metavar="ID", help="The log levels of this broker's loggers."),
    click.option("--group", metavar="ID", shell_complete=complete_groups, help="The configs of this group."),
    click.option("--client-metrics", metavar="NAME", help="The configs of this subscription to clients' metrics."),
)


def _subject(options: dict[str, Any]) -> Subject:
    """Return the entity in the options. Raises UsageError unless there is exactly one."""
    found = [
        Subject(kind, str(options[kind.replace("-", "_")]))
        for kind in TYPES
        if options[kind.replace("-", "_")] is not None
    ]
    if options["all_brokers"]:
        found.append(Subject("broker", ""))
    if len(found) != 1 or (not found[0].name and not options["all_brokers"]):
        raise click.UsageError(
            "say whose: one of --topic, --broker, --all-brokers, --logger, --group, --client-metrics"
        )
    return found[0]


@command.command("list")
@click.option("--type", "kinds", multiple=True, type=click.Choice(list(TYPES)), help="List only this type; repeatable.")
@output_option
@client_options
def list_subjects(kinds: tuple[str, ...], output: Output, connection: Connection) -> None:
    """List the resources with configs: topics, brokers, and groups and client metrics with set configs."""
    with connection.admin() as admin:
        rows = listed_subjects(admin, kinds)
    output.rows([{"type": kind, "name": name} for kind, name in rows], "type", "name")


_offline_option = click.option(
    "--offline",
    "directory",
    type=click.Path(exists=True, file_okay=False),
    help="Use the data directory of a stopped broker without a cluster, with --broker or --all-brokers.",
)


def _offline_broker(subject: Subject) -> str:
    if subject.kind != "broker":
        raise click.UsageError("--offline takes --broker or --all-brokers")
    return subject.name


@command.command("describe")
@_subject_options
@_offline_option
@click.argument("keys", nargs=-1, metavar="[KEY...]")
@click.option("--all", "show_all", is_flag=True, help="Also show defaults, and values from the broker's file.")
@click.option("--documentation", is_flag=True, help="Show the documentation of each config.")
@output_option
@client_options
def describe(
    keys: tuple[str, ...],
    show_all: bool,
    documentation: bool,
    directory: str | None,
    output: Output,
    connection: Connection,
    **options: Any,
) -> None:
    """Describe the configs that are set; with --all or by name, also other configs."""
    subject = _subject(options)
    if directory is not None:
        from kbroker.controller.offline_configs import configs_of

        found_offline = configs_of(directory, _offline_broker(subject))
        shown_keys = sorted(key for key in found_offline if not keys or key in keys)
        secrets = {key for key in shown_keys if _is_secret(key)}
        output.rows(
            [{"key": key, "value": "(secret)" if key in secrets else found_offline[key]} for key in shown_keys],
            "key",
            "value",
        )
        return
    with connection.admin() as admin:
        found = described_configs(admin, subject, documentation=documentation)
    unknown = [key for key in keys if key not in {each.name for each in found}]
    if unknown:
        raise click.ClickException(no_such_config(subject, unknown[0], [each.name for each in found]))
    shown = [
        each
        for each in sorted(found, key=lambda each: each.name)
        if (each.name in keys if keys else show_all or subject.is_of(each.config_source))
    ]
    if not shown and not keys:
        warn(f"{subject} has no configs of its own; --all shows all values in force, and their sources")
    value = Column("value", lambda row: "(secret)" if row["sensitive"] else row["value"])
    read_only = wide("read-only", lambda row: "yes" if row["read_only"] else None)
    text = [Column("documentation", lambda row: row["documentation"] or None)] if documentation else []
    rows = [_as_json(each, documentation=documentation) for each in shown]
    output.rows(rows, "key", value, "source", wide("type"), read_only, *text)


@command.command("set")
@_subject_options
@click.argument("pairs", nargs=-1, metavar="KEY=VALUE...")
@click.option("--add-config-file", "config_file", metavar="FILE", help="Also set the key=value lines of this file.")
@click.option("--dry-run", is_flag=True, help="Check the change without setting anything.")
@client_options
def set_configs(
    pairs: tuple[str, ...], config_file: str | None, dry_run: bool, connection: Connection, **options: Any
) -> None:
    """Set configs: either all of them or, if one is refused, none."""
    subject = _subject(options)
    fields = {} if config_file is None else read_file(config_file, "--add-config-file")
    ops = [IncrementalConfig(key, Op.SET, value) for key, value in fields.items()]
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise click.UsageError(f"KEY=VALUE, not {pair!r}")
        ops.append(IncrementalConfig(key.strip(), Op.SET, value.strip()))
    if not ops:
        raise click.UsageError("say what: KEY=VALUE, or --add-config-file")
    with connection.admin() as admin:
        alter_configs(admin, subject, ops, dry_run=dry_run)
    done = ", ".join(f"{op.name}={'(secret)' if _is_secret(op.name) else op.value}" for op in ops)
    click.echo(f"{subject}: {done}{' could be set' if dry_run else ''}")


def _is_secret(key: str) -> bool:
    """Whether a key's name marks its value as secret; the broker does not return such values."""
    return key.endswith(("password", "jaas.config", "keystore.key", "secret", "secret.key"))


@command.command("unset")
@_subject_options
@_offline_option
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@click.option("--dry-run", is_flag=True, help="Check the change without unsetting anything.")
@client_options
def unset(keys: tuple[str, ...], directory: str | None, dry_run: bool, connection: Connection, **options: Any) -> None:
    """Unset configs: then the inherited value applies again, or else the default.

    Use --offline, while the node is stopped, to unset a config that prevents clients from connecting.
    """
    subject = _subject(options)
    if directory is not None:
        from kbroker.controller.offline_configs import unset as unset_offline

        unset_offline(directory, _offline_broker(subject), keys, dry_run=dry_run)
    else:
        with connection.admin() as admin:
            alter_configs(admin, subject, [IncrementalConfig(key, Op.DELETE, None) for key in keys], dry_run=dry_run)
    click.echo(f"{subject}: without {', '.join(keys)}{' it could be' if dry_run else ''}")


def _as_json(each: DescribeConfigsResourceResult, *, documentation: bool) -> dict[str, Any]:
    fields = {
        "key": each.name,
        "value": each.value,
        "source": source_name(each),
        "read_only": each.read_only,
        "sensitive": each.is_sensitive,
        "type": ConfigType(each.config_type).name if each.config_type in list(ConfigType) else None,
    }
    return fields | {"documentation": each.documentation} if documentation else fields
