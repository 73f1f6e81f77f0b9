"""The clusters that the tests of this folder break; each is mended after a test and used by the next.

For work on tests, KBROKER_COMPAT_ONLY names the side to run: apache, kbroker, or mixed (two Java brokers and kbroker).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from compat_tests.harness.clusters import Cluster, JavaCluster, KBrokerCluster, MixedCluster
from compat_tests.harness.zookeeper import ZooKeeper
from tests.tries import FORM

SIDES: Final = ("apache", "kbroker", "mixed") if FORM == "long" else ("kbroker",)
"""The sides that are run by themselves. Each takes minutes, most of which go by until sessions expire; the long form
has all, and test_mixed.py and test_controller.py are always run beside Apache Kafka."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test on every side, or those that its module names, all of one side together."""
    if "whole_cluster" in metafunc.fixturenames:
        only = os.environ.get("KBROKER_COMPAT_ONLY")
        sides = [only] if only in ("apache", "kbroker", "mixed") else getattr(metafunc.module, "SIDES", SIDES)
        metafunc.parametrize("whole_cluster", sides, indirect=True, scope="session")


@pytest.fixture(scope="session")
def whole_cluster(
    request: pytest.FixtureRequest, kafka39_libs: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """Three brokers of a side, on a ZooKeeper of their own."""
    directory = tmp_path_factory.mktemp(f"cluster-{request.param}")
    with (
        ZooKeeper(kafka39_libs, directory / "zookeeper") as zookeeper,
        make(request.param, kafka39_libs, directory, zookeeper) as cluster,
    ):
        cluster.wait_until_in_sync()
        yield cluster


def make(side: str, libs: Path, directory: Path, zookeeper: ZooKeeper) -> Cluster:
    """Return three brokers of a side, not started yet."""
    if side == "kbroker":
        return KBrokerCluster(directory, zookeeper)
    if side == "mixed":
        return MixedCluster(libs, directory, zookeeper)
    return JavaCluster(libs, directory, zookeeper)


@pytest.fixture
def cluster(whole_cluster: Cluster) -> Iterator[Cluster]:
    """Three brokers with all replicas in sync, before the test and after it."""
    yield whole_cluster
    whole_cluster.mend()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """Return a name for the topics, groups and transactional ids of a test."""
    return str(request.node.originalname).removeprefix("test_").replace("_", "-")
