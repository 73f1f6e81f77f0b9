"""The follower's side, response by response."""

from __future__ import annotations

import pytest

from kbroker.log.leader_epochs import LeaderEpochCache
from kbroker.protocol.errors import ErrorCode
from kbroker.replication.following import (
    Append,
    AskOffsets,
    BackOff,
    Condition,
    Following,
    GiveUp,
    Ignore,
    Restart,
    Step,
    Truncate,
    truncation_offset,
)

END = 20


def unknown(_: int) -> tuple[int, int]:
    return -1, -1


def answer(
    way: Following, error: ErrorCode = ErrorCode.NONE, *, offset: int = END, epoch: int = 4, parts: bool = False
) -> Step:
    return way.answered(offset, epoch, error, (3, 15) if parts else None, END, unknown)


@pytest.fixture
def way() -> Following:
    return Following(leader=2, leader_epoch=4, end_offset=END, last_epoch=3)


def test_records_are_appended_and_the_next_fetch_is_behind_them(way: Following) -> None:
    assert answer(way) == Append()
    way.appended(25, 4)
    assert (way.fetch_offset, way.last_fetched_epoch) == (25, 4)
    assert answer(way) == Ignore()  # a response to an earlier request


def test_a_log_that_parts_from_the_leaders_is_cut_and_nothing_else_of_the_answer_counts(way: Following) -> None:
    assert answer(way, parts=True) == Truncate(15)
    way.truncated(15, 2)
    assert (way.fetch_offset, way.last_fetched_epoch) == (15, 2)


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ],
)
def test_most_errors_pass(way: Following, error: ErrorCode) -> None:
    assert answer(way, error) == BackOff()
    assert answer(way) == Append()


def test_an_old_epoch_waits_for_the_controller(way: Following) -> None:
    assert answer(way, ErrorCode.FENCED_LEADER_EPOCH, epoch=3) == BackOff()  # requested before the epoch was known
    assert answer(way, ErrorCode.FENCED_LEADER_EPOCH) == GiveUp()
    assert way.condition is Condition.FAILED
    assert answer(way) == Ignore()


@pytest.mark.parametrize(
    ("leader_start", "leader_end", "expected"),
    [(0, 15, Truncate(15)), (30, 40, Restart(30)), (10, 40, Ignore()), (0, END, Ignore())],
)
def test_out_of_range(way: Following, leader_start: int, leader_end: int, expected: Step) -> None:
    assert answer(way, ErrorCode.OFFSET_OUT_OF_RANGE) == AskOffsets()
    assert answer(way) == Ignore()
    assert way.offsets_received(ErrorCode.NONE, leader_start, leader_end, END) == expected
    assert way.condition is Condition.FETCHING


def test_the_leaders_offsets_may_not_be_had(way: Following) -> None:
    assert way.offsets_received(ErrorCode.NONE, 0, 15, END) == Ignore()
    answer(way, ErrorCode.OFFSET_OUT_OF_RANGE)
    assert way.offsets_received(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, -1, END) == BackOff()
    answer(way, ErrorCode.OFFSET_OUT_OF_RANGE)
    assert way.offsets_received(ErrorCode.FENCED_LEADER_EPOCH, -1, -1, END) == GiveUp()


def test_a_broken_log_is_left_alone(way: Following) -> None:
    way.broken()
    assert answer(way) == Ignore()


class Epochs(LeaderEpochCache):
    def _write(self, *, sync: bool = True) -> None:
        pass


@pytest.mark.parametrize(
    ("diverging", "expected"),
    [
        ((3, 17), 17),  # the epoch is known here, and longer here than there
        ((3, 30), END),
        ((1, 8), 8),
        ((1, 30), 10),  # it ends earlier here: the leader's later epoch is not the one that follows here
        ((2, 12), 10),  # not known here: behind the largest below, and ask again
        ((0, 4), 4),  # nothing so low is known here
        ((-1, 6), 6),
    ],
)
def test_where_a_log_is_cut(diverging: tuple[int, int], expected: int) -> None:
    epochs = Epochs("/nowhere")
    epochs.assign(1, 5)
    epochs.assign(3, 10)
    assert truncation_offset(diverging, END, lambda epoch: epochs.end_offset_for(epoch, END)) == expected
