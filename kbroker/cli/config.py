"""`kbroker config`: what is set of topics, brokers, loggers, groups and client metrics, of any Kafka."""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import click
from kafka.errors import IncompatibleBrokerVersion

from kbroker.admin.codes import code_error, error_text
from kbroker.admin.connection import Connection
from kbroker.admin.own_request import ask_any, ask_broker
from kbroker.cli.client import client_options
from kbroker.cli.output import json_option, print_json, print_table
from kbroker.config.model import ConfigSource, ConfigType
from kbroker.config.operations import Op
from kbroker.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
)
from kbroker.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from kbroker.protocol.messages.list_config_resources import ListConfigResourcesRequest, ListConfigResourcesResponse

_T = TypeVar("_T")
_TYPES: Final = {"topic": 2, "broker": 4, "logger": 8, "client-metrics": 16, "group": 32}
"""What has configs, and Kafka's number of it (ConfigResource.Type)."""
_NAMES: Final = {number: name for name, number in _TYPES.items()}
_OWN: Final = {
    "topic": ConfigSource.DYNAMIC_TOPIC_CONFIG,
    "broker": ConfigSource.DYNAMIC_BROKER_CONFIG,
    "client-metrics": ConfigSource.CLIENT_METRICS_CONFIG,
    "group": ConfigSource.GROUP_CONFIG,
}
"""Where a value comes from that was set of the very thing; loggers are told of as they are."""
_TOLD_S: Final = 3.0
_PAUSE_S: Final = 0.05
_WITH_TYPES: Final = 1
"""The version of ListConfigResources that tells of more than client metrics."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What has configs: an empty name with brokers is what all of them have unless one has its own."""

    kind: str
    name: str

    def __str__(self) -> str:
        if self.kind == "logger":
            return f"loggers of broker {self.name}"
        return f"{self.kind} {self.name}" if self.name else "all brokers"

    def is_of(self, source: int) -> bool:
        """Tell whether what has this source was set of it, and not of others from which it inherits."""
        if not self.name:
            return source == ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
        return source == _OWN.get(self.kind, source)

    @property
    def node(self) -> int | None:
        """The broker that must be asked; None for any."""
        if self.kind not in ("broker", "logger") or not self.name:
            return None
        return int(self.name)


@click.group("config")
def command() -> None:
    """List, describe, set and unset configs of topics, brokers, loggers, groups and client metrics."""


def _subject_options(function: Callable[..., _T]) -> Callable[..., _T]:
    for option in reversed(
        [
            click.option("--topic", metavar="NAME", help="A topic's."),
            click.option("--broker", type=click.IntRange(0), metavar="ID", help="A broker's."),
            click.option("--all-brokers", is_flag=True, help="What all brokers have that have nothing of their own."),
            click.option("--logger", type=click.IntRange(0), metavar="ID", help="The levels of a broker's loggers."),
            click.option("--group", metavar="ID", help="A group's."),
            click.option("--client-metrics", metavar="NAME", help="A subscription to clients' metrics."),
        ]
    ):
        function = option(function)
    return function


