"""The share coordinator's decisions: fencing, updates and snapshots, pruning, deleted topics, refusals."""

from __future__ import annotations

import pytest

from kbroker.protocol.errors import ErrorCode
from kbroker.share_coordinator.shard import MOST_BATCHES
from kbroker.share_coordinator.share_partition_state import SNAPSHOT, UPDATE, SharePartition

from .context import OTHER, PLACE, TOPIC, Context

OK = ErrorCode.NONE


def kinds(context):
    return [int.from_bytes(record.key[:2], "big") for record in context.log]


def test_a_state_is_initialised_written_and_read():
    context = Context()
    assert context.read().error_code is ErrorCode.INVALID_REQUEST
    assert context.write().error_code is ErrorCode.INVALID_REQUEST
    assert context.summary()[:5] == (OK, 0, 0, -1, -1)
    assert context.initialize(epoch=2, start=10).error_code is OK
    assert context.write([(10, 14, 2, 1), (15, 19, 0, 1)], epoch=2, count=5).error_code is OK
    found = context.read()
    assert found[:4] == (OK, 2, 10, ((10, 14, 2, 1), (15, 19, 0, 1)))
    assert context.write(start=15, epoch=2, count=0).error_code is OK
    assert context.read()[:4] == (OK, 2, 15, ((15, 19, 0, 1),))
    assert context.summary()[:5] == (OK, 2, 0, 15, 0)
    assert context.restarted().states == context.states


def test_the_delivery_complete_count_belongs_to_the_start_offset():
    context = Context()
    context.initialize(start=10)
    context.write(start=10, count=4)
    context.write(start=10, count=3)
    assert context.summary().delivery_complete_count == 4
    context.write(start=5, count=9)
    assert context.summary()[3:5] == (10, 4)
    context.write(start=12, count=1)
    assert context.summary()[3:5] == (12, 1)


def test_an_unset_start_offset_has_no_count():
    context = Context()
    context.initialize(start=-1)
    assert context.summary()[3:5] == (-1, -1)
    assert context.read()[:4] == (OK, 0, -1, ())


def test_epochs_fence():
    context = Context()
    context.initialize(epoch=3)
    assert context.initialize(epoch=2).error_code is ErrorCode.FENCED_STATE_EPOCH
    assert context.write(epoch=2).error_code is ErrorCode.FENCED_STATE_EPOCH
    assert context.read(leader_epoch=5).error_code is OK
    assert context.read(leader_epoch=4).error_code is ErrorCode.FENCED_LEADER_EPOCH
    assert context.write(epoch=3, leader_epoch=4).error_code is ErrorCode.FENCED_LEADER_EPOCH
    assert context.write(epoch=3, leader_epoch=5).error_code is OK
    after = context.restarted()
    assert after.write(epoch=3, leader_epoch=4).error_code is ErrorCode.FENCED_LEADER_EPOCH


def test_a_read_writes_only_a_new_leader_epoch():
    context = Context()
    context.initialize()
    context.read(leader_epoch=1)
    written = len(context.log)
    context.read(leader_epoch=1)
    assert len(context.log) == written == 2
    assert context.summary().leader_epoch == 1


@pytest.mark.parametrize("place", [SharePartition("g", TOPIC, 3), SharePartition("g", b"x" * 16, 0)])
def test_a_partition_that_does_not_exist_has_no_state(place):
    context = Context()
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert context.initialize(place=place).error_code is unknown
    assert context.summary(place).error_code is unknown
    assert context.delete(place).error_code is unknown
    assert context.read(place=place).error_code is ErrorCode.INVALID_REQUEST
    assert not context.log


def test_negative_numbers_are_refused():
    context = Context()
    negative = SharePartition("g", TOPIC, -1)
    for answer in (
        context.initialize(place=negative),
        context.read(place=negative),
        context.write(place=negative),
        context.delete(negative),
        context.summary(negative),
    ):
        assert answer.error_code is ErrorCode.INVALID_REQUEST
        assert answer.message == "The partition id cannot be a negative number."
    context.initialize()
    assert context.write(leader_epoch=-1).message == "The leader epoch cannot be a negative number."
    assert context.write(epoch=-1).message == "The state epoch cannot be a negative number."
    assert context.initialize(epoch=-1).message == "The state epoch cannot be a negative number."


