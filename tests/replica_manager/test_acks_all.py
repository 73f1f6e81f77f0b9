"""Producers with acks=all: when they are answered, and with what."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from kbroker.log import leader_epochs
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from kbroker.replication.leadership import Follower
from tests.replica_manager.cluster import CONFIG, Cluster, as_of, batch, values


def test_a_leader_with_a_full_disk_has_followers_although_nothing_was_ever_written(
    play: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower that led before has an epoch without records, and the leader must be able to answer for it."""

    async def test(cluster: Cluster) -> None:
        await cluster.create()
        await cluster.until(lambda: cluster.nodes[1].partition().leading)
        write, full = leader_epochs.write_epochs, str(cluster.nodes[2].directory)

        def fail(path: str, *args: Any, **options: Any) -> None:
            if path.startswith(full):
                raise OSError(28, "full")
            write(path, *args, **options)

        with monkeypatch.context() as patch:
            patch.setattr(leader_epochs, "write_epochs", fail)
            cluster.elect(("t", 0), 2)
            await cluster.told()
            await cluster.until(lambda: cluster.nodes[2].partition().leading)
        await asyncio.sleep(10)
        assert cluster.in_sync() == {1, 2, 3}

    play(test, config=as_of(CONFIG, lag_max_ms=2000))


def test_acks_all_times_out_and_what_it_wrote_stands(play: Callable[..., None]) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create()
        cluster.network.cut.add(("broker3", "broker1"))
        cluster.network.change()
        answer = await cluster.produce(b"one", timeout_ms=500)
        assert (answer.error_code, answer.base_offset) == (ErrorCode.REQUEST_TIMED_OUT, 0)
        partition = cluster.nodes[1].partition()
        assert len(partition.acks) == 1  # until the next check, it needs no more room than a few others
        cluster.network.cut.clear()
        await cluster.until(cluster.are_equal)
        assert not partition.acks

    play(test)


def test_many_that_gave_up_take_no_room(play: Callable[..., None]) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create()
        cluster.network.cut.add(("broker3", "broker1"))
        cluster.network.change()
        for _ in range(300):
            await cluster.produce(b"one", timeout_ms=0)
        assert len(cluster.nodes[1].partition().acks) <= 200

    play(test)


def test_too_few_in_sync_refuse_before_anything_is_written(play: Callable[..., None]) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create()
        for each in (2, 3):
            cluster.kill(each)
        await cluster.told()
        answer = await cluster.produce(b"one")
        assert answer.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        leader = cluster.nodes[1].partition()
        assert leader.log.log_end_offset == 0
        assert (await cluster.produce(b"one", acks=1)).error_code == 0
        assert leader.log.high_watermark == 0, "frozen while too few are in sync"

    play(test, min_isr=2)


