"""Which out-of-sync replicas a leader waits for: those about to join the ISR, while they are alive and allowed to."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kbroker.protocol.errors import ErrorCode
from tests.replica_manager.cluster import Cluster
from tests.replica_manager.virtual_time import run

MOMENT_S = 2.0
"""Far less than replica.lag.time.max.ms, for which a leader would otherwise wait."""


async def follow_without_being_let_in(cluster: Cluster, refusal: ErrorCode) -> None:
    """Let broker 3 copy everything, while the controller refuses it in the ISR."""
    await cluster.create()
    cluster.network.cut.add(("broker3", "broker1"))
    cluster.network.change()
    assert (await cluster.produce(b"one", timeout_ms=60_000)).error_code == 0
    assert cluster.in_sync() == {1, 2}
    cluster.not_let_in[3] = refusal
    cluster.network.cut.clear()
    await cluster.until(cluster.are_equal)
    follower = dict(cluster.nodes[1].partition().leadership.followers)[3]
    await cluster.until(lambda: follower.end_offset == 1)


@pytest.mark.parametrize("unregistered", [False, True])
def test_acks_all_does_not_wait_for_who_stopped_without_being_in_sync(tmp_path: Path, unregistered: bool) -> None:
    """It shuts down cleanly (the controller no longer adds it), or it is gone before it could join the ISR."""
    refusal = ErrorCode.OPERATION_NOT_ATTEMPTED if unregistered else ErrorCode.INELIGIBLE_REPLICA

    async def main() -> None:
        async with Cluster(tmp_path) as cluster:
            await follow_without_being_let_in(cluster, refusal)
            cluster.network.cut.add(("broker3", "broker1"))
            cluster.network.change()
            loop = asyncio.get_running_loop()
            before = loop.time()
            producing = asyncio.ensure_future(cluster.produce(b"two", timeout_ms=60_000))
            await asyncio.sleep(MOMENT_S / 2)
            if unregistered:
                assert not producing.done()
                cluster.unregister(3)
            assert (await producing).error_code == 0
            assert loop.time() - before < MOMENT_S

    run(main())


def test_delete_records_does_not_wait_for_who_is_gone(tmp_path: Path) -> None:
    async def main() -> None:
        async with Cluster(tmp_path) as cluster:
            await cluster.create(replicas=(1, 2))
            await cluster.produce(b"one")
            await cluster.produce(b"two")
            cluster.network.cut.add(("broker2", "broker1"))
            cluster.network.change()
            loop = asyncio.get_running_loop()
            before = loop.time()
            deleting = asyncio.ensure_future(cluster.delete_records(1, timeout_ms=60_000))
            await asyncio.sleep(MOMENT_S / 2)
            assert not deleting.done()
            cluster.unregister(2)
            found = await deleting
            assert (found.error_code, found.low_watermark) == (0, 1)
            assert loop.time() - before < MOMENT_S

    run(main())
