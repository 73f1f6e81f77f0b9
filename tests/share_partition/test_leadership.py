"""A share partition in use whose partition's leadership changes: it is dropped, and loaded again in the new epoch."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.share_partition.delivery import ShareDelivery
from kbroker.share_partition.persister import LATEST
from kbroker.share_partition.share_partition import Wish
from kbroker.share_partition.states import AckBatch, Span
from tests.coordination.world import ManualClock

from .memory import MemoryPersister, Settings

T = b"t" * 16
NO_LETTERS = SimpleNamespace()
"""No dead letters are written here."""


class Replica:
    """A partition without records, whose leadership the test changes."""

    def __init__(self, epoch=5):
        self.key = ("t", 0)
        self.topic_id = T
        self.leading = True
        self.leader_epoch = epoch
        self.waiters = {}
        self.log = SimpleNamespace(earliest_offset=0, log_start_offset=0, high_watermark=10, log_end_offset=12)
        self.log.readable_end = self.readable_end
        self.knows_high_watermark = True
        self.committing = None

    def led(self, _topic, _index):
        if not self.leading:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return self

    def lead(self, epoch):
        self.leading, self.leader_epoch = True, epoch
        self.poke()

    def follow(self, epoch):
        self.leading, self.leader_epoch = False, epoch
        self.poke()

    async def readable_end(self, _now_ms):
        return self.log.high_watermark

    async def committed(self, offset):
        assert offset == 12
        await self.committing

    def poke(self):
        for each in tuple(self.waiters):
            each.poke()


class Epochs(MemoryPersister):
    """A store that records the leader epochs of reads and writes."""

    def __init__(self):
        super().__init__()
        self.epochs = []

    async def read(self, group, topic_id, partition, leader_epoch):
        self.epochs.append(leader_epoch)
        return await super().read(group, topic_id, partition, leader_epoch)

    async def write(self, group, topic_id, partition, change):
        self.epochs.append(change.leader_epoch)
        return await super().write(group, topic_id, partition, change)


def in_use(scenario):
    """Run a scenario with a loaded share partition whose leader epoch is 5."""

    async def run():
        replica, store = Replica(), Epochs()
        share = ShareDelivery(replica.led, store, NO_LETTERS, Settings(), ManualClock(), 100)
        try:
            hosted = await loaded(share)
            await scenario(share, replica, store, hosted)
        finally:
            await share.close()

    asyncio.run(run())


async def loaded(share):
    hosted = share.use("g", T, "t", 0)
    for _ in range(1000):
        if hosted.state is not None:
            return hosted
        await asyncio.sleep(0)
    raise AssertionError("it is never loaded")


def test_an_epoch_that_follows_changes_nothing():
    async def scenario(share, replica, store, hosted):
        replica.lead(6)  # a follower has left
        replica.lead(6)
        replica.lead(7)
        assert share.get("g", T, 0) is hosted
        assert store.epochs == [5]

    in_use(scenario)


@pytest.mark.parametrize("how", ["follows", "follows and leads", "skips an epoch"])
def test_what_another_leader_may_have_changed_is_dropped_and_read_anew(how):
    async def scenario(share, replica, store, hosted):
        if how != "skips an epoch":
            replica.follow(6)
            assert hosted.failure == ErrorCode.NOT_LEADER_OR_FOLLOWER
            with pytest.raises(ApiError) as caught:
                share.use("g", T, "t", 0)
            assert caught.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert share.get("g", T, 0) is None
        if how != "follows":
            replica.lead(7)
            assert hosted.failure == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert await loaded(share) is not hosted
            assert store.epochs == [5, 7], "earlier leaders are fenced by the new epoch"
        assert len(share) == (how != "follows")

    in_use(scenario)


def test_a_skipped_epoch_counts_before_the_partition_tells_of_it():
    async def scenario(share, replica, _store, hosted):
        replica.leader_epoch = 8
        assert share.get("g", T, 0) is None
        assert hosted.failure == ErrorCode.NOT_LEADER_OR_FOLLOWER

    in_use(scenario)


def test_whoever_waits_for_a_write_learns_that_the_leadership_is_lost():
    async def scenario(_share, replica, store, hosted):
        state = hosted.state
        await state.acquire(Wish("m", 3), 0, [Span(0, 2)], Settings().now, 0)
        store.held = asyncio.Event()
        first = await hosted.acknowledge("m", [AckBatch(0, 0, [1])])
        await asyncio.sleep(0)
        second = await hosted.acknowledge("m", [AckBatch(1, 1, [1])])
        replica.follow(6)
        async with asyncio.timeout(10):
            assert await second == ErrorCode.NOT_LEADER_OR_FOLLOWER, "its write does not begin any more"
        held, store.held = store.held, None
        held.set()
        async with asyncio.timeout(10):
            assert await first == ErrorCode.NONE, "it was stored"
        with pytest.raises(ApiError) as caught:
            await hosted.acknowledge("m", [AckBatch(2, 2, [1])])
        assert caught.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    in_use(scenario)


@pytest.mark.parametrize("ends", ["known", "lost"])
def test_a_new_group_begins_at_the_latest_offset_only_once_a_new_leader_knows_it(ends):
    async def run():
        replica, settings = Replica(), Settings()
        settings.reset = LATEST
        replica.knows_high_watermark = False
        replica.committing = asyncio.get_running_loop().create_future()
        share = ShareDelivery(replica.led, Epochs(), NO_LETTERS, settings, ManualClock(), 100)
        try:
            hosted = share.use("g", T, "t", 0)
            for _ in range(10):
                await asyncio.sleep(0)
            assert hosted.state is None
            assert not hosted.failure
            if ends == "known":
                replica.log.high_watermark = 12
                replica.committing.set_result(None)
                assert (await loaded(share)).state.start == 12
            else:
                replica.committing.set_exception(ApiError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND))
                for _ in range(10):
                    await asyncio.sleep(0)
                assert hosted.failure == ErrorCode.NOT_LEADER_OR_FOLLOWER
        finally:
            await share.close()

    asyncio.run(run())
