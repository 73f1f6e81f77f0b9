"""What tests of replication share: a cluster in virtual time, and the values of its records."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from tests.replica_manager.cluster import Cluster
from tests.replica_manager.virtual_time import run

Test = Callable[[Cluster], Coroutine[Any, Any, None]]


@pytest.fixture
def play(tmp_path: Path) -> Callable[..., None]:
    """Run a test within a running cluster."""

    def play(test: Test, **settings: Any) -> None:
        async def main() -> None:
            async with Cluster(tmp_path, **settings) as cluster:
                await test(cluster)

        run(main())

    return play
