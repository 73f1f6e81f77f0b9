"""The leader's side, rule by rule; the rules together are in test_world.py."""

from __future__ import annotations

import pytest

from kbroker.protocol.errors import ErrorCode
from kbroker.replication.leadership import Granted, Leadership, Proposal, compare_epochs

LAG = 1000
ALL = (1, 2, 3)


def leading(isr: tuple[int, ...] = ALL, end: int = 10, epoch: int = 5, now: int = 0) -> Leadership:
    """Return broker 1 as leader from offset `end` on."""
    leadership = Leadership(1)
    assert leadership.lead(Granted(epoch, 7, frozenset(isr)), ALL, end, now, is_new_leader=True)
    return leadership


def mark(leadership: Leadership, end: int, now: int = 0, min_isr: int = 1, live: tuple[int, ...] = ALL) -> int | None:
    return leadership.high_watermark(end, now, LAG, min_isr, live)


def test_the_high_watermark_waits_for_all_in_sync() -> None:
    leadership = leading()
    assert mark(leadership, 10) == -1  # nobody has fetched yet
    leadership.fetched(2, 10, 0, 12, 1)
    assert mark(leadership, 12) == -1
    leadership.fetched(3, 11, 0, 12, 1)
    assert mark(leadership, 12) == 10


def test_the_high_watermark_waits_for_who_is_about_to_be_in_sync_and_for_nobody_else() -> None:
    leadership = leading(isr=(1, 2))
    leadership.fetched(2, 12, 0, 12, 0)
    assert mark(leadership, 12) == 12  # 3 is unknown
    leadership.fetched(3, 12, 0, 12, 1)
    leadership.fetched(2, 14, 0, 14, 1)
    assert mark(leadership, 14, now=1) == 12
    assert mark(leadership, 14, now=1, live=(1, 2)) == 14
    assert mark(leadership, 14, now=1 + LAG) == 12
    assert mark(leadership, 14, now=2 + LAG) == 14


def test_the_high_watermark_waits_for_who_was_moved_away_and_is_in_sync_still() -> None:
    """A controller that takes over now finds it in sync, and among the replicas in the topic's znode."""
    leadership = leading(isr=(1, 2, 3))
    for follower in (2, 3):
        leadership.fetched(follower, 12, 0, 12, 0)
    assert not leadership.lead(Granted(5, 8, frozenset(ALL)), (1, 3), 12, 0, is_new_leader=False)
    leadership.fetched(3, 14, 0, 14, 1)
    assert mark(leadership, 14, now=1) == 12
    assert not leadership.lead(Granted(5, 9, frozenset((1, 3))), (1, 3), 14, 1, is_new_leader=False)
    assert mark(leadership, 14, now=1) == 14
    assert leadership.to_expand(2, 12, ALL) is None


def test_who_was_moved_away_and_let_out_by_its_leader_does_not_come_in_again() -> None:
    leadership = leading(isr=(1, 2, 3))
    leadership.lead(Granted(5, 8, frozenset(ALL)), (1, 3), 10, 0, is_new_leader=False)
    leadership.fetched(3, 10, 0, 10, 2 * LAG)
    proposed = leadership.to_shrink(10, 3 * LAG, 2 * LAG)
    assert proposed is not None
    assert proposed.isr == {1, 3}
    assert leadership.granted(proposed, Granted(5, 9, proposed.isr))
    leadership.fetched(2, 10, 0, 10, 3 * LAG)
    assert leadership.to_expand(2, 10, ALL) is None


def test_the_high_watermark_stays_while_too_few_are_in_sync() -> None:
    leadership = leading(isr=(1,))
    assert mark(leadership, 12, min_isr=2) is None
    assert mark(leadership, 12, min_isr=1) == 12
    leadership.lead(Granted(5, 8, frozenset((1,))), (1,), 12, 0, is_new_leader=False)
    assert mark(leadership, 12, min_isr=2) == 12  # there is no second replica to wait for


