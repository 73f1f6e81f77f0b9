"""`kbroker clock`: show and move the time of a broker that runs with --control."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from kbroker.cli.control_client import Control, control_option
from kbroker.cli.output import Facts, Output, Verbs, output_option


@click.group("clock", cls=Verbs)
def command() -> None:
    """Show and move the time of a broker that runs with `kbroker start --control`."""


@command.command("show")
@output_option
@control_option
def show(control: Control, output: Output) -> None:
    """Show the broker's time."""
    _print(control.ask("GET", "/clock"), output)


@command.command("advance", short_help="Let time pass.")
@click.option("--days", type=float, metavar="N", help="This number of days.")
@click.option("--hours", type=float, metavar="N", help="This number of hours.")
@click.option("--minutes", type=float, metavar="N", help="This number of minutes.")
@click.option("--seconds", type=float, metavar="N", help="This number of seconds.")
@click.option("--ms", type=float, metavar="N", help="This number of milliseconds.")
@output_option
@control_option
def advance(control: Control, output: Output, **options: float | None) -> None:
    """Let time pass: retention and compaction run, sessions and transactions expire."""
    given = {unit: count for unit, count in options.items() if count is not None}
    if not given:
        raise click.UsageError("say how long: --days, --hours, --minutes, --seconds or --ms")
    _print(control.ask("POST", "/clock/advance", given), output)


@command.command("set", short_help="Set the time.")
@click.argument("when")
@output_option
@control_option
def set_clock(control: Control, when: str, output: Output) -> None:
    """Set the time to WHEN: a time such as 2026-01-31T12:00:00Z, or in ms since 1970.

    A time before now sets back only the wall clock.
    """
    given = {"now_ms": int(when)} if when.isascii() and when.isdecimal() else {"now": when}
    _print(control.ask("PUT", "/clock", given), output)


def _print(clock: Mapping[str, Any], output: Output) -> None:
    output.show(clock, Facts([("now", clock["now"]), ("ahead", f"{clock['ahead_ms'] / 1000:.3f} s")]))
