"""What all test trees share: Apache Kafka's jars, and the rule about tests that need Java.

A test marked `java` or `spark` is skipped, by name, on a machine without a JDK or Maven; where CI=true it fails
instead, so that a build never passes by leaving them out. Logs check themselves (KBROKER_VERIFY), in this process and
in the brokers that tests start.
"""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from compat_tests.harness.jvm import BRIEF
from compat_tests.harness.parts import PartsMissing, fetch, missing_tools

os.environ.setdefault("KBROKER_VERIFY", "1")
# Half of the processor time of a job on Spark compiled Java again, better than a job of seconds can use.
os.environ.setdefault("SPARK_SUBMIT_OPTS", " ".join(BRIEF))

pytest_plugins = ["tests.tries", "tests.figures", "compat_tests.harness.report", "compat_tests.harness.fixtures"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs Java where there is none, except in CI."""
    missing = missing_tools()
    if not missing or os.environ.get("CI") == "true":
        return
    skip = pytest.mark.skip(reason=f"needs {' and '.join(missing)}")
    for item in items:
        if item.get_closest_marker("java") or item.get_closest_marker("spark"):
            item.add_marker(skip)


def pytest_collection_finish() -> None:
    """Spare the collector of garbage what thousands of tests and their modules are: a tenth of the run's time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def kafka_libs() -> Path:
    """Directory with the jars of Apache Kafka 4.4.0, its server, tools and clients."""
    return _libs("kafka")


@pytest.fixture(scope="session")
def hdfs_libs() -> Path:
    """Return the directory with the jars of HDFS."""
    return _libs("hdfs")


@pytest.fixture(scope="session")
def kafka39_libs() -> Path:
    """Directory with the jars of Apache Kafka 3.9.1, which runs on ZooKeeper, and of ZooKeeper."""
    return _libs("kafka39")


def _libs(part: str) -> Path:
    try:
        return fetch(part)
    except PartsMissing as error:
        pytest.fail(str(error))


@pytest.fixture(autouse=True)
def _kafkas_loggers() -> Iterator[None]:
    """Undo what verbs of the command line do in this process: they keep kafka-python silent, and all below its name."""
    yield
    logging.getLogger("kafka").setLevel(logging.NOTSET)