def test_what_all_in_sync_have_is_known_however_few_they_are() -> None:
    leadership = leading(isr=(1, 2))
    assert leadership.copied(12, 0, LAG, ALL) == -1
    leadership.fetched(2, 11, 0, 12, 1)
    assert (mark(leadership, 12, min_isr=3), leadership.copied(12, 1, LAG, ALL)) == (None, 11)
    proposed = leadership.to_shrink(12, 3 * LAG, LAG)
    assert proposed is not None
    assert leadership.copied(12, 3 * LAG, LAG, ALL) == 11, "until the controller has agreed"
    leadership.granted(proposed, Granted(5, 8, frozenset((1,))))
    assert (mark(leadership, 12, 3 * LAG, min_isr=2), leadership.copied(12, 3 * LAG, LAG, ALL)) == (None, 12)


def test_who_is_let_in_has_the_high_watermark_and_the_start_of_the_epoch() -> None:
    leadership = leading(isr=(1,), end=10)
    leadership.fetched(2, 9, 0, 12, 1)
    assert leadership.to_expand(2, 8, ALL) is None  # what is committed between 8 and 10 is not known here
    leadership.fetched(2, 10, 0, 12, 1)
    assert leadership.to_expand(2, 11, ALL) is None
    assert leadership.to_expand(2, 10, (1, 3)) is None
    assert leadership.to_expand(4, 0, (1, 4)) is None
    proposal = leadership.to_expand(2, 10, ALL)
    assert proposal == Proposal(5, 7, frozenset((1, 2)))
    leadership.fetched(3, 12, 0, 12, 1)
    assert leadership.to_expand(3, 10, ALL) is None  # one change at a time
    assert leadership.maximal_isr == frozenset((1, 2))
    assert leadership.isr == frozenset((1,))


def test_who_comes_in_holds_the_high_watermark_back_before_it_is_granted() -> None:
    leadership = leading(isr=(1,), end=10)
    leadership.fetched(2, 10, 0, 10, 0)
    assert leadership.to_expand(2, 10, ALL) is not None
    assert mark(leadership, 15, now=10 * LAG, live=()) == 10


def test_who_goes_out_holds_the_high_watermark_back_until_it_is_granted() -> None:
    leadership = leading(end=10)
    leadership.fetched(2, 12, 0, 12, LAG)
    leadership.fetched(3, 10, 0, 12, LAG)
    assert leadership.to_shrink(12, LAG, LAG) is None  # 3 was in sync when the epoch began
    proposal = leadership.to_shrink(12, LAG + 1, LAG)
    assert proposal == Proposal(5, 7, frozenset((1, 2)))
    assert mark(leadership, 12, now=LAG + 1) == 10
    assert leadership.to_shrink(12, 9 * LAG, LAG) is None
    assert leadership.granted(proposal, Granted(5, 8, frozenset((1, 2))))
    assert mark(leadership, 12, now=9 * LAG) == 12
    assert (leadership.isr, leadership.partition_epoch) == (frozenset((1, 2)), 8)


def test_who_has_all_is_in_sync_however_long_ago_it_asked() -> None:
    leadership = leading(end=10)
    for each in (2, 3):
        leadership.fetched(each, 10, 0, 10, 1)
    assert leadership.to_shrink(10, 100 * LAG, LAG) is None
    assert leadership.to_shrink(11, 100 * LAG, LAG) is not None


def test_who_always_has_what_there_was_when_it_last_asked_is_in_sync() -> None:
    """Small batches arrive all the time, so that no fetch ever reaches the end."""
    leadership = leading(isr=(1, 2), end=10)
    for second in range(1, 10):
        leadership.fetched(2, 10 * second, 0, 10 * second + 10, second * 900)
        assert leadership.to_shrink(10 * second + 15, second * 900 + 50, LAG) is None


@pytest.mark.parametrize(
    ("error", "again", "open_still"),
    [
        (ErrorCode.INELIGIBLE_REPLICA, False, False),
        (ErrorCode.OPERATION_NOT_ATTEMPTED, False, False),
        (ErrorCode.INVALID_UPDATE_VERSION, False, True),
        (ErrorCode.FENCED_LEADER_EPOCH, False, True),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, False, True),
        (ErrorCode.UNKNOWN_TOPIC_ID, False, True),
        (ErrorCode.INVALID_REQUEST, False, True),
        (ErrorCode.NEW_LEADER_ELECTED, False, True),
        (ErrorCode.NOT_CONTROLLER, True, True),
        (ErrorCode.UNKNOWN_SERVER_ERROR, True, True),
    ],
)
def test_a_refusal_leaves_open_what_may_have_been_granted(error: ErrorCode, again: bool, open_still: bool) -> None:
    leadership = leading(isr=(1, 2), end=10)
    proposal = leadership.to_shrink(11, 9 * LAG, LAG)
    assert proposal is not None
    assert leadership.refused(proposal, error) is again
    assert (leadership.proposed is proposal) is open_still
    assert not leadership.refused(Proposal(5, 7, frozenset((1,))), error)  # a response to another proposal


