"""A follower whose next records are in remote storage only: it continues behind these records."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import Any

import pytest

from kbroker.log.producers.producer_snapshots import Snapshots, encode_snapshot
from kbroker.log.producers.producer_state import ProducerEntry
from kbroker.long_work import whole
from kbroker.peers.interface import PeerUnavailable
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.replica_manager import fetcher
from kbroker.replica_manager.followed import list_offsets
from kbroker.replica_manager.replicated_partition import ReplicatedPartition
from kbroker.tiers.earlier_state import EarlierState
from tests.replica_manager.cluster import Cluster
from tests.replica_manager.virtual_time import START_MS

RECORDS = 20
LOG: dict[str, Any] = {"segment_bytes": 200, "local_retention_bytes": 400, "remote_storage_enable": True}


class Store:
    """What remote storage has of a partition: all records below an offset."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []
        self.failures = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.producers = encode_snapshot([])

    async def state(self, _partition: ReplicatedPartition, epoch: int, offset: int) -> EarlierState:
        self.asked.append((epoch, offset))
        await self.may_answer.wait()
        if self.failures:
            self.failures -= 1
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "no store")
        return EarlierState(offset + 1, [(0, 0)], self.producers)


async def tier(cluster: Cluster) -> int:
    """Fill a partition of brokers 1 and 2, and remove its first segments from both disks; return the first offset."""
    await cluster.create(replicas=(1, 2))
    for number in range(RECORDS):
        await cluster.produce(b"%d" % number)
    await cluster.until(lambda: cluster.nodes[2].partition().log.high_watermark == RECORDS)
    for each in (1, 2):
        log = cluster.nodes[each].partition().log
        assert log.tier is not None
        log.tier.end_offset, log.tier.is_led = RECORDS - 2, each == 1
        whole(log.delete_old_segments(START_MS))
        assert (log.earliest_offset, log.log_end_offset) == (0, RECORDS)
    start = cluster.nodes[1].partition().log.log_start_offset
    assert 0 < start < RECORDS
    return start


def add_replica(cluster: Cluster) -> None:
    cluster.partitions["t", 0].replicas = (1, 2, 3)
    cluster.elect(("t", 0), keep=True)


def test_an_empty_follower_continues_behind_the_remote_records(play: Callable[..., None]) -> None:
    async def test(cluster: Cluster) -> None:
        store = Store()
        entry = ProducerEntry(7, 3, -1, START_MS, -1)
        store.producers, cluster.earlier_state = encode_snapshot([entry]), store.state
        start = await tier(cluster)
        add_replica(cluster)
        await cluster.until(lambda: cluster.in_sync() == {1, 2, 3})
        assert store.asked == [(0, start - 1)]
        log = cluster.nodes[3].partition().log
        assert (log.earliest_offset, log.log_start_offset, log.log_end_offset) == (0, start, RECORDS)
        assert log.leader_epochs.entries[0] == (0, 0)
        assert log.producers.entries.keys() == {7}
        assert (await cluster.produce(b"last")).error_code == 0

    play(test, log=LOG)


def test_an_empty_follower_may_begin_at_the_first_record_that_is_not_copied_yet(play: Callable[..., None]) -> None:
    async def test(cluster: Cluster) -> None:
        store = Store()
        cluster.earlier_state, cluster.skips_copied_records = store.state, True
        await tier(cluster)
        add_replica(cluster)
        await cluster.until(lambda: cluster.in_sync() == {1, 2, 3})
        assert store.asked == [(0, RECORDS - 3)]
        log = cluster.nodes[3].partition().log
        assert (log.earliest_offset, log.log_start_offset, log.log_end_offset) == (0, RECORDS - 2, RECORDS)

    play(test, log=LOG)


def test_an_empty_follower_begins_at_the_first_local_record_if_all_records_are_copied(
    play: Callable[..., None],
) -> None:
    async def test(cluster: Cluster) -> None:
        store = Store()
        cluster.earlier_state, cluster.skips_copied_records = store.state, True
        start = await tier(cluster)
        leader = cluster.nodes[1].partition().log
        assert leader.tier is not None
        leader.tier.end_offset = RECORDS
        add_replica(cluster)
        await cluster.until(lambda: cluster.in_sync() == {1, 2, 3})
        assert store.asked == [(0, start - 1)]

    play(test, log=LOG)


def test_a_store_that_fails_is_asked_again_and_delays_no_other_partition(play: Callable[..., None]) -> None:
    async def test(cluster: Cluster) -> None:
        store = Store()
        cluster.earlier_state, store.failures = store.state, 3
        start = await tier(cluster)
        await cluster.create("other", replicas=(1, 3))
        store.may_answer.clear()
        add_replica(cluster)
        await cluster.until(lambda: store.asked)
        assert (await cluster.produce(b"other", topic="other")).error_code == 0
        assert cluster.in_sync() == {1, 2}
        store.may_answer.set()
        await cluster.until(lambda: cluster.in_sync() == {1, 2, 3})
        assert store.asked == [(0, start - 1)] * 4

    play(test, log=LOG)


