"""The controller's elections, case by case, and properties that hold for all of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kbroker.controller.elections import (
    elect_for_shutdown,
    elect_of_target,
    elect_offline,
    elect_preferred,
    first_state,
    without_replica,
)
from kbroker.controller.znodes import LeaderAndIsr

STATE = LeaderAndIsr(leader=1, leader_epoch=5, isr=(1, 2, 3), controller_epoch=7)
REPLICAS = (1, 2, 3)
EPOCH = 8


def state(leader: int, *isr: int, epoch: int = 6, recovering: bool = False) -> LeaderAndIsr:
    return LeaderAndIsr(leader, epoch, isr, EPOCH, recovering)


def test_a_new_partition_has_all_who_are_online_in_sync() -> None:
    assert first_state((3, 1, 2), {1, 2}, EPOCH) == state(1, 1, 2, epoch=0)
    assert first_state((3, 1), {2}, EPOCH) is None


def test_a_leader_that_is_gone_is_followed_by_the_first_in_sync() -> None:
    assert elect_offline(STATE, (1, 3, 2), {2, 3}, EPOCH, unclean=False) == state(3, 2, 3)
    assert elect_offline(STATE, (4, 3, 2), {2, 3, 4}, EPOCH, unclean=True) == state(3, 2, 3)


def test_without_anybody_in_sync_only_an_unclean_election_finds_one() -> None:
    alone = LeaderAndIsr(-1, 5, (1,), 7)
    assert elect_offline(alone, REPLICAS, {2, 3}, EPOCH, unclean=False) is None
    assert elect_offline(alone, REPLICAS, {3, 2}, EPOCH, unclean=True) == state(2, 2, recovering=True)
    assert elect_offline(alone, REPLICAS, {9}, EPOCH, unclean=True) is None
    assert elect_offline(alone, REPLICAS, {1, 2}, EPOCH, unclean=True) == state(1, 1)


def test_recovering_stays_until_the_leader_says_otherwise() -> None:
    recovering = LeaderAndIsr(1, 5, (1,), 7, recovering=True)
    assert elect_offline(recovering, REPLICAS, {1}, EPOCH, unclean=False) == state(1, 1, recovering=True)


def test_the_preferred_leader_is_the_first_replica_or_nobody() -> None:
    assert elect_preferred(STATE, (2, 1, 3), {1, 2, 3}, EPOCH) == state(2, 1, 2, 3)
    assert elect_preferred(STATE, (2, 1, 3), {1, 3}, EPOCH) is None
    assert elect_preferred(STATE, (4, 1, 3), {1, 3, 4}, EPOCH) is None


def test_a_partition_that_is_moved_is_led_by_one_of_the_target() -> None:
    assert elect_of_target(STATE, (4, 3, 2), {1, 2, 3, 4}, EPOCH) == state(3, 1, 2, 3)
    assert elect_of_target(STATE, (4,), {4}, EPOCH) is None


def test_who_shuts_down_leads_no_more_and_is_not_in_sync() -> None:
    assert elect_for_shutdown(STATE, REPLICAS, {1, 2, 3}, {1, 2}, EPOCH) == state(3, 3)
    assert elect_for_shutdown(STATE, REPLICAS, {1, 2, 3}, {1, 2, 3}, EPOCH) is None
    assert elect_for_shutdown(STATE, REPLICAS, {1}, {1}, EPOCH) is None


def test_a_replica_that_went_away() -> None:
    assert without_replica(STATE, 3, EPOCH) == state(1, 1, 2)
    assert without_replica(STATE, 1, EPOCH) == state(-1, 2, 3)
    assert without_replica(STATE, 4, EPOCH) is None
    assert without_replica(LeaderAndIsr(1, 5, (1,), 7), 1, EPOCH) == state(-1, 1)


nodes = st.lists(st.integers(1, 5), unique=True, min_size=1, max_size=5)


@given(nodes, st.data(), st.sets(st.integers(1, 5)), st.sets(st.integers(1, 5)), st.booleans())
def test_every_election_is_a_new_epoch_led_by_one_in_sync(
    replicas: list[int], data: st.DataObject, online: set[int], leaving: set[int], unclean: bool
) -> None:
    isr = tuple(data.draw(st.lists(st.sampled_from(replicas), unique=True, min_size=1)))
    before = LeaderAndIsr(isr[0], 5, isr, 7)
    after = {
        "offline": elect_offline(before, replicas, online, EPOCH, unclean=unclean),
        "preferred": elect_preferred(before, replicas, online, EPOCH),
        "target": elect_of_target(before, replicas, online, EPOCH),
        "shutdown": elect_for_shutdown(before, replicas, online, leaving, EPOCH),
    }
    for kind, each in after.items():
        if each is not None:
            assert (each.leader_epoch, each.controller_epoch) == (6, EPOCH), kind
            assert each.leader in each.isr, kind
            assert each.leader in online, kind
            assert set(each.isr) <= set(isr) or (kind == "offline" and unclean and each.recovering), kind
            assert kind != "shutdown" or not leaving & set(each.isr)
