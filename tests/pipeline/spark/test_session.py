"""How Spark is started, as far as that can be tested without it."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from kbroker.cli.pipeline.options import spark_options
from kbroker.pipeline.errors import PipelineError, first_line
from kbroker.pipeline.spark import session as starting
from kbroker.pipeline.spark.session import SparkOptions, address_towards, connector, open_session


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("3.5.3", "org.apache.spark:spark-sql-kafka-0-10_2.12:3.5.3"),
        ("4.0.0", "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0"),
        ("4.1.0+local", "org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.0"),
    ],
)
def test_connector_belongs_to_the_version_of_pyspark(version: str, expected: str) -> None:
    assert connector(version) == expected


def test_jar_that_is_not_there_is_told_before_spark_starts() -> None:
    with (
        pytest.raises(PipelineError, match=r"--jars: nowhere\.jar is not there"),
        open_session(SparkOptions(jars=("nowhere.jar",)), "test"),
    ):
        pass


def test_java_that_is_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(PipelineError, match="Spark needs Java"), open_session(SparkOptions(), "test"):
        pass


def test_logins_and_keys_are_shown_of_no_query(tmp_path: Path) -> None:
    settings = starting._settings(SparkOptions(), tmp_path, "4.0.0")
    hidden = re.compile(settings["spark.redaction.regex"])
    for name in ("sasl.jaas.config", "ssl.keystore.key", "ssl.key.password", "ssl.truststore.password"):
        assert hidden.search(f"kafka.{name}")
    for name in ("bootstrap.servers", "ssl.truststore.location", "ssl.keystore.location"):
        assert not hidden.search(f"kafka.{name}")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "An error occurred while calling o1.load.\n: java.io.IOException: no\n\tat a.b(C.java)",
            "java.io.IOException: no",
        ),
        ("\n  [TABLE] missing;\n more", "[TABLE] missing;"),
        ("", "ValueError"),
    ],
)
def test_first_line_that_says_something(text: str, line: str) -> None:
    assert first_line(ValueError(text)) == line


def test_options_reach_spark_by_their_names() -> None:
    @click.group()
    @click.option("--debug", is_flag=True)
    def main(debug: bool) -> None:
        del debug

    seen: list[SparkOptions] = []

    @main.command()
    @spark_options
    def verb(spark: SparkOptions) -> None:
        seen.append(spark)

    assert CliRunner().invoke(main, ["verb", "--conf", "a=b=c", "--jars", "x,y"]).exit_code == 0
    assert CliRunner().invoke(main, ["--debug", "verb", "--master", "spark://h:1"]).exit_code == 0
    assert seen == [
        SparkOptions("local[*]", {"a": "b=c"}, ("x", "y"), retries=True, debug=False),
        SparkOptions("spark://h:1", {}, (), retries=True, debug=True),
    ]


def test_driver_is_called_as_the_master_sees_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as other:
        port, gone = server.getsockname()[1], other.getsockname()[1]
        other.close()
        assert address_towards(f"spark://127.0.0.1:{port}") == "127.0.0.1"
        assert address_towards(f"spark://127.0.0.1:{gone},127.0.0.1:{port}") == "127.0.0.1"
        with pytest.raises(PipelineError, match=rf"no Spark master answers at 127\.0\.0\.1:{gone}: connection refused"):
            address_towards(f"spark://127.0.0.1:{gone}")


@pytest.mark.parametrize("master", ["yarn", "k8s://https://host:1", "spark://", "spark://host", "spark://host:port"])
def test_what_is_no_address_is_left_to_spark(master: str) -> None:
    assert address_towards(master) is None


def test_master_that_is_not_there_ends_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbroker.pipeline.spark.session._require_java", lambda: None)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    options = SparkOptions(f"spark://127.0.0.1:{port}", jars=(__file__,))
    with pytest.raises(PipelineError, match="no Spark master answers"), open_session(options, "test"):
        pass


def test_connector_that_does_not_exist_names_the_versions_that_do(monkeypatch: pytest.MonkeyPatch) -> None:
    sql = pytest.importorskip("pyspark.sql")

    class Builder:
        def __getattr__(self, _name: str) -> Any:
            return lambda *_args: self

        def getOrCreate(self) -> None:  # noqa: N802 - pyspark's name
            raise RuntimeError("[unresolved dependency: org.apache.spark#spark-sql-kafka-0-10_2.13;9.9.9: not found]")

    monkeypatch.setattr(starting, "_require_java", lambda: None)
    monkeypatch.setattr(sql.SparkSession, "builder", Builder())
    line = "cannot be fetched: name its jars with --jars, or install a pyspark that was tried: 4.2.0, .*4.1.0 and 4.0.1"
    with pytest.raises(PipelineError, match=line), open_session(SparkOptions(), "test"):
        pass


class Context:
    """The part of a SparkContext that the wait for an executor uses; `looks` are the executors at each check."""

    def __init__(self, looks: list[int], stopped: bool = False) -> None:
        self._looks, self._stopped = looks, stopped
        self._jsc = self

    def getConf(self) -> dict[str, str]:  # noqa: N802 - pyspark's name
        return {"spark.executor.memory": "3g"}

    def sc(self) -> Any:
        return self

    statusTracker = sc  # noqa: N815 - Spark's name

    def getExecutorInfos(self) -> list[str]:  # noqa: N802 - Spark's name
        return ["driver", *["executor"] * self._looks.pop(0)]

    def isStopped(self) -> bool:  # noqa: N802 - Spark's name
        return self._stopped


class Session:
    def __init__(self, context: Context) -> None:
        self.sparkContext = context


@pytest.mark.parametrize(("looks", "lines"), [([1], 0), ([0, 0, 0, 2], 1)])
def test_executor_that_is_waited_for_is_told_once(
    looks: list[int], lines: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(starting, "_REPORTED_AFTER_S", -1.0)
    monkeypatch.setattr(starting, "_CHECK_S", 0.0)
    starting._await_executor(Session(Context(looks)), "spark://h:1")
    line = "waiting for an executor: no worker of spark://h:1 has a core and 3g (spark.executor.memory) free\n"
    assert capsys.readouterr().err == lines * line


def test_job_that_the_master_ended_is_not_waited_for() -> None:
    with pytest.raises(PipelineError, match="spark://h:1 has ended the job"):
        starting._await_executor(Session(Context([0], stopped=True)), "spark://h:1")
