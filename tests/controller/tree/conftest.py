from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from compat_tests.harness.zookeeper import ZooKeeper as Server

from .keepers import Keeper, Memory, ZooKeeper


@pytest.fixture(scope="module")
def zookeeper_address(kafka39_libs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with Server(kafka39_libs, tmp_path_factory.mktemp("zookeeper")) as server:
        yield server.bootstrap


@pytest.fixture(params=["memory", pytest.param("zookeeper", marks=pytest.mark.java)])
def keeper(request: pytest.FixtureRequest) -> Keeper:
    if request.param == "memory":
        return Memory()
    return ZooKeeper(request.getfixturevalue("zookeeper_address"))
