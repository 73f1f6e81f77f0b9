"""The rounds of a partition with remote storage, without a broker: what is copied, learnt, and deleted."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kbroker.log.checkpoints import LEADER_EPOCHS
from kbroker.log.segment.segment import Segment
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.remote.segment import DeleteState, SegmentState
from kbroker.tiers import copying
from kbroker.tiers.tiered_partition import delete_segment
from tests.log.builders import HOUR, NOW
from tests.tiers.world import SIZE, TIERED, World

OFF = replace(TIERED, remote_storage_enable=False, remote_log_delete_on_disable=True, local_retention_bytes=-2)
LATER = replace(TIERED, remote_copy_lag_ms=3_600_000, remote_copy_lag_bytes=1 << 30)
"""Copies nothing for now."""


def test_closed_segments_are_copied_and_then_leave_the_disk(told: Any) -> None:
    async def story(world: World) -> None:
        world.append(12)
        await world.round()
        assert (world.objects, world.tier.end_offset) == ([0, 2, 4, 6, 8], 10)
        world.retain()
        assert (world.log.earliest_offset, world.log.log_start_offset) == (0, 8)

    told(story)


def test_what_a_loss_of_power_could_replace_is_not_copied(told: Any) -> None:
    async def story(world: World) -> None:
        world.append(5, flush=False)
        await world.round()
        assert (world.objects, world.tier.end_offset) == ([], 0)
        world.log.flush()
        await world.round()
        assert (world.objects, world.tier.end_offset) == ([0, 2], 4)

    told(story)


def test_no_object_is_without_a_record_on_the_disk(told: Any) -> None:
    """Neither before it is sent nor after it is deleted."""

    async def story(world: World) -> None:
        world.append(5)
        world.fails = OSError(errno.EIO, "no disk")
        await world.tiered.round()
        assert "no disk" in world.tiered.error
        assert world.objects == []
        await world.round()
        assert world.objects == [0, 2]
        world.log.advance_log_start(4)
        world.fails = OSError(errno.EIO, "no disk")
        await world.tiered.round()
        assert "no disk" in world.tiered.error
        assert world.objects == [0, 2]
        await world.round()
        assert world.objects == []

    told(story)


def test_a_limited_rate_does_not_wait_for_the_next_interval(told: Any) -> None:
    async def story(world: World) -> None:
        world.shared.settings = replace(world.shared.settings, copy_rate=2 * SIZE // 5, interval_ms=30_000)
        world.append(9)
        for copied in range(1, 4):
            await world.round()
            assert len(world.objects) == copied
            assert not world.tiered.is_due
            world.clock.ms += 6_000
            assert world.tiered.is_due

    told(story)


def test_a_copy_that_needs_its_time_does_not_reduce_the_rate(told: Any) -> None:
    async def story(world: World) -> None:
        world.shared.settings = replace(world.shared.settings, copy_rate=2 * SIZE, interval_ms=30_000)
        put = world.shared.store.put

        async def slow_put(*args: Any, **named: Any) -> None:
            world.clock.ms += 900
            await put(*args, **named)

        world.shared.store.put = slow_put  # type: ignore[method-assign]
        world.append(9)
        await world.round()
        assert len(world.objects) == 4

    told(story)


def test_a_round_copies_all_that_is_due(told: Any) -> None:
    async def story(world: World) -> None:
        world.append(101)
        await world.tiered.round()
        assert len(world.objects) == 50

    told(story)


def test_a_round_that_is_wanted_during_another_one_follows_it(told: Any) -> None:
    async def story(world: World) -> None:
        world.shared.settings = replace(world.shared.settings, interval_ms=30_000)
        world.append(5)
        running = asyncio.ensure_future(world.tiered.round())
        await asyncio.sleep(0)
        world.tiered.retry()
        await running
        assert world.tiered.is_due
        await world.round()
        assert not world.tiered.is_due

    told(story)


def test_without_a_cleanup_policy_copied_segments_leave_the_disk(told: Any) -> None:
    async def story(world: World) -> None:
        world.log.config = replace(TIERED, cleanup_policy=())
        world.append(12)
        await world.round()
        world.retain()
        assert (world.log.earliest_offset, world.log.log_start_offset) == (0, 8)

    told(story)


def test_a_segment_does_not_leave_before_the_record_of_its_copy_is_on_the_disk(told: Any) -> None:
    async def story(world: World) -> None:
        world.append(5)
        world.fails, world.succeed = OSError(errno.EIO, "no disk"), 1
        await world.tiered.round()
        assert "no disk" in world.tiered.error
        assert (world.objects, world.tier.end_offset) == ([0], 0)
        world.fails = OSError(errno.EIO, "no disk")
        await world.tiered.round()
        assert "no disk" in world.tiered.error
        assert (world.objects, world.tier.end_offset) == ([0], 0), "what was copied counts after a sync only"
        await world.round()
        assert (world.objects, world.tier.end_offset) == ([0, 2], 4)
        synced = len(world.synced)
        await world.round()
        assert len(world.synced) == synced, "nothing is new"

    told(story)


def test_after_a_switch_off_and_on_what_was_deleted_does_not_count_as_copied(told: Any) -> None:
    async def story(world: World) -> None:
        world.append(12)
        await world.round()
        world.retain()
        world.log.update_config(OFF)
        await world.round()
        assert (world.objects, len(world.segments), world.log.tier) == ([], 0, None)
        world.log.update_config(LATER)
        await world.round()
        assert world.tier.end_offset == 0
        world.retain()
        assert (world.log.earliest_offset, world.log.log_start_offset) == (8, 8), "nothing is lost"
        world.log.update_config(TIERED)
        await world.round()
        assert (world.objects, world.tier.end_offset) == ([8], 10)

    told(story)


def test_after_a_switch_off_and_on_only_new_copies_count(told: Any) -> None:
    async def story(world: World) -> None:
        world.append(13)
        world.log.update_config(replace(TIERED, local_retention_bytes=SIZE * 8, remote_copy_lag_bytes=0))
        await world.round()
        world.retain()
        assert (world.tier.end_offset, world.log.log_start_offset) == (12, 4)
        world.log.update_config(OFF)
        await world.round()
        world.log.update_config(replace(LATER, remote_copy_lag_bytes=SIZE * 6))
        for _ in range(2):
            await world.round()
            assert (world.objects, world.tier.end_offset) == ([4], 6)
        world.retain()
        assert world.log.log_start_offset == 6

    told(story)


def test_a_switch_on_during_the_deletion_leaves_no_gap(told: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        world.append(16)
        await world.round()
        world.log.update_config(replace(TIERED, local_retention_bytes=SIZE * 8))
        world.retain()
        assert (world.log.earliest_offset, world.log.log_start_offset) == (0, 8)
        world.log.update_config(OFF)
        deleted = []

        async def delete(*args: Any) -> None:
            await delete_segment(*args)
            deleted.append(args)
            if len(deleted) == 5:
                world.log.update_config(TIERED)

        monkeypatch.setattr("kbroker.tiers.tiered_partition.delete_segment", delete)
        await world.round()
        monkeypatch.undo()
        assert world.objects == [10, 12]
        world.log.update_config(TIERED)
        world.retain()
        assert (world.log.earliest_offset, world.log.log_start_offset) == (8, 8)
        await world.round()
        assert world.tier.end_offset == 14
        await world.round()
        assert world.objects == [8, 10, 12], "each of them once"
        world.retain()
        assert (world.log.earliest_offset, world.log.log_start_offset) == (8, 12)

    told(story)


def test_records_that_were_given_up_do_not_come_back(told: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        world.append(12)
        await world.round()
        world.retain()
        world.log.advance_log_start(9)
        world.log.update_config(OFF)

        async def delete(*_args: Any) -> None:
            world.log.update_config(TIERED)

        monkeypatch.setattr("kbroker.tiers.tiered_partition.delete_segment", delete)
        await world.round()
        monkeypatch.undo()
        assert (world.objects, world.log.earliest_offset) == ([0, 2, 4, 6, 8], 9)
        await world.round()
        assert (world.objects, world.log.earliest_offset) == ([8], 9)

    told(story)


def test_lost_leader_epochs_come_from_the_remote_segments(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        await world.load()
        for epoch in range(6):
            world.append(2, epoch)
        await world.round()
        world.retain()
        entries = world.log.leader_epochs.entries
        assert len(entries) == 6
        metadata = world.shared.metadata
        world.log.close()
        (tmp_path / "topic-0" / LEADER_EPOCHS).write_text("0\n0\n")
        world = World(tmp_path)
        world.shared.metadata = metadata
        assert (world.log.proven_epochs().entries, world.log.log_start_offset) == (entries[4:], 8)
        await world.round()
        assert world.log.leader_epochs.entries == entries
        assert world.reader.find(world.tiered.owner, world.log, 5).start_offset == 4
        await world.close()

    asyncio.run(scenario())


def test_wrong_leader_epochs_delete_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        await world.load()
        for epoch in range(6):
            world.append(2, epoch)
        await world.round()
        world.retain()
        metadata = world.shared.metadata
        world.log.close()
        for wrong in ("3\n3 0\n4 8\n5 10\n", "3\n2 0\n4 6\n5 10\n", "2\n4 0\n5 10\n"):
            (tmp_path / "topic-0" / LEADER_EPOCHS).write_text(f"0\n{wrong}")
            world = World(tmp_path)
            world.shared.metadata = metadata
            for _ in range(3):
                await world.round()
            assert sorted(set(world.objects)) == [0, 2, 4, 6, 8], wrong
            assert world.log.earliest_offset == 0, wrong
            world.log.close()
        await world.shared.store.close()

    asyncio.run(scenario())


def test_a_copy_that_nobody_wants_any_more_leaves_no_object(told: Any) -> None:
    async def story(world: World) -> None:
        world.append(5)
        owner, metadata = world.tiered.owner, world.shared.metadata
        put = world.shared.store.put

        async def put_late(*args: Any, **more: Any) -> None:
            await put(*args, **more)
            for state in (DeleteState.DELETE_PARTITION_MARKED, DeleteState.DELETE_PARTITION_STARTED):
                assert await metadata.decide(owner, lambda shard, now, to=state: shard.advance_deletion(owner, to, now))  # type: ignore[misc]

        world.shared.store.put = put_late  # type: ignore[method-assign]
        assert not await copying.copy_segment(world.shared, owner, world.log, world.log.segments[0], 2)
        assert world.objects == []

    told(story)


def test_a_refused_deletion_keeps_the_object(told: Any) -> None:
    async def story(world: World) -> None:
        world.append(5)
        await world.round()
        (segment, _) = world.segments.all()
        await delete_segment(world.shared, world.tiered.owner, replace(segment, id=b"?" * 16))
        assert world.shared.counts.deleted == 0
        assert world.objects == [0, 2]

    told(story)


def test_what_a_failure_has_left_is_deleted(told: Any) -> None:
    async def story(world: World) -> None:
        world.append(5)
        put, calls = world.shared.store.put, []

        async def put_badly(*args: Any, **more: Any) -> None:
            calls.append(args)
            await put(*args, **more)
            if len(calls) == 1:
                raise OSError("cut off")

        world.shared.store.put = put_badly  # type: ignore[method-assign]
        await world.tiered.round()
        assert "cut off" in world.tiered.error
        await world.round()
        assert world.objects == [0, 2]
        assert len(world.segments) == 2

    told(story)


def test_a_replaced_copy_is_deleted(told: Any) -> None:
    async def story(world: World) -> None:
        world.append(5)
        await world.round()
        (first, _) = world.segments.all()
        assert await copying.copy_segment(world.shared, world.tiered.owner, world.log, world.log.segments[0], 2)
        assert world.objects == [0, 0, 2]
        await world.round()
        assert world.objects == [0, 2]
        assert world.segments.get(first.id) is None
        assert world.reader.find(world.tiered.owner, world.log, 0).state is SegmentState.COPY_SEGMENT_FINISHED

    told(story)


def test_a_log_that_lost_its_copied_end_goes_on(told: Any) -> None:
    async def story(world: World) -> None:
        world.append(5, 0)
        world.append(4, 3)
        await world.round()
        assert world.tier.end_offset == 8
        world.log.truncate_to(5)
        world.append(6, 4)
        await world.round()
        assert world.tier.end_offset == 10
        assert [(e.start_offset, e.epochs) for e in map(found(world), range(0, 10, 2))] == [
            (0, ((0, 0),)),
            (2, ((0, 2),)),
            (4, ((0, 4), (4, 5))),
            (6, ((4, 6),)),
            (8, ((4, 8),)),
        ]
        world.retain()
        world.log.advance_log_start(5)
        for _ in range(2):
            await world.round()
        assert world.log.earliest_offset == 5
        assert world.objects == [4, 4, 6, 6, 8], "the lost epoch's segment may not delete what is newer"
        world.log.advance_log_start(9)
        for _ in range(2):
            await world.round()
        assert world.objects == [8]

    def found(world: World) -> Callable[[int], Any]:
        return lambda offset: world.reader.find(world.tiered.owner, world.log, offset)

    told(story)


def test_retention_does_not_count_from_a_lost_end(told: Any) -> None:
    async def story(world: World) -> None:
        world.append(4, 0, NOW - 2 * HOUR)
        world.append(5, 3, NOW - 2 * HOUR)
        await world.round()
        assert world.tier.end_offset == 8
        world.log.truncate_to(4)
        world.append(8, 4)
        await world.round()
        world.log.update_config(replace(TIERED, retention_ms=HOUR))
        await world.round()
        assert world.log.earliest_offset == 4, "and not 8, where the lost epoch's segments end"

    told(story)


def test_readers_learn_whether_records_are_deleted_or_lost(told: Any) -> None:
    def error_at(world: World, offset: int) -> ErrorCode:
        with pytest.raises(ApiError) as failed:
            world.reader.find(world.tiered.owner, world.log, offset)
        return failed.value.code

    async def story(world: World) -> None:
        world.append(12)
        await world.round()
        world.retain()
        lost = world.reader.find(world.tiered.owner, world.log, 4)
        await delete_segment(world.shared, world.tiered.owner, lost)
        assert error_at(world, 4) is ErrorCode.KAFKA_STORAGE_ERROR
        world.log.advance_log_start(6)
        assert error_at(world, 4) is ErrorCode.OFFSET_OUT_OF_RANGE
        assert world.reader.find(world.tiered.owner, world.log, 6).start_offset == 6

    told(story)


def test_a_disk_that_cannot_be_read_does_not_end_the_metrics(told: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        world.append(5)
        assert world.tiered.lag()[0] == 4 * SIZE

        def fails(_segment: Segment) -> int:
            raise OSError(errno.EIO, "no disk")

        monkeypatch.setattr(Segment, "written_ms", fails)
        assert world.tiered.lag() == (4 * SIZE, 0)

    told(story)
