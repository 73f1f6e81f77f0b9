"""`kbroker requests`: the requests to a broker that runs with --control, and the broker's answers.

Owns the one-line form of a request.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import click

from kbroker.cli.control_client import Control, control_option
from kbroker.cli.field_options import field_options
from kbroker.cli.output import NOTHING, Output, Table, output_option
from kbroker.control.values import ABOUT, LIMIT


@click.command("requests")
@click.option("--follow", "-f", is_flag=True, help="Print each answered request until Ctrl-C.")
@field_options([*ABOUT, LIMIT])
@click.option("--clear", is_flag=True, help="Delete the list of requests.")
@output_option
@control_option
def command(
    control: Control, follow: bool, limit: int | None, clear: bool, output: Output, **about: str | None
) -> None:
    """Show the requests to a broker that runs with `kbroker start --control`.

    Requests are recorded from the first use of this verb until the broker stops. --json prints complete requests and
    answers; with --follow, one per line.
    """
    if clear:
        if follow:
            raise click.UsageError("--clear and --follow exclude each other")
        control.ask("DELETE", "/requests")
        return
    if follow:
        for request in control.lines("/requests/live", about):
            _print(request, output)
        return
    found = control.ask("GET", "/requests", query={"limit": limit, **about})
    headers = ["time", "api", "version", "client", "about", "ms", "fault"]
    rows = [dict(zip(headers, _row(each), strict=True)) for each in found["requests"]]
    output.show(found["requests"], Table(rows, headers))
    if found["left_out"] and not output.is_document:
        click.echo(f"{found['left_out']} more are left out", err=True)


def _print(request: Mapping[str, Any], output: Output) -> None:
    if "missed" in request:
        click.echo(f"{request['missed']} requests arrived faster than they could be printed", err=True)
    elif "api" in request:
        line = json.dumps(request) if output.is_document else "  ".join(map(_cell, _row(request)))
        click.echo(line if line.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line))


def _cell(value: object) -> str:
    return NOTHING if value is None else str(value)


def _row(request: Mapping[str, Any]) -> list[object]:
    seconds, ms = divmod(request["time_ms"], 1000)
    about = ", ".join([*request["topics"], *request["groups"], *request["transactional_ids"]])
    took = None if request["duration_ms"] is None else f"{request['duration_ms']:.1f}"
    return [
        f"{time.strftime('%H:%M:%S', time.localtime(seconds))}.{ms:03}",
        request["api"],
        request["version"],
        request["client_id"],
        about or None,
        took,
        request["fault"],
    ]