def test_what_is_older_than_known_changes_nothing() -> None:
    leadership = leading(isr=(1, 2), end=10)
    proposal = leadership.to_shrink(11, 9 * LAG, LAG)
    assert proposal is not None
    assert not leadership.granted(proposal, Granted(6, 9, frozenset((1,))))  # of a later leader epoch
    assert not leadership.granted(proposal, Granted(5, 6, frozenset((1,))))
    assert not leadership.lead(Granted(6, 6, frozenset((1,))), ALL, 11, 0, is_new_leader=False)
    assert not leadership.follow(Granted(6, 6, frozenset((1,))), ALL)
    assert (leadership.leader_epoch, leadership.isr, leadership.proposed) == (5, frozenset((1, 2)), proposal)
    assert not leadership.lead(
        Granted(5, 8, frozenset(ALL)), ALL, 11, 0, is_new_leader=False
    )  # the same epoch, another set
    assert (leadership.isr, leadership.proposed, leadership.epoch_start) == (frozenset(ALL), None, 10)
    assert not leadership.granted(proposal, Granted(5, 9, frozenset((1,))))


def test_a_new_epoch_gives_who_is_in_sync_its_time_from_now() -> None:
    leadership = leading(isr=ALL, end=10)
    leadership.fetched(2, 10, 0, 12, 0)
    leadership.fetched(3, 10, 0, 12, 0)
    assert leadership.lead(Granted(6, 8, frozenset((1, 2))), ALL, 12, 50 * LAG, is_new_leader=False)
    assert leadership.epoch_start == 12
    assert leadership.to_shrink(12, 51 * LAG, LAG) is None
    assert leadership.to_shrink(12, 51 * LAG + 1, LAG) is not None
    assert dict(leadership.followers)[2].end_offset == 10  # led all along: what is known still holds
    assert leadership.lead(Granted(7, 9, frozenset(ALL)), ALL, 12, 99 * LAG, is_new_leader=True)
    assert dict(leadership.followers)[2].end_offset == -1


def test_a_follower_that_leads_no_more_knows_nothing_of_others() -> None:
    leadership = leading()
    leadership.fetched(2, 10, 0, 10, 0)
    assert leadership.follow(Granted(6, 8, frozenset((2, 3))), ALL)
    assert (list(leadership.followers), leadership.isr, leadership.epoch_start) == ([], frozenset(), -1)
    assert leadership.fetched(2, 10, 0, 10, 0) is None


def test_acks_of_all() -> None:
    leadership = leading(isr=(1, 2), end=10)
    assert leadership.enough(2)
    assert leadership.verdict(11, 10, 2) is None
    assert leadership.verdict(11, 11, 2) is ErrorCode.NONE
    leadership.lead(Granted(5, 8, frozenset((1,))), ALL, 11, 0, is_new_leader=False)
    assert not leadership.enough(2)
    assert leadership.verdict(11, 11, 2) is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    assert leadership.verdict(11, 10, 2) is None


def test_the_low_watermark_is_that_of_all_who_live() -> None:
    leadership = leading()
    leadership.fetched(2, 10, 4, 10, 0)
    leadership.fetched(3, 10, 2, 10, 0)
    assert leadership.low_watermark(6, ALL) == 2
    assert leadership.low_watermark(6, (1, 2)) == 4
    assert leadership.low_watermark(6, (1,)) == 6


@pytest.mark.parametrize(
    ("epoch", "code"),
    [
        (-5, ErrorCode.FENCED_LEADER_EPOCH),
        (-1, ErrorCode.NONE),
        (2, ErrorCode.FENCED_LEADER_EPOCH),
        (3, ErrorCode.NONE),
        (4, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_a_clients_leader_epoch_beside_a_replicas_own(epoch: int, code: ErrorCode) -> None:
    """As Apache Kafka 4.4 answers."""
    assert compare_epochs(epoch, 3) is code
