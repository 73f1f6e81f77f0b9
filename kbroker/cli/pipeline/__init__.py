"""`kbroker pipeline`: archive topics on Apache Spark, verify, optimize, replay and count them; sample events."""

from __future__ import annotations

import click

from kbroker.cli.output import Verbs
from kbroker.cli.pipeline.archive import archive, optimize, verify
from kbroker.cli.pipeline.demo import demo
from kbroker.cli.pipeline.events import command as events
from kbroker.cli.pipeline.replay import replay
from kbroker.cli.pipeline.visits import recount, visits


@click.group("pipeline", cls=Verbs)
def command() -> None:
    """Archive topics, verify, optimize and replay archives, and count visits on Apache Spark."""


for verb in (archive, verify, optimize, replay, events, visits, recount, demo):
    command.add_command(verb)
