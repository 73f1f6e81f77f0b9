"""A client's idea of the leader epoch, held against a replica's own, as Apache Kafka 4.3 answers it."""

from __future__ import annotations

import pytest

from kbroker.protocol.errors import ErrorCode
from kbroker.replication.leader_epoch_check import compared


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
def test_an_epoch_beside_that_of_a_replica(epoch: int, code: ErrorCode) -> None:
    assert compared(epoch, 3) is code
