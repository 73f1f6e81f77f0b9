"""The answers to elections and reassignments on a single broker."""

from __future__ import annotations

import pytest

from kbroker.cluster_state import NO_LEADER, ClusterState, PartitionState, TopicState
from kbroker.controller.single_broker import alter_reassignments, elect_leaders
from kbroker.long_work import whole
from kbroker.protocol.errors import ErrorCode

ME = 3
LED, LOST = PartitionState((ME,), (ME,), ME, 0), PartitionState((ME,), (ME,), NO_LEADER, 1)
STATE = ClusterState("cluster", topics={"orders": TopicState("orders", b"i" * 16, (LED, LOST))})


@pytest.mark.parametrize(
    ("kind", "partition", "code"),
    [
        (0, ("orders", 0), ErrorCode.ELECTION_NOT_NEEDED),
        (1, ("orders", 0), ErrorCode.ELECTION_NOT_NEEDED),
        (0, ("orders", 1), ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE),
        (1, ("orders", 1), ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE),
        (0, ("orders", 2), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (0, ("orders", -1), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (0, ("payments", 0), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_nobody_else_can_be_elected(kind: int, partition: tuple[str, int], code: ErrorCode) -> None:
    error = whole(elect_leaders(STATE, kind, [partition]))[partition]
    assert error is not None
    assert error.code is code


@pytest.mark.parametrize(
    ("partition", "target", "code"),
    [
        (("orders", 0), [ME], None),
        (("orders", 0), None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
        (("orders", 0), [], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (("orders", 0), [ME, ME], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (("orders", 0), [ME, 4], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (("orders", 0), [-1] * 1_000_000, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (("orders", 9), [ME], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (("payments", 0), None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_nothing_can_go_elsewhere(partition: tuple[str, int], target: list[int] | None, code: ErrorCode | None) -> None:
    error = whole(alter_reassignments(STATE, ME, {partition: target}))[partition]
    assert (None if error is None else error.code) is code
