"""Leaders and followers over real logs: acknowledged records, in-sync replicas, and what remains after failures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.inter_broker import AlterPartitionRequest
from tests.replica_manager.cluster import CONFIG, CONTROLLER, Cluster, values


def test_what_is_produced_is_copied_committed_and_answered(play: Callable[..., None]) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create()
        answer = await cluster.produce(b"one", b"two")
        assert (answer.error_code, answer.base_offset) == (0, 0)
        leader = cluster.nodes[1].partition()
        assert leader.log.high_watermark == 2
        assert all(cluster.nodes[each].partition().log.log_end_offset == 2 for each in (2, 3))
        answer = await cluster.produce(b"three")
        assert answer.base_offset == 2
        await cluster.until(cluster.are_equal)
        assert values(cluster.contents(3)) == [b"one", b"two", b"three"]
        assert cluster.granted == []

    play(test)


def test_acks_1_is_answered_at_once_and_consumers_see_it_once_it_is_committed(play: Callable[..., None]) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create()
        answer = await cluster.produce(b"one", acks=1)
        assert (answer.error_code, answer.base_offset) == (0, 0)
        assert cluster.nodes[1].partition().log.high_watermark == 0
        assert not (await cluster.fetch()).records
        data = await cluster.fetch(wait_ms=5000)
        assert values(bytes(data.records)) == [b"one"]
        assert data.high_watermark == 1

    play(test)


def test_a_follower_that_is_gone_leaves_the_in_sync_replicas_and_comes_back(play: Callable[..., None]) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create()
        await cluster.produce(b"one")
        node = cluster.nodes[3]
        cluster.network.cut.add((node.host, "broker1"))  # only the leader notices
        cluster.network.change()
        loop = asyncio.get_running_loop()
        before = loop.time()
        answer = await cluster.produce(b"two", timeout_ms=60_000)
        assert (answer.error_code, answer.base_offset) == (0, 1)
        lag_s = CONFIG.lag_max_ms / 1000
        assert lag_s <= loop.time() - before <= 2 * lag_s
        assert cluster.in_sync() == {1, 2}
        assert set(cluster.nodes[1].partition().isr) == {1, 2}
        cluster.network.cut.clear()
        await cluster.until(lambda: cluster.in_sync() == {1, 2, 3})
        await cluster.until(cluster.are_equal)
        await cluster.until(lambda: len(cluster.nodes[1].partition().isr) == 3)

    play(test)


def test_an_idle_follower_that_has_all_stays_in_sync(play: Callable[..., None]) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create()
        await cluster.produce(b"one")
        cluster.network.cut.add(("broker3", "broker1"))
        cluster.network.change()
        await asyncio.sleep(10 * CONFIG.lag_max_ms / 1000)
        assert cluster.in_sync() == {1, 2, 3}

    play(test)


def test_a_killed_leaders_acknowledged_records_stay_and_it_is_in_sync_again(play: Callable[..., None]) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create()
        await cluster.produce(b"one")
        cluster.kill(1)
        await cluster.told()
        assert cluster.partitions["t", 0].leader == 2
        answer = await cluster.produce(b"two")
        assert (answer.error_code, answer.base_offset) == (0, 1)
        await cluster.start(1)
        await cluster.until(lambda: cluster.in_sync() == {1, 2, 3})
        answer = await cluster.produce(b"three")
        assert answer.error_code == 0
        await cluster.until(cluster.are_equal)
        assert values(cluster.contents(1)) == [b"one", b"two", b"three"]
        epochs = [cluster.nodes[each].partition().log.leader_epochs.entries for each in (1, 2, 3)]
        assert epochs[0] == epochs[1] == epochs[2] == [(0, 0), (1, 1)]

    play(test)


def test_what_only_a_dead_leader_had_is_cut_off_when_it_returns(play: Callable[..., None]) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create()
        await cluster.produce(b"one")
        for each in (2, 3):
            cluster.network.cut.add((f"broker{each}", "broker1"))
        cluster.network.change()
        for value in (b"lost", b"lost too"):
            await cluster.produce(value, acks=1)
        cluster.kill(1)
        cluster.network.cut.clear()
        await cluster.told()
        await cluster.produce(b"two")
        await cluster.start(1)
        await cluster.until(lambda: cluster.in_sync() == {1, 2, 3})
        await cluster.until(cluster.are_equal)
        assert values(cluster.contents(1)) == [b"one", b"two"]

    play(test)


def test_a_leader_that_wrote_nothing_follows_a_later_one(play: Callable[..., None]) -> None:
    """Its log ends with an epoch that no other log knows."""

    async def test(cluster: Cluster) -> None:
        await cluster.create()
        await cluster.produce(b"one")
        cluster.elect(("t", 0), leader=2)
        await cluster.told()
        cluster.elect(("t", 0), leader=3)
        await cluster.told()
        answer = await cluster.produce(b"two")
        assert answer.error_code == 0
        await cluster.until(cluster.are_equal)

    play(test)


def test_one_request_for_all_that_fell_behind(play: Callable[..., None]) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create(partitions=20)
        cluster.network.cut.add(("broker3", "broker1"))
        cluster.network.change()
        for index in range(20):
            await cluster.produce(b"one", index=index, acks=1)
        keys = [("t", index) for index in range(20)]
        await cluster.until(lambda: all(cluster.in_sync(key) == {1, 2} for key in keys))
        asked = [request for _, _, request in cluster.network.asked if isinstance(request, AlterPartitionRequest)]
        assert len(asked) <= 3
        assert sum(len(topic.partitions) for request in asked for topic in request.topics) == 20
        cluster.network.cut.clear()
        await cluster.until(lambda: all(cluster.in_sync(key) == {1, 2, 3} for key in keys))
        for key in keys:
            await cluster.until(lambda key=key: cluster.are_equal(key))

    play(test)


@pytest.mark.parametrize("error", [ErrorCode.NOT_CONTROLLER, ErrorCode.UNKNOWN_SERVER_ERROR])
def test_a_refused_request_is_asked_again(play: Callable[..., None], error: ErrorCode) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create()
        cluster.refuse += [error] * 3
        cluster.network.cut.add(("broker3", "broker1"))
        cluster.network.change()
        assert (await cluster.produce(b"one", timeout_ms=60_000)).error_code == 0
        assert cluster.in_sync() == {1, 2}
        assert not cluster.refuse

    play(test)


def test_a_leader_that_the_controller_does_not_hear_acknowledges_nothing_alone(play: Callable[..., None]) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create()
        await cluster.produce(b"one")
        cluster.network.cut.update({("broker1", CONTROLLER), (CONTROLLER, "broker1")})
        cluster.network.cut.update({("broker2", "broker1"), ("broker3", "broker1")})
        cluster.network.change()
        answer = await cluster.produce(b"two", timeout_ms=30_000, to=1)
        assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
        cluster.unregister(1)  # its session expires; it is still alive
        await cluster.told()
        cluster.network.cut -= {("broker2", "broker1"), ("broker3", "broker1")}
        assert (await cluster.produce(b"three", to=2)).error_code == 0
        cluster.network.cut.clear()
        await asyncio.sleep(5)
        cluster.nodes[1].epoch = cluster.next_broker_epoch()
        await cluster.register(1)
        await cluster.until(lambda: cluster.in_sync() == {1, 2, 3})
        await cluster.until(cluster.are_equal)
        assert values(cluster.contents(1)) == [b"one", b"three"]

    play(test)


def test_delete_records_waits_for_the_other_replicas(play: Callable[..., None]) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create()
        for each in range(5):
            await cluster.produce(b"%d" % each)
        found = await cluster.delete_records(3)
        assert (found.error_code, found.low_watermark) == (0, 3)
        assert all(node.partition().log.log_start_offset == 3 for node in cluster.nodes.values())
        cluster.network.cut.add(("broker3", "broker1"))
        cluster.network.change()
        found = await cluster.delete_records(4, timeout_ms=1000)
        assert (found.error_code, found.low_watermark) == (ErrorCode.REQUEST_TIMED_OUT, -1)
        assert len(cluster.nodes[1].partition().deletions) <= 1

    play(test)
