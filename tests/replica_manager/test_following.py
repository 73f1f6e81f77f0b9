"""A follower: what it fetches, copies and truncates, and which consumers it serves."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from typing import Any

import pytest

from kbroker.log.leader_epochs import LeaderEpochCache
from kbroker.log.partition_log import PartitionLog
from kbroker.long_work import whole
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.fetch import FetchRequest
from kbroker.replica_manager import fetcher as module
from tests.replica_manager.cluster import CONFIG, Cluster, as_of, values
from tests.turns import turns


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
    """A leader sends a session a high watermark only once."""

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
        await cluster.start(1)  # which has lost its high watermark
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


@pytest.mark.parametrize("where", [(module, "list_offsets"), (PartitionLog, "truncate_fully")])
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
        assert list(turns(fetchers.resize(fetchers._count))) == []
        assert len(list(turns(fetchers.resize(fetchers._count + 1)))) == len(fetchers._where) > 0

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
