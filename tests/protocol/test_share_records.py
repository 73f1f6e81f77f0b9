"""Bytes of share groups' records, in the form of Apache Kafka 4.4.0: an int16, then the message."""

from __future__ import annotations

import pytest

from kbroker.coordination.encoding import decode_value, encode
from kbroker.protocol.messages.coordinator_records import TopicPartition
from kbroker.protocol.messages.share_records import (
    ShareGroupCurrentMemberAssignmentValue,
    ShareGroupMemberMetadataValue,
    ShareGroupStatePartitionMetadataValue,
    ShareSnapshotKey,
    ShareSnapshotValue,
    ShareUpdateValue,
    TopicInfo,
    TopicPartitionsInfo,
)
from kbroker.protocol.messages.share_state import StateBatch

ID = bytes(range(16))
ID_HEX = ID.hex()
BATCH = StateBatch(first_offset=7, last_offset=9, delivery_state=2, delivery_count=3)
BATCH_HEX = "0000000000000007" + "0000000000000009" + "02" + "0003" + "00"

CASES = [
    (ShareSnapshotKey(group_id="g", topic_id=ID, partition=5), "0001" + "67" + ID_HEX + "00000005"),
    (
        ShareSnapshotValue(
            snapshot_epoch=1,
            state_epoch=2,
            leader_epoch=3,
            start_offset=4,
            delivery_complete_count=6,
            create_timestamp=5,
            write_timestamp=6,
            state_batches=[BATCH],
        ),
        "00000001" + "00000002" + "00000003" + "0000000000000004" + "0000000000000005" + "0000000000000006"
        "02" + BATCH_HEX + "01" + "00" + "04" + "00000006",
    ),
    (
        ShareUpdateValue(snapshot_epoch=1, leader_epoch=3, start_offset=-1, state_batches=[]),
        "00000001" + "00000003" + "ffffffffffffffff" + "01" + "00",
    ),
    (
        ShareGroupMemberMetadataValue(rack_id=None, client_id="c", client_host="/h", subscribed_topic_names=["t"]),
        "00" + "0263" + "032f68" + "02" + "0274" + "00",
    ),
    (
        ShareGroupCurrentMemberAssignmentValue(
            member_epoch=2,
            previous_member_epoch=1,
            state=0,
            assigned_partitions=[TopicPartition(topic_id=ID, partitions=[1])],
        ),
        "00000002" + "00000001" + "00" + "02" + ID_HEX + "02" + "00000001" + "00" + "00",
    ),
    (
        ShareGroupStatePartitionMetadataValue(
            initializing_topics=[],
            initialized_topics=[TopicPartitionsInfo(topic_id=ID, topic_name="t", partitions=[0])],
            deleting_topics=[TopicInfo(topic_id=ID, topic_name="u")],
        ),
        "01" + "02" + ID_HEX + "0274" + "02" + "00000000" + "00" + "02" + ID_HEX + "0275" + "00" + "00",
    ),
]


@pytest.mark.parametrize(("message", "expected"), CASES, ids=lambda each: type(each).__name__)
def test_bytes_are_kafkas(message, expected):
    encoded = encode(0, message, 0)
    assert encoded.hex() == "0000" + expected
    assert decode_value(type(message), encoded) == message
