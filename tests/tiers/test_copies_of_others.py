"""Rounds where other brokers have copied too, have led before, or know more: gaps, replaced copies, lost lineages."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

from kbroker.tiers import copying
from kbroker.tiers.followed_metadata import RemoteMetadata
from kbroker.tiers.tiered_partition import delete_segment
from tests.log.builders import HOUR, NOW
from tests.tiers.records import MemorySource, Topic
from tests.tiers.world import SIZE, TIERED, World


def test_a_follower_learns_what_is_copied_and_begins_no_epoch(tmp_path: Path) -> None:
    """A log that lacks the remote records does not have their leader epochs: it has not fetched anything yet."""

    async def scenario() -> None:
        world = World(tmp_path)
        await world.load()
        for epoch in range(6):
            world.append(2, epoch)
        world.partition.leading = False
        await world.round()
        assert (world.objects, world.tier.end_offset) == ([], 0)
        world.partition.leading = True
        assert world.tiered.is_due
        await world.round()
        world.partition.leading = False
        world.tier.end_offset = -1
        await world.round()
        assert (world.tier.end_offset, world.tier.start_offset, world.tier.is_led) == (10, 0, False)
        world.retain()
        assert (world.log.earliest_offset, world.log.log_start_offset) == (0, 8)
        world.log.truncate_fully(0)
        await world.round()
        assert (world.log.leader_epochs.entries, world.tier.end_offset) == ([], 0)
        await world.close()

    asyncio.run(scenario())


def test_a_gap_between_copies_keeps_the_records_on_the_disk(told: Any) -> None:
    async def story(world: World) -> None:
        world.append(12)
        await world.round()
        assert world.tier.end_offset == 10
        gone = world.segments.find(0, 4)
        assert gone is not None
        await delete_segment(world.shared, world.tiered.owner, gone)
        world.shared.settings = replace(world.shared.settings, copy_rate=1)
        world.shared.copy_after = 1e18  # nothing is copied for now
        await world.round()
        assert world.tier.end_offset == 4
        world.retain()
        assert world.log.log_start_offset == 4

    told(story)


def test_a_gap_of_records_without_a_copy_begins_the_log_behind_it(told: Any) -> None:
    """Without copies, local retention removes records that no copy has. A follower leaves the start to its leader."""

    async def story(world: World) -> None:
        world.append(12)
        await world.round()
        world.log.config = replace(TIERED, remote_log_copy_disable=True)
        world.tier.is_led = False
        world.append(12)
        world.retain()
        assert (world.log.earliest_offset, world.log.log_start_offset, world.tier.end_offset) == (0, 20, 10)
        await world.round()
        assert (world.log.earliest_offset, world.objects) == (20, [])

    told(story)


def test_copies_that_are_replaced_do_not_count_for_retention(told: Any) -> None:
    """After a gap, copies come a second time. A round must not delete the oldest records for that."""

    async def story(world: World) -> None:
        world.log.config = replace(TIERED, local_retention_bytes=-2, retention_bytes=SIZE * 14, remote_copy_lag_bytes=0)
        world.append(12)
        await world.round()
        first = world.segments.find(0, 0)
        assert first is not None
        await delete_segment(world.shared, world.tiered.owner, first)
        await world.round()
        assert (world.log.earliest_offset, world.objects) == (0, [0, 2, 4, 6, 8])
        await world.round()
        assert (world.log.earliest_offset, world.objects) == (0, [0, 2, 4, 6, 8])

    told(story)


def test_the_expiry_of_a_lost_lineage_deletes_no_newer_record(told: Any) -> None:
    """The first segment has two records of epoch 0, and the log has lost the second one of them."""

    async def story(world: World) -> None:
        world.log.config = replace(TIERED, retention_ms=HOUR * 10)
        world.append(4, timestamp=NOW - HOUR * 9)
        await world.round()
        world.log.truncate_to(1)
        world.append(9, epoch=1)
        for _ in range(2):
            await world.round()
        world.clock.ms = NOW + 2 * HOUR
        await world.round()
        assert world.log.earliest_offset == 1

    told(story)


def test_after_a_truncation_new_records_do_not_count_as_copied(told: Any) -> None:
    async def story(world: World) -> None:
        world.append(11)
        await world.round()
        assert world.tier.end_offset == 10
        world.log.truncate_to(3)
        world.append(9, epoch=1)
        world.retain()
        epoch_of = world.log.leader_epochs.epoch_for_offset
        gone = range(world.log.log_start_offset)
        assert all(world.segments.find(epoch_of(each), each) is not None for each in gone)

    told(story)


def test_a_shorter_copy_with_the_same_start_replaces_no_longer_one(told: Any) -> None:
    """A new leader may have other segments. Followers have removed what the longer copy has."""

    async def story(world: World) -> None:
        world.append(8)
        await world.round()
        assert world.tier.end_offset == 6
        longer = world.segments.find(0, 2)
        assert longer is not None
        await copying.copy_segment(world.shared, world.tiered.owner, world.log, world.log.segments[1], 3)
        assert world.segments.find(0, 3) == longer
        await world.round()
        assert world.objects == [0, 2, 4]
        assert world.segments.find(0, 3) == longer

    told(story)


def test_earlier_records_are_not_lost_because_nobody_names_them_for_a_moment(told: Any) -> None:
    """Remote segments before the log's start are deleted: a wrong start would delete all of them."""

    async def story(world: World) -> None:
        world.append(12)
        await world.round()
        world.retain()
        known = dict(world.segments._packed)
        assert (world.log.earliest_offset, world.log.log_start_offset) == (0, 8)
        metadata, world.shared.metadata = (
            world.shared.metadata, RemoteMetadata(1, MemorySource(Topic()), world.clock),
        )  # fmt: skip
        await world.load()
        for _ in range(3):
            world.clock.ms += 10_000
            await world.tiered.round()
            assert "no remote segment is known" in world.tiered.error
            assert world.log.earliest_offset == 0
        await world.shared.metadata.close()
        world.shared.metadata = metadata
        await world.round()
        assert dict(world.segments._packed) == known
        assert world.log.earliest_offset == 0

    told(story)
