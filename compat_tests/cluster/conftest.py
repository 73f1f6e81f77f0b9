"""The clusters that the tests of this folder break; each is repaired after a test, and the next test uses it.

When working on tests, KBROKER_COMPAT_ONLY names the side to run: apache, kbroker, or mixed (two Java brokers and
kbroker).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from compat_tests.cluster.tools import Frail
from compat_tests.harness.clusters import Cluster, JavaCluster, KBrokerCluster, MixedCluster
from compat_tests.harness.disks import Disk, MayNotMount
from compat_tests.harness.network import Network
from compat_tests.harness.zookeeper import ZooKeeper
from tests.tries import FORM

SIDES: Final = ("apache", "kbroker", "mixed") if FORM == "long" else ("kbroker",)
"""The sides that are run alone; each takes minutes, most of which pass until sessions expire.

The long form runs all of them; test_mixed.py and test_controller.py always run beside Apache Kafka.
"""
HASTY: Final[Mapping[str, str]] = {"zookeeper.session.timeout.ms": "4000", "replica.lag.time.max.ms": "4000"}
"""Settings of frail clusters, so that tests need not wait long until a broker counts as dead."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test on every side, or on the sides that its module names; all tests of one side run together."""
    only = os.environ.get("KBROKER_COMPAT_ONLY")
    sides = [only] if only in ("apache", "kbroker", "mixed") else getattr(metafunc.module, "SIDES", SIDES)
    if "whole_cluster" in metafunc.fixturenames:
        metafunc.parametrize("whole_cluster", sides, indirect=True, scope="session")
    if "whole_frail" in metafunc.fixturenames:
        metafunc.parametrize("whole_frail", sides, indirect=True, scope="module")


@pytest.fixture(scope="session")
def whole_cluster(
    request: pytest.FixtureRequest, kafka39_libs: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """Yield three brokers of a side, on their own ZooKeeper."""
    directory = tmp_path_factory.mktemp(f"cluster-{request.param}")
    with (
        ZooKeeper(kafka39_libs, directory / "zookeeper") as zookeeper,
        make(request.param, kafka39_libs, directory, zookeeper) as cluster,
    ):
        cluster.wait_until_in_sync()
        yield cluster


def make(
    side: str,
    libs: Path,
    directory: Path,
    zookeeper: ZooKeeper,
    settings: Mapping[str, str] | None = None,
    network: Network | None = None,
) -> Cluster:
    """Return three brokers of a side that are not started yet."""
    if side == "kbroker":
        return KBrokerCluster(directory, zookeeper, settings=settings, network=network)
    if side == "mixed":
        return MixedCluster(libs, directory, zookeeper, settings, network)
    return JavaCluster(libs, directory, zookeeper, settings=settings, network=network)


@pytest.fixture
def cluster(whole_cluster: Cluster) -> Iterator[Cluster]:
    """Yield three brokers; all replicas are in sync before the test and after it."""
    yield whole_cluster
    whole_cluster.mend()


@pytest.fixture(scope="module")
def whole_frail(
    request: pytest.FixtureRequest, kafka39_libs: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Frail]:
    """Yield three brokers of a side, with a network and disks that can be broken."""
    directory = tmp_path_factory.mktemp(f"frail-{request.param}")
    with ExitStack() as parts:
        zookeeper = parts.enter_context(ZooKeeper(kafka39_libs, directory / "zookeeper"))
        network = parts.enter_context(Network(zookeeper.bootstrap))
        cluster = make(request.param, kafka39_libs, directory, zookeeper, HASTY, network)
        disks: dict[int, Disk] = {}
        try:
            for node_id in cluster.node_ids:
                disks[node_id] = parts.enter_context(Disk(cluster.data_dir(node_id)))
        except MayNotMount:
            disks.clear()
        parts.enter_context(cluster)
        cluster.wait_until_in_sync()
        yield Frail(cluster, network, disks)


@pytest.fixture
def frail(whole_frail: Frail) -> Iterator[Frail]:
    """Yield three brokers, in sync, with room on their disks and an intact network: before the test, and after it."""
    yield whole_frail
    whole_frail.network.heal()
    for disk in whole_frail.disks.values():
        disk.make_room()
    whole_frail.cluster.mend()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """Return a name for the topics, groups and transactional ids of a test."""
    return str(request.node.originalname).removeprefix("test_").replace("_", "-")
