"""Shared by the verbs that measure: options, and the output of a run's figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import click

from kbroker.cli.output import Facts, Output, with_options
from kbroker.cli.perf.figures import PERCENTILES
from kbroker.cli.perf.senders import CLIENTS

INTERVAL_MS: Final = 5_000
_NAMES: Final = {
    "mb": "MB",
    "records_per_s": "records/s",
    "mb_per_s": "MB/s",
    "fetch_records_per_s": "fetched records/s",
    "fetch_mb_per_s": "fetched MB/s",
    "warmup_records": "warm-up records",
    "warmup_seconds": "warm-up seconds",
}


measuring_options = with_options(
    click.option(
        "--reporting-interval",
        type=click.IntRange(1),
        default=INTERVAL_MS,
        show_default=True,
        metavar="MS",
        help="The interval between progress lines, if standard error is no terminal.",
    ),
    click.option(
        "--client",
        type=click.Choice(CLIENTS),
        default="auto",
        show_default=True,
        help="The client that measures; auto means confluent-kafka if it is installed.",
    ),
)
"""The options of every measurement."""


def show(document: Mapping[str, Any], output: Output) -> None:
    """Print the figures of a run, with one line for each time in `latency_ms`."""
    pairs = [
        (_NAMES.get(name, name.replace("_", " ")), each) for name, each in document.items() if name != "latency_ms"
    ]
    times = document.get("latency_ms") or {}
    order = ("mean", "min", *PERCENTILES, "max")
    shown = [(f"{name} ms", times[name]) for name in order if name in times]
    output.show(document, Facts([(name, _text(each)) for name, each in [*pairs, *shown]]))


def _text(value: object) -> object:
    return f"{value:,}" if isinstance(value, int | float) and not isinstance(value, bool) else value
