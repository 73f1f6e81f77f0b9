"""`kbroker pipeline` as far as it goes without Spark: options, and what is refused before Spark starts."""

from __future__ import annotations

import click
import pytest

from kbroker import Broker
from kbroker.cli.pipeline.options import interval, milliseconds
from tests.cli.conftest import CommandLine

VISITS = ("pipeline", "visits", "--topic", "t", "--lookup", "l.csv", "--to", "nowhere", "--checkpoint", "nowhere")
ARCHIVE = ("pipeline", "archive", "--to", "nowhere", "--checkpoint", "nowhere")


def test_times_are_read_as_people_write_them() -> None:
    assert [interval(text) for text in ("30s", "1m", "2h", None)] == ["30 seconds", "1 minutes", "2 hours", None]
    assert [milliseconds(text, "--gap") for text in ("30s", "1m", "2h")] == [30_000, 60_000, 7_200_000]


@pytest.mark.parametrize("text", ["", "s", "0s", "1", "1d", "-1m", "1.5h"])
def test_other_times_are_refused(text: str) -> None:
    with pytest.raises(click.UsageError, match="takes a time such as"):
        milliseconds(text, "--gap")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ((*ARCHIVE,), "give --topics or --pattern"),
        ((*ARCHIVE, "--topics", "a", "--pattern", "a"), "give --topics or --pattern"),
        ((*ARCHIVE, "--topics", "a", "--once", "--every", "1m"), "give --once or --every"),
        ((*ARCHIVE, "--topics", "a", "--conf", "x"), "--conf takes KEY=VALUE"),
        (("pipeline", "replay", "--from", "x", "--to-topic", "y", "--speed", "0x"), "--speed takes a factor"),
        (("pipeline", "replay", "--from", "x", "--to-topic", "y", "--since", "noon"), "--since takes a time"),
        (
            ("pipeline", "recount", "--from", "x", "--topic", "y", "--lookup", "z", "--day", "today"),
            "--day takes a day",
        ),
        ((*VISITS, "--idle", "soon"), "--idle takes a time"),
        ((*VISITS, "--once", "--every", "1s"), "give --once or --every"),
        ((*VISITS, "--time-field", "id"), "are different ones"),
    ],
)
def test_options_that_make_no_sense(arguments: tuple[str, ...], line: str) -> None:
    done = CommandLine("127.0.0.1:1")(*arguments)
    assert done.status == 2
    assert line in done.err


def test_what_is_not_there_is_told_before_spark_starts() -> None:
    assert CommandLine("127.0.0.1:1").fails(*ARCHIVE, "--topics", "a").endswith("connection refused")
    assert CommandLine("127.0.0.1:1").fails(*VISITS).endswith("connection refused")
    assert CommandLine("127.0.0.1:1").fails(*VISITS, "--dead-letters", "t").endswith("must be three")
    with Broker() as broker:
        run = CommandLine(broker.bootstrap_servers)
        assert run.fails(*ARCHIVE, "--topics", "a") == f"no topic a at {broker.bootstrap_servers}"
