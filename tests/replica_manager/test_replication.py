"""Leaders and followers over real logs: what is acknowledged, who is in sync, and what is left when brokers go."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from kbroker.divided import whole
from kbroker.log import leader_epochs
from kbroker.log.leader_epochs import LeaderEpochCache
from kbroker.log.partition_log import PartitionLog
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.alter_partition import AlterPartitionRequest
from kbroker.protocol.messages.fetch import FetchRequest
from kbroker.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from kbroker.protocol.records import iter_batches, read_records
from kbroker.replica_manager.fetcher import Fetcher
from kbroker.replication.leadership import Follower
from tests.replica_manager.cluster import CONFIG, CONTROLLER, Cluster, as_of, batch
from tests.replica_manager.virtual_time import run

Test = Callable[[Cluster], Coroutine[Any, Any, None]]


@pytest.fixture
def play(tmp_path: Path) -> Callable[..., None]:
    """Run a test within a cluster that is there."""

    def play(test: Test, **settings: Any) -> None:
        async def main() -> None:
            async with Cluster(tmp_path, **settings) as cluster:
                await test(cluster)

        run(main())

    return play


def values(data: bytes) -> list[bytes | None]:
    found = []
    for position, header in iter_batches(data):
        found += [record.value for record in read_records(data[position : position + header.size], max_bytes=1 << 20)]
    return found


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
        cluster.network.cut.add((node.host, "broker1"))  # nobody but the leader notices
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
    """Its log has an epoch at its end that no other log knows."""

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


# --- acks=all


def test_a_leader_with_a_full_disk_has_followers_although_nothing_was_ever_written(
    play: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower that led before has an epoch without records, which the leader has to know how to answer."""

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
        assert len(partition.acks) == 1  # it takes no more room than a few others until the next look
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
        # Both are back before enough were in sync again, or one of them was.
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


def test_a_request_of_many_partitions_waits_for_all_of_them_at_once(play: Callable[..., None]) -> None:
    async def test(cluster: Cluster) -> None:
        count = 100
        await cluster.create(partitions=count)
        for each in ("broker2", "broker3"):  # a way there and back takes 10 ms
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


# --- in-sync replicas


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
        cluster.unregister(1)  # its session expires; it lives on
        await cluster.told()
        cluster.network.cut -= {("broker2", "broker1"), ("broker3", "broker1")}
        assert (await cluster.produce(b"three", to=2)).error_code == 0
        cluster.network.cut.clear()
        await asyncio.sleep(5)
        cluster.nodes[1].broker_epoch = cluster.next_broker_epoch()
        await cluster.register(1)
        await cluster.until(lambda: cluster.in_sync() == {1, 2, 3})
        await cluster.until(cluster.are_equal)
        assert values(cluster.contents(1)) == [b"one", b"three"]

    play(test)


# --- as follower


def test_fetches_of_an_idle_session_name_no_partitions(play: Callable[..., None]) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create(partitions=10)
        await asyncio.sleep(5)
        fetches = [(s, r) for s, t, r in cluster.network.asked if isinstance(r, FetchRequest) and t == "broker1"]
        last = [request for source, request in fetches if source == "broker2"][-3:]
        assert all(request.session_id and not request.topics for request in last)
        assert last[-1].replica_state.replica_id == 2
        assert len(fetches) < 2 * 5 * 4, "two a second of each follower, and a few at first"

    play(test)


def test_a_follower_with_an_empty_disk_copies_all_and_begins_where_the_leaders_log_does(
    play: Callable[..., None],
) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create(replicas=(1, 2))
        for number in range(20):
            await cluster.produce(*(b"%d-%d" % (number, each) for each in range(3)))
        deleted = await cluster.delete_records(31)  # within a batch
        assert (deleted.error_code, deleted.low_watermark) == (0, 31)
        cluster.partitions["t", 0].replicas = (1, 2, 3)
        cluster.elect(("t", 0), keep=True)
        await cluster.until(lambda: cluster.in_sync() == {1, 2, 3})
        await cluster.until(lambda: cluster.nodes[3].partition().log.high_watermark == 60)
        log = cluster.nodes[3].partition().log
        assert (log.log_start_offset, log.log_end_offset) == (31, 60)
        data = await cluster.fetch(31, to=3)
        assert values(bytes(data.records))[0] == b"10-0"
        assert (await cluster.produce(b"last")).error_code == 0

    play(test)


def test_a_follower_learns_of_the_high_watermark_that_came_with_the_order_to_cut_its_log(
    play: Callable[..., None],
) -> None:
    """A leader tells a session of a high watermark once."""

    async def test(cluster: Cluster) -> None:
        await cluster.create()
        await cluster.produce(b"one")
        await cluster.until(cluster.are_equal)
        cluster.network.cut.update({("broker3", "broker1"), ("broker2", "broker1")})
        cluster.network.change()
        await cluster.produce(b"lost", acks=1)
        cluster.kill(1)
        await cluster.told()
        cluster.network.cut.clear()
        await cluster.start(1)  # which has forgotten its high watermark
        await cluster.until(lambda: cluster.in_sync() == {1, 2, 3})
        await cluster.until(cluster.are_equal)
        assert cluster.nodes[1].partition().log.high_watermark == 1

    play(test)