def test_the_failure_of_another_partition_on_the_way_to_its_offsets_stops_no_rebuild(
    play: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = []

    async def fail_once(*args: Any) -> Any:
        if not failed:
            failed.append(args)
            raise PeerUnavailable("for a moment")
        return await list_offsets(*args)

    async def test(cluster: Cluster) -> None:
        store = Store()
        cluster.earlier_state = store.state
        start = await tier(cluster)
        await cluster.create("other", replicas=(1, 2))
        for _ in range(5):
            await cluster.produce(b"other", topic="other")
        for each in (1, 2):
            cluster.nodes[each].partition("other").log.advance_log_start(3)
        monkeypatch.setattr(fetcher, "list_offsets", fail_once)
        cluster.network.cut.add(("broker3", "broker1"))  # one answer tells of both
        for key in (("t", 0), ("other", 0)):
            cluster.partitions[key].replicas = (1, 2, 3)
            cluster.elect(key, keep=True)
        await cluster.told()
        cluster.network.cut.clear()
        await cluster.until(lambda: cluster.in_sync() == {1, 2, 3} == set(cluster.partitions["other", 0].isr))
        assert failed
        assert cluster.nodes[3].partition().log.log_start_offset == start
        assert cluster.nodes[3].partition("other").log.log_start_offset == 3

    play(test, log=LOG)


def test_a_rebuild_that_a_crash_has_interrupted_begins_again(play: Callable[..., None]) -> None:
    """Otherwise the log would continue without producers and leader epochs."""

    async def test(cluster: Cluster) -> None:
        store = Store()
        cluster.earlier_state, store.failures = store.state, 1 << 30
        start = await tier(cluster)
        add_replica(cluster)
        await cluster.until(lambda: store.asked)
        log = cluster.nodes[3].partition().log
        log.truncate_fully(start)
        assert log.lacks_earlier_state
        store.failures = 0
        cluster.elect(("t", 0), keep=True)  # the follower begins again
        await cluster.until(lambda: cluster.in_sync() == {1, 2, 3})
        assert not log.lacks_earlier_state
        assert log.leader_epochs.entries[0] == (0, 0)

    play(test, log=LOG)


def test_a_rebuild_that_fails_in_between_begins_again(
    play: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = []
    put = Snapshots.put

    def fail_once(*args: Any) -> None:
        if not failed:
            failed.append(args)
            raise OSError(errno.EMFILE, "too many files")
        put(*args)

    async def test(cluster: Cluster) -> None:
        store = Store()
        store.producers = encode_snapshot([ProducerEntry(7, 3, -1, START_MS, -1)])
        cluster.earlier_state = store.state
        await tier(cluster)
        monkeypatch.setattr(Snapshots, "put", fail_once)
        add_replica(cluster)
        await cluster.until(lambda: cluster.in_sync() == {1, 2, 3})
        log = cluster.nodes[3].partition().log
        assert failed
        assert len(store.asked) == 2
        assert log.producers.entries.keys() == {7}
        assert log.leader_epochs.entries[0] == (0, 0)

    play(test, log=LOG)


@pytest.mark.parametrize("is_new", [False, True])
def test_an_empty_log_in_sync_keeps_its_place(play: Callable[..., None], is_new: bool) -> None:
    """All its records are deleted: it looks like an interrupted rebuild, and must not begin at 0 again."""

    async def test(cluster: Cluster) -> None:
        await cluster.create(replicas=(1, 2))
        for number in range(RECORDS):
            await cluster.produce(b"%d" % number)
        await cluster.until(lambda: cluster.nodes[2].partition().log.high_watermark == RECORDS)
        await cluster.delete_records(RECORDS)
        other = 3 if is_new else 2
        if is_new:
            cluster.partitions["t", 0].replicas, cluster.partitions["t", 0].isr = (1, 3), (1,)
            cluster.elect(("t", 0), keep=True)
        else:
            cluster.kill(2, clean=True)
            await cluster.told()
            await cluster.start(2)
        await cluster.until(lambda: cluster.in_sync() == {1, other})
        cluster.network.cut.add((f"broker{other}", "broker1"))
        cluster.elect(("t", 0), 1)
        await cluster.told()
        cluster.kill(1)
        await cluster.told()
        answer = await cluster.produce(b"next")
        assert (answer.error_code, answer.base_offset) == (0, RECORDS)

    play(test, log=LOG)


def test_a_partition_that_is_not_followed_any_more_is_not_changed(play: Callable[..., None]) -> None:
    async def test(cluster: Cluster) -> None:
        store = Store()
        cluster.earlier_state = store.state
        await tier(cluster)
        store.may_answer.clear()
        add_replica(cluster)
        await cluster.until(lambda: store.asked)
        log = cluster.nodes[3].partition().log
        cluster.kill(1)
        await cluster.told()
        await cluster.until(lambda: len(store.asked) == 2)
        assert (log.log_start_offset, log.log_end_offset) == (0, 0)
        store.may_answer.set()
        await cluster.until(lambda: cluster.in_sync() == {2, 3})
        assert (log.earliest_offset, log.log_end_offset) == (0, RECORDS)
        assert len(store.asked) == 2

    play(test, log=LOG)


def test_followers_have_the_first_offset_of_their_leader(play: Callable[..., None]) -> None:
    """Whatever they believed before: a new leader deletes the remote records before its first offset."""

    async def test(cluster: Cluster) -> None:
        await tier(cluster)
        log = cluster.nodes[2].partition().log
        assert log.tier is not None
        log.tier.start_offset = 2**63 - 1  # as after a leadership without remote records
        assert log.earliest_offset > 0
        await cluster.produce(b"next")
        await cluster.until(lambda: log.earliest_offset == 0)
        followers = cluster.nodes[1].partition().leadership.followers
        await cluster.until(lambda: dict(followers)[2].log_start_offset == 0)
        deleted = await cluster.delete_records(5)
        assert (deleted.error_code, deleted.low_watermark) == (0, 5)
        assert log.earliest_offset == 5

    play(test, log=LOG)
