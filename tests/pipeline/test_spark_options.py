"""How Spark is started, as far as that can be told without it."""

from __future__ import annotations

import pytest

from kbroker.pipeline.errors import PipelineError, first_line
from kbroker.pipeline.spark import SparkOptions, connector, open_session


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
