"""`kbroker fault`: set, list and remove faults of a broker that runs with --control.

Owns the output; the options are generated from the API's own declarations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import click

from kbroker.cli.control_client import Control, control_option
from kbroker.cli.field_options import field_options
from kbroker.cli.output import Column, Output, Verbs, output_option
from kbroker.control.known_faults import FIELDS, FILTERS, KINDS

_ARGUMENTS: Final = ("kind", "api")


@click.group("fault", cls=Verbs)
def command() -> None:
    """Set faults in a broker that runs with `kbroker start --control`."""


@command.command("add", short_help="Add a fault.")
@click.argument("kind", metavar="KIND", type=click.Choice(list(KINDS)))
@click.argument("apis", nargs=-1, metavar="[API...]")
@field_options(each for each in FIELDS if each.name not in _ARGUMENTS)
@output_option
@control_option
def add(control: Control, kind: str, apis: tuple[str, ...], output: Output, **options: Any) -> None:
    """Set a fault for requests of APIs, such as Produce or OffsetCommit; '*' means all APIs.

    KIND is fail, delay, drop, disconnect, throttle, full_disk, slow_disk, refuse_connections or storm.

    Example: kbroker fault add fail Produce --error NOT_LEADER_OR_FOLLOWER --times 2 --topic orders
    """
    given = {"kind": kind, **{name: value for name, value in options.items() if value is not None}}
    if apis:
        given["api"] = list(apis)
    made = control.ask("POST", "/faults", given)
    if output.is_document:
        output.show(made)
    else:
        click.echo(f"fault {made['id']}: {_effect(made)}{_filters(made)}")


@command.command("list", short_help="List the faults and their hits.")
@output_option
@control_option
def list_faults(control: Control, output: Output) -> None:
    """List the faults that are set, with the number of requests that each has affected."""
    faults = control.ask("GET", "/faults")["faults"]
    output.rows(
        faults,
        "id",
        Column("fault", _effect),
        Column("of requests with", lambda each: _filters(each).strip() or None),
        "hits",
        Column("active", lambda each: "yes" if each["active"] else "no"),
    )


@command.command("wait", short_help="Wait until requests have hit a fault.")
@click.argument("number", metavar="ID", type=int)
@click.option("--hits", type=int, default=1, show_default=True, help="The number of hits to wait for.")
@click.option(
    "--timeout", type=float, default=10.0, show_default=True, metavar="SECONDS", help="The maximum time to wait."
)
@control_option
def wait(control: Control, number: int, hits: int, timeout: float) -> None:
    """Wait until the fault ID has affected requests; exit with 1 if this does not happen in time."""
    path = f"/faults/{number}/wait"
    query = {"hits": hits, "timeout_ms": round(timeout * 1000)}
    met = control.ask("GET", path, query=query, patience_s=timeout)
    click.echo(f"fault {number} was met {met['hits']} times")


@command.command("remove", short_help="Remove faults.")
@click.argument("numbers", metavar="ID...", nargs=-1, required=True, type=int)
@control_option
def remove(control: Control, numbers: tuple[int, ...]) -> None:
    """Remove faults, and print how many requests each has affected."""
    for number in numbers:
        _print_removed(control.ask("DELETE", f"/faults/{number}"))


@command.command("clear", short_help="Remove all faults.")
@control_option
def clear(control: Control) -> None:
    """Remove all faults, and print how many requests each has affected."""
    for each in control.ask("DELETE", "/faults")["faults"]:
        _print_removed(each)


def _print_removed(fault: Mapping[str, Any]) -> None:
    click.echo(f"fault {fault['id']} is removed; it was met {fault['hits']} times")


def _effect(fault: Mapping[str, Any]) -> str:
    ms = None if "ms" not in fault else f"{fault['ms']:g} ms"
    parts = [fault["kind"], *fault.get("api", ()), fault.get("error"), ms, fault.get("when"), fault.get("message")]
    return " ".join(each for each in parts if each)


def _filters(fault: Mapping[str, Any]) -> str:
    return "".join(f" {each.name}={fault[each.name]}" for each in FILTERS if each.name in fault)
