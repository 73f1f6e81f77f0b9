"""`kbroker clock`: show and move the time of a broker that runs with --control."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from kbroker.cli.control_client import Control, control_option
from kbroker.cli.output import json_option, print_facts, print_json


@click.group("clock")
def command() -> None:
    """Show and move the time of a broker that runs with `kbroker start --control`."""


@command.command("show")
@json_option
@control_option
def show(control: Control, as_json: bool) -> None:
    """Show the broker's time."""
    _tell(control.ask("GET", "/clock"), as_json=as_json)


@command.command("advance", short_help="Let time pass.")
@click.option("--days", type=float, metavar="N", help="So many days.")
@click.option("--hours", type=float, metavar="N", help="So many hours.")
@click.option("--minutes", type=float, metavar="N", help="So many minutes.")
@click.option("--seconds", type=float, metavar="N", help="So many seconds.")
@click.option("--ms", type=float, metavar="N", help="So many milliseconds.")
@json_option
@control_option
def advance(control: Control, as_json: bool, **options: float | None) -> None:
    """Let time pass: retention and compaction have their turn, sessions and transactions run out."""
    given = {unit: count for unit, count in options.items() if count is not None}
    if not given:
        raise click.UsageError("say how long: --days, --hours, --minutes, --seconds or --ms")
    _tell(control.ask("POST", "/clock/advance", given), as_json=as_json)


@command.command("set", short_help="Let it be another time.")
@click.argument("when")
@json_option
@control_option
def set_clock(control: Control, when: str, as_json: bool) -> None:
    """Let it be WHEN: a time as 2026-01-31T12:00:00Z, or in ms since 1970.

    Earlier than now, the clock on the wall alone goes back.
    """
    given = {"now_ms": int(when)} if when.isascii() and when.isdecimal() else {"now": when}
    _tell(control.ask("PUT", "/clock", given), as_json=as_json)


def _tell(clock: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(clock)
        return
    print_facts([("now", clock["now"]), ("ahead", f"{clock['ahead_ms'] / 1000:.3f} s")])
