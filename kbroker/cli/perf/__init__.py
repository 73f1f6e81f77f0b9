"""`kbroker perf`: measures the rates at which a cluster accepts and delivers records, and end-to-end times of records.

Owns the verbs, which measure like kafka-producer-perf-test, kafka-consumer-perf-test and kafka-e2e-latency.
"""

from __future__ import annotations

import click

from kbroker.cli.output import Verbs
from kbroker.cli.perf.consume import consume
from kbroker.cli.perf.latency import latency
from kbroker.cli.perf.produce import produce


@click.group("perf", cls=Verbs)
def command() -> None:
    """Measure how fast records are produced and consumed, and how long a record takes."""


for verb in (produce, consume, latency):
    command.add_command(verb)