def test_unclean_election_cuts_the_others_to_the_new_leaders_log(play: Callable[..., None]) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create()
        await cluster.produce(b"one")
        cluster.kill(3)
        await cluster.told()
        for number in range(5):
            await cluster.produce(b"%d" % number)
        cluster.kill(2)
        cluster.kill(1)
        await cluster.start(3)
        await cluster.told()
        assert cluster.partitions["t", 0].leader == 3
        await cluster.produce(b"two")
        await cluster.start(1)
        await cluster.start(2)
        await cluster.until(lambda: cluster.in_sync() == {1, 2, 3})
        await cluster.until(cluster.are_equal)
        assert values(cluster.contents(2)) == [b"one", b"two"]

    play(test, unclean=True)


def test_a_leader_that_froze_and_leads_again_is_fetched_from_at_once(play: Callable[..., None]) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create()
        await cluster.produce(b"one")
        serve = cluster.nodes[1].serve
        frozen = True

        async def freezing(request: Any, version: int, answer: type[Any]) -> Any:
            if frozen and isinstance(request, FetchRequest):
                await asyncio.sleep(3600)
            return await serve(request, version, answer)

        cluster.network.served["broker1"] = freezing
        cluster.network.change()
        await asyncio.sleep(1)
        cluster.elect(("t", 0), leader=2)
        await cluster.told()
        frozen = False
        cluster.elect(("t", 0), leader=1)
        await cluster.told()
        before = asyncio.get_running_loop().time()
        assert (await cluster.produce(b"two", timeout_ms=60_000)).error_code == 0
        assert asyncio.get_running_loop().time() - before < 1
        assert cluster.in_sync() == {1, 2, 3}

    play(test)


def test_a_damaged_answer_is_not_appended_and_fetched_again(play: Callable[..., None]) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create()
        serve = cluster.nodes[1].serve
        damaged = 0

        async def damaging(request: Any, version: int, answer: type[Any]) -> Any:
            nonlocal damaged
            found = await serve(request, version, answer)
            if isinstance(request, FetchRequest) and request.replica_state is not None:
                for topic in found.responses:
                    for data in topic.partitions:
                        if data.records and damaged < 3:
                            damaged += 1
                            data.records = bytes(data.records[:-1]) + b"?"
            return found

        cluster.network.served["broker1"] = damaging
        cluster.network.change()
        answer = await cluster.produce(b"one", timeout_ms=60_000)
        assert answer.error_code == 0
        assert damaged == 3
        await cluster.until(cluster.are_equal)

    play(test)


