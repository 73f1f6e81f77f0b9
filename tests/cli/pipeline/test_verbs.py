"""`kbroker pipeline` without Spark: options, and errors before Spark starts."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from kbroker import Broker
from kbroker.cli.pipeline.options import interval, milliseconds
from kbroker.pipeline.spark.session import SparkOptions
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
        ((*ARCHIVE, "--topics", "a", "--decode", "value"), "--decode needs a --registry"),
        ((*VISITS, "--ca", __file__), "--ca is for a --registry"),
        (("pipeline", "replay", "--from", "x", "--to-topic", "y", "--speed", "0x"), "--speed takes a factor"),
        (("pipeline", "replay", "--from", "x", "--to-topic", "y", "--since", "noon"), "--since takes a time"),
        (
            ("pipeline", "recount", "--from", "x", "--topic", "y", "--lookup", "z", "--day", "today"),
            "--day takes a day",
        ),
        ((*VISITS, "--idle", "soon"), "--idle takes a time"),
        ((*VISITS, "--once", "--every", "1s"), "give --once or --every"),
        ((*VISITS, "--time-field", "id"), "must differ from each other"),
    ],
)
def test_options_that_make_no_sense(arguments: tuple[str, ...], line: str) -> None:
    done = CommandLine("127.0.0.1:1")(*arguments)
    assert done.status == 2
    assert line in done.err


def test_what_is_not_there_is_told_before_spark_starts(tmp_path: Path) -> None:
    assert (
        CommandLine("127.0.0.1:1")
        .fails(*ARCHIVE, "--topics", "a")
        .startswith("no broker answers at 127.0.0.1:1: connection refused; ")
    )
    assert (
        CommandLine("127.0.0.1:1").fails(*VISITS).startswith("no broker answers at 127.0.0.1:1: connection refused; ")
    )
    assert CommandLine("127.0.0.1:1").fails(*VISITS, "--dead-letters", "t").endswith("must be three different topics")
    with Broker() as broker:
        run = CommandLine(broker.bootstrap_servers)
        assert run.fails(*ARCHIVE, "--topics", "a") == f"no topic a at {broker.bootstrap_servers}"
        run("topic", "create", "there")
        nowhere = ("--registry", "http://user:secret@127.0.0.1:1")
        line = "the schema registry: no registry answers at http://127.0.0.1:1: "
        assert run.fails(*ARCHIVE, "--topics", "there", "--decode", "key", *nowhere).startswith(line)
        (tmp_path / "l.csv").write_text("")
        visits = ("pipeline", "visits", "--topic", "there", "--lookup", str(tmp_path / "l.csv"), *VISITS[6:])
        assert run.fails(*visits, *nowhere).startswith(line)
        assert run.fails(*VISITS) == f"no topic t at {broker.bootstrap_servers}"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("verify", "--from", "nowhere"), "nowhere is no archive: it has no _manifest"),
        (("optimize", "--at", "nowhere"), "nowhere is no archive: it has no _manifest"),
        (("optimize", "--at", "file:/nowhere"), "file:/nowhere is no archive: it has no _manifest"),
        (("optimize", "--at", "no*"), "cannot use no*: Spark would read * in a path as part of a pattern"),
        (("replay", "--from", "nowhere", "--to-topic", "t"), "nowhere is no archive: it has no _manifest"),
        (("recount", "--from", "nowhere", "--topic", "t", "--lookup", "l.csv"), "nowhere is no archive"),
        (("recount", "--from", "there", "--topic", "t", "--lookup", "l.csv"), "there is no lookup l.csv"),
        (("recount", "--from", "there", "--topic", "t", "--lookup", "l.txt"), "a lookup is a .csv, .json or .parquet"),
        (
            ("recount", "--from", "there", "--topic", "t", "--lookup", "there/known.csv", "--compare", "nowhere"),
            "there is no table nowhere",
        ),
    ],
)
def test_paths_are_looked_at_before_spark_starts(
    arguments: tuple[str, ...], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    (tmp_path / "there" / "_manifest").mkdir(parents=True)
    (tmp_path / "there" / "known.csv").touch()
    monkeypatch.setattr("shutil.which", lambda _name: None)  # no Java
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert CommandLine("127.0.0.1:1").fails("pipeline", *arguments).startswith(line)


def test_paths_of_which_hadoop_decides_are_left_to_it() -> None:
    assert SparkOptions().local_path("x") == Path("x")
    assert SparkOptions().local_path("file:///x/y") == Path("/x/y")
    assert SparkOptions().local_path("hdfs://box/x") is None
    assert SparkOptions("spark://box:7077").local_path("x") is None
    assert SparkOptions(conf={"spark.hadoop.fs.defaultFS": "hdfs://box"}).local_path("x") is None