def test_too_few_in_sync_after_the_append(play: Callable[..., None]) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create(replicas=(1, 2, 3))
        for each in (2, 3):
            cluster.network.cut.add((f"broker{each}", "broker1"))
        cluster.network.change()
        waiting = asyncio.ensure_future(cluster.produce(b"one", timeout_ms=60_000))
        await cluster.until(lambda: cluster.in_sync() == {1})
        cluster.network.cut.clear()
        answer = await waiting
        # Both returned before enough replicas were in sync again, or one of them was.
        assert answer.error_code in (ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
        assert cluster.nodes[1].partition().log.high_watermark == 1

    play(test, min_isr=2)


def test_what_the_only_one_in_sync_has_is_copied_though_it_is_not_committed(play: Callable[..., None]) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create(replicas=(1, 2))
        for each in ("one", "two"):
            assert (await cluster.produce(each.encode())).error_code == 0
        cluster.network.cut.add(("broker2", "broker1"))
        cluster.network.change()
        assert (await cluster.produce(b"three", acks=1)).error_code == 0
        leader = cluster.nodes[1].partition()
        waiting = leader.copied(3)
        assert waiting is not None
        future = asyncio.ensure_future(waiting)
        await asyncio.sleep(CONFIG.lag_max_ms / 2000)
        assert not future.done(), "another one may be elected that has it not"
        await future
        assert cluster.in_sync() == {1}
        assert leader.log.high_watermark == 2
        assert leader.copied(3) is None
        assert leader.copied(4) is not None
        assert len(leader.copies) <= 1

    play(test, min_isr=2)


def test_a_new_leader_waits_for_nobody_where_all_is_committed(play: Callable[..., None]) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create(replicas=(1, 2, 3))
        assert (await cluster.produce(b"one")).error_code == 0
        await cluster.until(lambda: cluster.nodes[1].partition().log.high_watermark == 1)
        cluster.network.cut.update({("broker2", "broker1"), ("broker3", "broker1")})
        cluster.network.change()
        leader = cluster.nodes[1].partition()
        leader.leadership._followers = {2: Follower(), 3: Follower()}
        assert leader.copied(1) is None
        assert leader.copied(0) is None

    play(test, min_isr=2)


def test_acks_all_hears_that_leadership_went(play: Callable[..., None]) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create()
        cluster.network.cut.update({("broker3", "broker1"), ("broker2", "broker1")})
        cluster.network.change()
        waiting = asyncio.ensure_future(cluster.produce(b"one", timeout_ms=60_000))
        await asyncio.sleep(0.1)
        cluster.elect(("t", 0), leader=2)
        answer = await waiting
        assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (await cluster.produce(b"two", to=1)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        cluster.network.cut.clear()
        await cluster.produce(b"three")
        await cluster.until(cluster.are_equal)
        assert values(cluster.contents(1)) == [b"three"]

    play(test)


def test_a_duplicate_waits_for_what_it_repeats(play: Callable[..., None]) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create()
        cluster.network.cut.update({("broker3", "broker1"), ("broker2", "broker1")})
        cluster.network.change()
        records = batch(b"one", producer_id=7, producer_epoch=0, base_sequence=0)
        first = await cluster.produce(records=records, timeout_ms=100)
        assert first.error_code == ErrorCode.REQUEST_TIMED_OUT
        again = asyncio.ensure_future(cluster.produce(records=records, timeout_ms=60_000))
        await asyncio.sleep(0.5)
        assert not again.done()
        cluster.network.cut.clear()
        answer = await again
        assert (answer.error_code, answer.base_offset) == (0, 0)
        assert cluster.nodes[1].partition().log.log_end_offset == 1

    play(test)


def test_the_only_replica_is_answered_at_once(play: Callable[..., None]) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create(replicas=(2,))
        loop = asyncio.get_running_loop()
        before = loop.time()
        answer = await cluster.produce(b"one")
        assert answer.error_code == 0
        assert loop.time() == before
        assert cluster.nodes[2].partition().alone

    play(test)


@pytest.mark.long
def test_a_request_of_many_partitions_waits_for_all_of_them_at_once(play: Callable[..., None]) -> None:
    async def test(cluster: Cluster) -> None:
        count = 100
        await cluster.create(partitions=count)
        for each in ("broker2", "broker3"):  # a round trip takes 10 ms
            cluster.network.delay_s[each, "broker1"] = 0.01
        data = [PartitionProduceData(index, batch(b"one")) for index in range(count)]
        request = ProduceRequest(None, -1, 10_000, [TopicProduceData("t", partition_data=data)])
        loop = asyncio.get_running_loop()
        before = loop.time()
        answer = await cluster.nodes[1].serve(request, 9, ProduceResponse)
        assert loop.time() - before < 0.1
        found = [each for topic in answer.responses for each in topic.partition_responses]
        assert [(each.index, each.error_code, each.base_offset) for each in found] == [(i, 0, 0) for i in range(count)]
        assert all(cluster.nodes[1].partition("t", index).log.high_watermark == 1 for index in range(count))
        cluster.network.cut.add(("broker3", "broker1"))
        cluster.network.change()
        request.timeout_ms = 500
        answer = await cluster.nodes[1].serve(request, 9, ProduceResponse)
        found = [each for topic in answer.responses for each in topic.partition_responses]
        assert {each.error_code for each in found} == {ErrorCode.REQUEST_TIMED_OUT}

    play(test)
