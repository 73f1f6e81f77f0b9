"""`kbroker completion`: the scripts for shells to complete verbs, options, their choices and names in the cluster.

The scripts, and their calls of this command, are click's. Owns the completion of the names of topics, groups, brokers
and profiles, from the cluster that the verb would use. Owns the short time for which a shell may wait. After a failure
it suggests nothing, and does not report the failure.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem, get_completion_class

PROGRAM = "kbroker"
VARIABLE = "_KBROKER_COMPLETE"
"""The variable that the scripts set; click derives it from the program's name."""


_HELP = """Print a script by which a shell completes verbs and options.

\b
bash, in ~/.bashrc (4.4 or newer):    eval "$(kbroker completion bash)"
zsh, in ~/.zshrc, behind compinit:    eval "$(kbroker completion zsh)"
fish, once:                           kbroker completion fish > ~/.config/fish/completions/kbroker.fish
"""


@click.command("completion", help=_HELP)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the script of a shell."""
    made = get_completion_class(shell)
    assert made is not None
    click.echo(made(click.get_current_context().find_root().command, {}, PROGRAM, VARIABLE).source())


_PATIENCE_S: Final = 2.0
_HASTE: Final = {"bootstrap_timeout_ms": 1_000, "request_timeout_ms": 1_500, "reconnect_backoff_max_ms": 100}


def complete_topics(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the name of a topic; suggest an internal topic only if its name begins with the typed text."""
    return _fitting(ctx, incomplete, lambda admin: [str(topic["name"]) for topic in admin.describe_topics()])


def complete_groups(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the name of a group."""
    return _fitting(ctx, incomplete, lambda admin: [str(group["group_id"]) for group in admin.list_groups()])


def complete_brokers(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the id of a live broker."""
    from kbroker.admin.own_request import live_brokers

    return _fitting(ctx, incomplete, lambda admin: map(str, live_brokers(admin)))


def complete_profiles(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the name of a profile."""
    from kbroker.admin.profiles import names

    return [CompletionItem(name) for name in names() if name.startswith(incomplete)]


def _fitting(ctx: click.Context, incomplete: str, ask: Callable[[Any], Iterable[str]]) -> list[CompletionItem]:
    """Request the names in a thread, and wait for them for a short time only."""
    found: list[str] = []

    def run() -> None:
        try:
            with _connection(ctx).admin() as admin:
                found.extend(ask(admin))
        except Exception:  # noqa: BLE001 - there is no place to report it
            return

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(_PATIENCE_S)
    names = sorted(name for name in list(found) if name.startswith(incomplete))
    if not incomplete:
        names = [name for name in names if not name.startswith("__")] or names
    return [CompletionItem(name) for name in names]


def _connection(ctx: click.Context) -> Any:
    """Return the connection for the options that were typed so far."""
    from kbroker.admin.profiles import connection_of

    logging.getLogger("kafka").setLevel(logging.CRITICAL + 1)
    given = ctx.params
    made = connection_of(
        given["bootstrap"],
        given.get("profile"),
        given.get("file"),
        given.get("settings") or (),
        lambda _line: None,
        profile_counts=ctx.get_parameter_source("bootstrap") is not ParameterSource.COMMANDLINE,
    )
    return replace(made, settings={**_HASTE, **made.settings})