def test_one_partition_that_fails_stops_no_other(play: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create(partitions=3)
        broken = cluster.nodes[3].partition("t", 1).log
        seen = []

        def fails(*_: Any) -> None:
            seen.append(1)
            raise RuntimeError("a fault")

        monkeypatch.setattr(type(broken), "append_as_follower", _only(broken, fails, type(broken).append_as_follower))
        answers = [
            await cluster.produce(b"one", index=index, timeout_ms=20_000, acks=-1 if index != 1 else 1)
            for index in range(3)
        ]
        assert [answer.error_code for answer in answers] == [0, 0, 0]
        assert len(seen) == 1, "not tried for ever"
        await cluster.until(lambda: cluster.in_sync(("t", 1)) == {1, 2})
        assert cluster.in_sync(("t", 0)) == {1, 2, 3}

    play(test)


def _only(broken: object, fails: Callable[..., None], else_: Callable[..., None]) -> Callable[..., None]:
    return lambda self, *args: fails(*args) if self is broken else else_(self, *args)


def test_a_replica_whose_own_log_cannot_be_looked_at_is_copied_once_it_can(
    play: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, failed = PartitionLog.proven_epochs, []

    def proven_epochs(log: PartitionLog) -> LeaderEpochCache:
        if f"{os.sep}2{os.sep}" in log.directory and len(failed) < 3:
            failed.append(log)
            raise OSError(errno.EMFILE, "Too many open files")
        return plain(log)

    async def test(cluster: Cluster) -> None:
        monkeypatch.setattr(PartitionLog, "proven_epochs", proven_epochs)
        await cluster.create()
        assert (await cluster.produce(b"one")).error_code == 0
        await cluster.until(lambda: len(failed) == 3)
        await cluster.until(cluster.are_equal)
        await cluster.until(lambda: cluster.in_sync() == {1, 2, 3})
        assert values(cluster.contents(2)) == [b"one"]

    play(test)


@pytest.mark.parametrize("where", [(Fetcher, "_list_offsets"), (PartitionLog, "truncate_fully")])
def test_what_fails_on_the_way_to_the_leaders_offsets_is_tried_again(
    play: Callable[..., None], monkeypatch: pytest.MonkeyPatch, where: tuple[type, str]
) -> None:
    failed = []

    async def test(cluster: Cluster) -> None:
        await cluster.create(replicas=(1, 2))
        for each in range(5):
            await cluster.produce(b"%d" % each)
        await cluster.delete_records(3)
        plain = getattr(*where)

        def fail_once(*args: Any) -> Any:
            if not failed:
                failed.append(args)
                raise ValueError("what nobody has thought of")
            return plain(*args)

        monkeypatch.setattr(*where, fail_once)
        cluster.partitions["t", 0].replicas = (1, 2, 3)
        cluster.elect(("t", 0), keep=True)
        await cluster.until(lambda: cluster.in_sync() == {1, 2, 3})
        assert failed
        assert cluster.nodes[3].partition().log.log_start_offset == 3

    play(test)


def test_partitions_go_on_when_there_are_more_fetchers_and_fewer(play: Callable[..., None]) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create(partitions=8)
        fetchers = cluster.nodes[2].manager._fetchers
        keys = [("t", index) for index in range(8)]
        for number, count in enumerate((3, 2, 1)):
            cluster.nodes[2].manager.set_fetchers(count)
            for _, index in keys:
                assert (await cluster.produce(b"%d" % number, index=index)).error_code == 0
            await cluster.until(lambda: all(map(cluster.are_equal, keys)))
            await cluster.until(lambda count=count: {each for _, each in fetchers._fetchers} == set(range(count)))
            assert all(fetcher.number == fetchers._number(key) for key, (fetcher, _) in fetchers._where.items())
        assert cluster.granted == [], "nobody was out of sync over it"

    play(test)


def test_what_could_not_be_copied_waits_for_the_controller_also_with_more_fetchers(
    play: Callable[..., None],
) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create(partitions=8)
        keys = [("t", index) for index in range(8)]
        await cluster.until(lambda: all(map(cluster.are_equal, keys)))
        fetchers = cluster.nodes[2].manager._fetchers
        failed = dict(list(fetchers._where.items())[::2])
        for fetcher, followed in failed.values():
            fetcher._fail(followed)
        before = dict(fetchers._where)
        whole(fetchers.resize(3))
        assert {key: fetchers._where[key] for key in failed} == failed
        assert any(fetchers._where[key] is not place for key, place in before.items())

    play(test)


def test_the_same_number_of_fetchers_is_no_work(play: Callable[..., None]) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create(partitions=8)
        fetchers = cluster.nodes[2].manager._fetchers
        assert list(fetchers.resize(fetchers._count)) == []
        assert len(list(fetchers.resize(fetchers._count + 1))) == len(fetchers._where) > 0

    play(test)


def test_a_follower_serves_consumers_that_may_read_from_it(play: Callable[..., None]) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create()
        await cluster.produce(b"one")
        waiting = asyncio.ensure_future(cluster.fetch(1, to=3, wait_ms=5000))
        await asyncio.sleep(0.01)
        await cluster.produce(b"two")
        assert values(bytes((await waiting).records)) == [b"two"]
        assert (await cluster.fetch(to=3, epoch=1)).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        names = {"version": 10, "to": 3}
        assert (await cluster.fetch(**names)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    play(test)


def test_consumers_are_sent_to_the_replica_of_their_rack(play: Callable[..., None]) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create()
        await cluster.produce(b"one")
        await cluster.until(cluster.are_equal)
        sent = await cluster.fetch(rack_id="rack3", wait_ms=10_000)
        assert (sent.error_code, sent.preferred_read_replica) == (0, 3)
        assert not sent.records
        assert values(bytes((await cluster.fetch(rack_id="rack3", to=3)).records)) == [b"one"]
        for rack in ("rack1", "rack9", ""):
            found = await cluster.fetch(rack_id=rack)
            assert found.preferred_read_replica == -1
            assert found.records
        cluster.kill(3)
        await cluster.told()
        assert (await cluster.fetch(rack_id="rack3")).records

    play(test, config=as_of(CONFIG, rack_aware=True))


@pytest.mark.parametrize("side", ["leader", "follower"])
def test_a_throttled_replica_is_copied_no_faster_than_it_may_be_until_it_is_in_sync(
    play: Callable[..., None], side: str
) -> None:
    async def test(cluster: Cluster) -> None:
        throttled = "*" if side == "leader" else "0:3"
        cluster.topic_configs["t"] = {f"{side}.replication.throttled.replicas": throttled}
        await cluster.create(replicas=(1, 2))
        for _ in range(100):
            await cluster.produce(bytes(10_000))
        for node in cluster.nodes.values():
            node.manager.set_rates(100_000, 100_000)
        loop = asyncio.get_running_loop()
        before = loop.time()
        cluster.partitions["t", 0].replicas = (1, 2, 3)
        cluster.elect(("t", 0), keep=True)
        await cluster.until(lambda: cluster.in_sync() == {1, 2, 3})
        assert 5 <= loop.time() - before <= 20
        answer = await cluster.produce(bytes(500_000), bytes(500_000))
        assert answer.error_code == 0
        before = loop.time()
        assert (await cluster.produce(bytes(500_000), bytes(500_000))).error_code == 0
        assert loop.time() - before < 1

    play(test, config=as_of(CONFIG, fetch_max_bytes=30_000))


# --- deleted records


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