def _subject(options: dict[str, Any]) -> Subject:
    """Return whose configs the options name; raises UsageError unless that is one."""
    found = [
        Subject(kind, str(options[kind.replace("-", "_")]))
        for kind in _TYPES
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
@click.option("--type", "kinds", multiple=True, type=click.Choice(list(_TYPES)), help="Only those; repeatable.")
@json_option
@client_options
def list_subjects(kinds: tuple[str, ...], as_json: bool, connection: Connection) -> None:
    """List what has configs: topics, brokers, and groups and client metrics of which something is set."""
    request = ListConfigResourcesRequest([_TYPES[kind] for kind in kinds])
    with connection.admin() as admin:
        answer = ask_any(admin, request, ListConfigResourcesResponse, _WITH_TYPES)
    if answer is None:
        raise click.ClickException("this broker does not list what has configs (Apache Kafka does since 4.1)")
    _check(answer.error_code, None, "cannot list what has configs")
    rows = sorted([_NAMES.get(each.resource_type, "other"), each.resource_name] for each in answer.config_resources)
    if as_json:
        print_json([{"type": kind, "name": name} for kind, name in rows])
        return
    print_table(["type", "name"], rows)


@command.command("describe")
@_subject_options
@click.argument("keys", nargs=-1, metavar="[KEY...]")
@click.option("--all", "show_all", is_flag=True, help="Also what has its default, or stands in a file.")
@click.option("--documentation", is_flag=True, help="Say what each is for.")
@json_option
@client_options
def describe(
    keys: tuple[str, ...],
    show_all: bool,
    documentation: bool,
    as_json: bool,
    connection: Connection,
    **options: Any,
) -> None:
    """Describe configs: what is set, with --all or by name also what is not."""
    subject = _subject(options)
    with connection.admin() as admin:
        found = _described(admin, subject, documentation=documentation)
    unknown = [key for key in keys if key not in {each.name for each in found}]
    if unknown:
        raise click.ClickException(_unknown(subject, unknown[0], [each.name for each in found]))
    shown = [
        each
        for each in sorted(found, key=lambda each: each.name)
        if (each.name in keys if keys else show_all or subject.is_of(each.config_source))
    ]
    if as_json:
        print_json([_as_json(each, documentation=documentation) for each in shown])
        return
    headers = ["key", "value", "source", *(["documentation"] if documentation else [])]
    rows = [[each.name, _shown(each), _source(each)] for each in shown]
    if documentation:
        rows = [[*row, each.documentation or None] for row, each in zip(rows, shown, strict=True)]
    print_table(headers, rows)


@command.command("set")
@_subject_options
@click.argument("pairs", nargs=-1, required=True, metavar="KEY=VALUE...")
@click.option("--dry-run", is_flag=True, help="Have it checked, and set nothing.")
@client_options
def set_configs(pairs: tuple[str, ...], dry_run: bool, connection: Connection, **options: Any) -> None:
    """Set configs: all of them or, where one cannot be, none."""
    subject = _subject(options)
    ops = []
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise click.UsageError(f"KEY=VALUE, not {pair!r}")
        ops.append(AlterableConfig(key.strip(), Op.SET, value.strip()))
    with connection.admin() as admin:
        _alter(admin, subject, ops, dry_run=dry_run)
    done = ", ".join(f"{op.name}={op.value}" for op in ops)
    click.echo(f"{subject}: {done}{' could be set' if dry_run else ''}")


@command.command("unset")
@_subject_options
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@click.option("--dry-run", is_flag=True, help="Have it checked, and unset nothing.")
@client_options
def unset(keys: tuple[str, ...], dry_run: bool, connection: Connection, **options: Any) -> None:
    """Unset configs: what is inherited counts again, in the end the default."""
    subject = _subject(options)
    with connection.admin() as admin:
        _alter(admin, subject, [AlterableConfig(key, Op.DELETE, None) for key in keys], dry_run=dry_run)
    click.echo(f"{subject}: without {', '.join(keys)}{' it could be' if dry_run else ''}")


def _described(admin: Any, subject: Subject, *, documentation: bool) -> list[DescribeConfigsResourceResult]:
    resource = DescribeConfigsResource(_TYPES[subject.kind], subject.name, None)
    request = DescribeConfigsRequest([resource], include_synonyms=False, include_documentation=documentation)
    (result,) = _asked(admin, subject, request, DescribeConfigsResponse).results
    _check(result.error_code, result.error_message, f"cannot describe {subject}")
    return result.configs


def _alter(admin: Any, subject: Subject, ops: Sequence[AlterableConfig], *, dry_run: bool) -> None:
    resource = AlterConfigsResource(_TYPES[subject.kind], subject.name, list(ops))
    request = IncrementalAlterConfigsRequest([resource], dry_run)
    (result,) = _asked(admin, subject, request, IncrementalAlterConfigsResponse).responses
    if not result.error_code:
        if not dry_run:
            _wait_until_told(admin, subject, ops)
        return
    known = [each.name for each in _described(admin, subject, documentation=False)]
    unknown = [op.name for op in ops if op.name not in known]
    near = _near(unknown[0], known) if unknown else ""
    _check(result.error_code, result.error_message, f"cannot change {subject}", near)


def _wait_until_told(admin: Any, subject: Subject, ops: Sequence[AlterableConfig]) -> None:
    """Wait a moment until the brokers know, for who asks next: the controller answers before they do. Never fails."""
    deadline = time.monotonic() + _TOLD_S
    while time.monotonic() < deadline:
        known = {each.name: each for each in _described(admin, subject, documentation=False)}
        if all(op.name not in known or _is_told(subject, op, known[op.name]) for op in ops):
            return
        time.sleep(_PAUSE_S)


def _is_told(subject: Subject, op: AlterableConfig, known: DescribeConfigsResourceResult) -> bool:
    if op.config_operation == Op.DELETE:
        return subject.kind == "logger" or not subject.is_of(known.config_source)
    return known.is_sensitive or known.value == op.value


def _asked(admin: Any, subject: Subject, request: Any, answer: type[_T]) -> _T:
    if subject.node is None:
        found = ask_any(admin, request, answer)
        assert found is not None  # every broker of these ten years serves it
        return found
    try:
        return ask_broker(admin, subject.node, request, answer)
    except IncompatibleBrokerVersion:
        raise click.ClickException(f"broker {subject.node} does not serve this") from None


def _check(code: int, message: str | None, what: str, hint: str = "") -> None:
    error = code_error(code)
    if error is not None:
        raise click.ClickException(f"{what}: {error_text(error, message)}{hint}")


def _unknown(subject: Subject, key: str, known: Sequence[str]) -> str:
    return f"{subject} has no config {key}{_near(key, known)}"


def _near(key: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(key, known, 1, 0.75)
    return f"; did you mean {near[0]}?" if near else ""


def _shown(each: DescribeConfigsResourceResult) -> str | None:
    return "(secret)" if each.is_sensitive else each.value


def _source(each: DescribeConfigsResourceResult) -> str:
    try:
        return ConfigSource(each.config_source).name
    except ValueError:  # of a newer Kafka
        return str(each.config_source)


def _as_json(each: DescribeConfigsResourceResult, *, documentation: bool) -> dict[str, Any]:
    told = {
        "key": each.name,
        "value": each.value,
        "source": _source(each),
        "read_only": each.read_only,
        "sensitive": each.is_sensitive,
        "type": ConfigType(each.config_type).name if each.config_type in list(ConfigType) else None,
    }
    return told | {"documentation": each.documentation} if documentation else told
