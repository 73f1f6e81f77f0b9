"""The one SparkSession of the tests: local[2], with the connector's jars, which Maven fetches.

Owns Spark's start. Spark's other files (warehouse, events) stay in a temporary directory.
"""

from __future__ import annotations

import atexit
import os
import sys
import tempfile
from functools import cache
from typing import TYPE_CHECKING, Any

from compat_tests.harness.parts import fetch
from kbroker.pipeline.spark.connectors import DELTA, ICEBERG
from tests.tries import FORM

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Jars that the connector needs and pyspark does not include.
CONNECTOR = ("spark-sql-kafka", "spark-token-provider-kafka", "kafka-clients", "commons-pool2")
TABLES = ("iceberg-spark-runtime", "delta-spark", "delta-storage")
INTERPRETED: dict[str, Any] = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Compiling a plan takes longer than running it over a test's few rows; some drivers of their own do compile."""


def connector_jars() -> list[str]:
    """Return the paths of the connector's jars."""
    return [str(jar) for jar in sorted(fetch("spark").glob("*.jar")) if jar.name.startswith(CONNECTOR)]


def table_jars() -> list[str]:
    """Return the paths of the jars with which Spark uses Iceberg and Delta tables."""
    return [str(jar) for jar in sorted(fetch("tables").glob("*.jar")) if jar.name.startswith(TABLES)]


def s3_jars() -> list[str]:
    """Return the paths of the jars with which Spark uses S3, without those that pyspark includes."""
    return [str(jar) for jar in sorted(fetch("s3").glob("*.jar")) if not jar.name.startswith(("slf4j", "commons-"))]


@cache
def spark() -> SparkSession:
    """Return the session, which the first call starts; it ends with the process."""
    from pyspark.sql import SparkSession

    scratch = tempfile.TemporaryDirectory(prefix="spark-")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    session: SparkSession = (
        SparkSession.builder.master("local[2]")
        .appName("compat")
        .config("spark.jars", ",".join([*connector_jars(), *table_jars(), *(s3_jars() if FORM == "long" else [])]))
        .config(map={**ICEBERG.settings, **DELTA.settings})
        .config("spark.databricks.delta.snapshotPartitions", "1")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config(map=INTERPRETED)
        .config("spark.sql.warehouse.dir", f"{scratch.name}/warehouse")
        .config("spark.local.dir", scratch.name)
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )

    def end() -> None:
        session.stop()
        scratch.cleanup()

    atexit.register(end)
    return session


if __name__ == "__main__":
    print(",".join(connector_jars()))
