"""Completion of names in shells: topics, groups, brokers and profiles, by asking the cluster that a verb would ask.

Owns how long a shell may wait for it, which is a moment. Never tells of a failure: there is nothing to complete then.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

_PATIENCE_S: Final = 2.0
_HASTE: Final = {"bootstrap_timeout_ms": 1_000, "request_timeout_ms": 1_500, "reconnect_backoff_max_ms": 100}


def complete_topics(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the name of a topic; the cluster's own where it begins as they do."""
    return _fitting(ctx, incomplete, lambda admin: [str(topic["name"]) for topic in admin.describe_topics()])


def complete_groups(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the name of a group."""
    return _fitting(ctx, incomplete, lambda admin: [str(group["group_id"]) for group in admin.list_groups()])


def complete_brokers(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the id of a broker that lives."""

    def ids(admin: Any) -> list[str]:
        brokers = admin.describe_cluster()["brokers"]
        return [str(each["broker_id"] if "broker_id" in each else each["node_id"]) for each in brokers]

    return _fitting(ctx, incomplete, ids)


def complete_profiles(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the name of a profile."""
    from kbroker.admin.profiles import names

    return [CompletionItem(name) for name in names() if name.startswith(incomplete)]


def _fitting(ctx: click.Context, incomplete: str, ask: Callable[[Any], Iterable[str]]) -> list[CompletionItem]:
    """Ask in a thread that is not waited for longer than a moment."""
    found: list[str] = []

    def run() -> None:
        try:
            with _connection(ctx).admin() as admin:
                found.extend(ask(admin))
        except Exception:  # noqa: BLE001 - nobody would read why
            return

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(_PATIENCE_S)
    names = sorted(name for name in list(found) if name.startswith(incomplete))
    if not incomplete:
        names = [name for name in names if not name.startswith("__")] or names
    return [CompletionItem(name) for name in names]


def _connection(ctx: click.Context) -> Any:
    """Return the connection that the options which are typed already make."""
    from kbroker.admin.connection_options import connection_of

    logging.getLogger("kafka").setLevel(logging.CRITICAL + 1)
    told = ctx.params
    made = connection_of(
        told["bootstrap"],
        told.get("profile"),
        told.get("file"),
        told.get("settings") or (),
        lambda _line: None,
        profile_counts=ctx.get_parameter_source("bootstrap") is not ParameterSource.COMMANDLINE,
    )
    return replace(made, settings={**_HASTE, **made.settings})