def test_ranges_that_are_none_and_too_many_are_refused():
    context = Context()
    context.initialize()
    written = len(context.log)
    assert context.write([(5, 4, 0, 1)]).error_code is ErrorCode.INVALID_REQUEST
    many = [(2 * n, 2 * n, 0, 1) for n in range(2 * MOST_BATCHES + 1)]
    assert context.write(many).error_code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert len(context.log) == written


def test_a_snapshot_follows_so_many_updates():
    context = Context(updates_per_snapshot=2)
    context.initialize()
    for _ in range(6):
        context.write()
    assert kinds(context) == [SNAPSHOT, UPDATE, UPDATE, SNAPSHOT, UPDATE, UPDATE, SNAPSHOT]
    assert context.states[PLACE].snapshot_epoch == 2


def test_without_updates_every_write_is_a_snapshot():
    context = Context(updates_per_snapshot=0)
    context.initialize()
    context.write([(0, 4, 2, 1)])
    context.write([(5, 9, 2, 1)])
    assert kinds(context) == [SNAPSHOT] * 3
    assert context.states[PLACE].batches == ((0, 9, 2, 1),)


def test_records_before_the_oldest_snapshot_are_pruned():
    context = Context(updates_per_snapshot=1)
    second = SharePartition("h", TOPIC, 1)
    context.initialize()
    context.initialize(place=second)
    context.fire(("prune",))
    assert context.pruned == []
    for _ in range(4):
        context.write()
    context.fire(("prune",))
    assert context.pruned == [1]
    context.delete(second)
    context.write()
    context.write()
    context.fire(("prune",))
    assert context.pruned[-1] > 1
    assert context.restarted(pruned=True).states == context.states


def test_an_idle_state_is_snapshotted_so_that_older_records_can_go():
    context = Context(updates_per_snapshot=1)
    idle = SharePartition("idle", TOPIC, 1)
    context.initialize(place=idle)
    context.initialize()
    context.advance(200_000)
    context.write()
    context.write()
    context.advance(110_000)
    assert context.states[idle].is_cold
    assert not context.states[PLACE].is_cold
    context.advance(60_000)
    assert context.pruned[-1] > 0
    assert context.restarted(pruned=True).states == context.states
    context.advance(300_000)
    written = len(context.log)
    context.advance(3_000_000)
    assert len(context.log) == written, "a state that is cold is not written again"


def test_an_uncommitted_snapshot_prunes_nothing_yet():
    context = Context(updates_per_snapshot=0)
    context.initialize()
    context.lag = True
    context.write()
    context.fire(("prune",))
    assert context.pruned == []
    context.catch_up()
    assert context.pruned == [1]


def test_a_deleted_topic_leaves_no_state():
    context = Context()
    other = SharePartition("g", OTHER, 0)
    context.initialize(place=other)
    for group in range(450):
        context.initialize(place=SharePartition(f"g{group}", TOPIC, 0))
    context.fail_with = ErrorCode.NOT_ENOUGH_REPLICAS
    context.ask(lambda shard, _now: shard.on_topics_deleted([TOPIC]))
    assert len(context.states) == 451
    context.fail_with = ErrorCode.NONE
    context.advance(2_000)
    assert set(context.states) == {other}
    assert set(context.restarted().states) == {other}


def test_states_of_topics_that_were_deleted_meanwhile_go_after_a_load():
    context = Context()
    other = SharePartition("g", OTHER, 0)
    context.initialize()
    context.initialize(place=other)
    context.advance(700_000)
    assert all(state.is_cold for state in context.states.values())
    after = context.restarted()
    del after.topics[TOPIC]
    records = len(after.log)
    after.advance(400_000)
    assert set(after.states) == {other}
    assert len(after.log) == records + 1, "cold states are not written again"


def test_a_failed_write_changes_nothing():
    context = Context()
    context.initialize()
    before = context.states
    context.fail_with = ErrorCode.NOT_ENOUGH_REPLICAS
    assert context.write([(0, 4, 2, 1)]) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert context.read(leader_epoch=3) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert context.states == before


def test_records_of_other_types_are_ignored():
    context = Context()
    context.initialize()
    with context.loop.running():
        context.shard.replay(9, -1, b"\x00\x07abc", b"\x00\x00")
    assert set(context.states) == {PLACE}
