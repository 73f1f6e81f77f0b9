"""Connectors besides Kafka's: with which pyspark they go, and what Spark is told of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.spark.connectors import DELTA, ICEBERG
from kbroker.pipeline.spark.session import SparkOptions, _settings


def test_packages_and_settings_of_a_connector(tmp_path: Path) -> None:
    found = _settings(SparkOptions(connectors=(DELTA,)), tmp_path, "4.0.0")
    kafka, delta = found["spark.jars.packages"].split(",")
    assert (kafka, delta) == ("org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0", *DELTA.packages)
    assert found["spark.sql.extensions"] == "io.delta.sql.DeltaSparkSessionExtension"


def test_connector_for_another_pyspark_is_refused_without_jars(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"for Iceberg tables is for pyspark 4\.0\.0, and this is 4\.2\.0"):
        _settings(SparkOptions(connectors=(ICEBERG,)), tmp_path, "4.2.0")
    found = _settings(SparkOptions(connectors=(ICEBERG,), jars=("x.jar",)), tmp_path, "4.2.0")
    assert found["spark.jars"] == "x.jar"
    assert "spark.jars.packages" not in found
