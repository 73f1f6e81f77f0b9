"""`kbroker reset`: return a broker that runs with --control to its state at the start."""

from __future__ import annotations

import click

from kbroker.cli.control_client import Control, control_option


@click.command("reset")
@control_option
def command(control: Control) -> None:
    """Return a broker that runs with `kbroker start --control` to its state at the start, for the next test.

    All topics are deleted, with groups, transactions, faults and changed settings. Clients stay connected.
    """
    control.ask("POST", "/reset")
    click.echo("as at its start: no topics, groups, transactions or faults")
