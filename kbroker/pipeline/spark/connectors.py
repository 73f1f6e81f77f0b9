"""Jars and settings that Spark needs besides the Kafka connector, for tables and for object stores.

Owns the coordinates and the settings. A connector is chosen by the format of an archive, or by the scheme of a path.
Never starts Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kbroker.pipeline.errors import PipelineError


@dataclass(frozen=True, slots=True)
class Connector:
    """Jars by their Maven coordinates, and the settings with which Spark uses them."""

    what: str
    packages: tuple[str, ...]
    settings: Mapping[str, str] = field(default_factory=dict)
    excludes: tuple[str, ...] = ()
    """Those dependencies of these jars that the jobs do not need."""
    tried: str = "4.0.0"
    """The version of pyspark with which these versions were tried."""


ICEBERG: Final = Connector(
    "Iceberg tables",
    ("org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.10.1",),
    {
        # The catalog that Iceberg uses for tables at a path. By default it would look for a Hive metastore.
        "spark.sql.catalog.default_iceberg": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.default_iceberg.type": "hadoop",
        "spark.sql.catalog.default_iceberg.warehouse": "file:///nonexistent",
        "spark.sql.catalog.default_iceberg.cache-enabled": "false",
    },
)
DELTA: Final = Connector(
    "Delta tables",
    ("io.delta:delta-spark_2.13:4.0.0",),
    {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    },
)
_SDK: Final = "2.57.8"
S3: Final = Connector(
    "S3",
    (
        "org.apache.hadoop:hadoop-aws:3.4.1",
        *(f"software.amazon.awssdk:{part}:{_SDK}" for part in ("s3-transfer-manager", "apache-client", "sts")),
    ),
    excludes=("software.amazon.awssdk:bundle",),  # the whole SDK, half a GB
)
BY_FORMAT: Final[Mapping[str, Connector]] = {"iceberg": ICEBERG, "delta": DELTA}


def for_paths(paths: Iterable[str]) -> tuple[Connector, ...]:
    """Return the connectors that the schemes of paths need."""
    return (S3,) if any(path.startswith(("s3://", "s3a://")) for path in paths) else ()


def require_tried(connectors: Iterable[Connector], version: str) -> None:
    """Raise PipelineError if a connector was not tried with this version of pyspark."""
    for each in connectors:
        if version.partition("+")[0] != each.tried:
            raise PipelineError(
                f"the connector for {each.what} is for pyspark {each.tried}, and this is {version}:"
                " install that version, or name the jars of all connectors with --jars"
            )


def require_class(session: Any, name: str, what: str) -> Any:
    """Return a class of a connector. Raises PipelineError if Spark does not have its jar."""
    from py4j.java_gateway import JavaPackage

    found = session._jvm  # noqa: SLF001 - pyspark has no other access to classes
    for part in name.split("."):
        found = getattr(found, part)
    if isinstance(found, JavaPackage):
        raise PipelineError(f"Spark has no connector for {what}: give --format, or name the jars with --jars")
    return found
