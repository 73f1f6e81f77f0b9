"""A request in which one partition cannot be read: the other partitions are answered."""

from __future__ import annotations

import errno

import pytest

from kbroker.log.partition_log import PartitionLog
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.logs import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from kbroker.protocol.messages.topics import CreatableTopic, CreateTopicsRequest

UNREADABLE = OSError(errno.EMFILE, "too many open files")  # a temporary error, so the directory stays in use
DAMAGED = ApiError(ErrorCode.CORRUPT_MESSAGE)
EARLIEST = -2


@pytest.fixture
def client(connect):
    found = connect()
    topics = [CreatableTopic("read-in-part", 2, 1)]
    found.ask(CreateTopicsRequest(topics=topics, timeout_ms=5000), 7)
    return found


def failing_for_the_first(error, inner):
    def ask(log, *arguments):
        if (log.topic, log.partition) == ("read-in-part", 0):
            raise error
        return inner(log, *arguments)

    return ask


@pytest.mark.parametrize(
    ("error", "code"), [(DAMAGED, ErrorCode.CORRUPT_MESSAGE), (UNREADABLE, ErrorCode.KAFKA_STORAGE_ERROR)]
)
@pytest.mark.parametrize("timestamp", [EARLIEST, 0])
def test_list_offsets_answers_for_the_others(client, monkeypatch, error, code, timestamp):
    for name in ("find_timestamp", "proven_epochs"):
        monkeypatch.setattr(PartitionLog, name, failing_for_the_first(error, getattr(PartitionLog, name)))
    partitions = [ListOffsetsPartition(index, timestamp=timestamp) for index in range(2)]
    answer = client.ask(ListOffsetsRequest(topics=[ListOffsetsTopic("read-in-part", partitions)]), 5)
    assert [p.error_code for p in answer.topics[0].partitions] == [code, 0]


def test_offset_for_leader_epoch_answers_for_the_others(client, monkeypatch):
    inner = PartitionLog.proven_epochs
    monkeypatch.setattr(PartitionLog, "proven_epochs", failing_for_the_first(UNREADABLE, inner))
    partitions = [OffsetForLeaderPartition(index, leader_epoch=0) for index in range(2)]
    request = OffsetForLeaderEpochRequest(replica_id=-1, topics=[OffsetForLeaderTopic("read-in-part", partitions)])
    answer = client.ask(request, 4)
    assert [p.error_code for p in answer.topics[0].partitions] == [ErrorCode.KAFKA_STORAGE_ERROR, 0]
