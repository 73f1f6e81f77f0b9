"""Verbs for the changes in the table `kbroker.changes`.

For example, `add_changes` adds the changes of topics to `kbroker topic`. Owns the arguments that the verbs share:
names, a choice of several entities with a confirmation, --if-exists. Does not depend on a particular change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import click

from kbroker.admin.changes import carry_out
from kbroker.admin.connection import Connection
from kbroker.admin.errors import raise_any
from kbroker.admin.groups import listed_groups
from kbroker.admin.topics import listed_topics
from kbroker.changes import CHANGES, Change
from kbroker.cli.client import client_options, confirm
from kbroker.cli.completion import complete_groups, complete_topics
from kbroker.cli.field_options import field_options
from kbroker.cli.option_types import whole_match
from kbroker.cli.output import Decorator

_COMPLETE: Final = {"topic": complete_topics, "group": complete_groups}
_LISTED: Final[dict[str, Callable[[Any], list[str]]]] = {
    "topic": lambda admin: [each["name"] for each in listed_topics(admin) if not each["internal"]],
    "group": lambda admin: list(listed_groups(admin)),
}
_ALL: Final = {"group": " or --all-groups"}
"""The nouns whose verbs have an option for all entities, as in kafka-consumer-groups: only `group`."""


def add_changes(command: click.Group, noun: str) -> None:
    """Add the verbs for the changes of a noun (like `topic`) to the noun's command (like `kbroker topic`)."""
    for each in CHANGES:
        if each.of == noun:
            command.add_command(command_of(each))


def _all_option(noun: str) -> Decorator:
    if noun not in _ALL:
        return lambda verb: verb
    return click.option(
        f"--all-{noun}s", "everything", is_flag=True, help=f"Select all {noun}s, and ask for a confirmation."
    )


def command_of(change: Change) -> click.Command:
    """Return the verb of a change."""
    noun = change.of

    @click.command(change.name, help=change.summary)
    @click.argument("names", nargs=-1, metavar=f"[{noun.upper()}...]", shell_complete=_COMPLETE[noun])
    @click.option(
        "--pattern", metavar="REGEX", help=f"Select the {noun}s whose whole name matches, and ask for a confirmation."
    )
    @_all_option(noun)
    @click.option("--yes", is_flag=True, help="Do not ask for a confirmation.")
    @click.option("--if-exists", is_flag=True, help=f"Succeed if a {noun} does not exist.")
    @field_options(change.fields)
    @client_options
    def verb(
        names: tuple[str, ...],
        pattern: str | None,
        yes: bool,
        if_exists: bool,
        connection: Connection,
        everything: bool = False,
        **given: Any,
    ) -> None:
        if sum([bool(names), pattern is not None, everything]) != 1:
            raise click.UsageError(f"give either the names of {noun}s or --pattern{_ALL.get(noun, '')}")
        values = {
            key: [*each] if isinstance(each, tuple) else each for key, each in given.items() if each not in (None, ())
        }
        with connection.admin() as admin:
            if not names:
                matches = whole_match(pattern)
                names = tuple(each for each in _LISTED[noun](admin) if matches(each))
                if names and not yes:
                    confirm(f"{change.text(change.doing, ', '.join(names), values)}?")
            done, refusals = carry_out(admin, change, names, values, if_exists=if_exists)
        for name in done:
            click.echo(change.text(change.done, name, values))
        raise_any([each.text for each in refusals])

    return verb
