"""The bytes of `__remote_log_metadata`: in the form of Apache Kafka 4.4.0, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kbroker.protocol.errors import Malformed
from kbroker.remote.metadata_records import (
    decode_record,
    delete_record,
    encode_record,
    metadata_partition,
    segment_of,
    segment_record,
    snapshot_record,
    update_record,
)
from kbroker.remote.segment import DeleteState, RemoteSegment, SegmentState

TOPIC_ID = bytes(range(16))
SEGMENT_ID = bytes(range(16, 32))
SEGMENT = RemoteSegment(
    SEGMENT_ID, 5, 9, 1000, 2000, 1, 300, ((0, 5), (2, 7)), SegmentState.COPY_SEGMENT_FINISHED, b"c", True
)
OWNER = "0274" + TOPIC_ID.hex() + "00000003" + "00"
DESCRIBED = "0000000000000005" + "0000000000000009" + "00000001" + "00000000000003e8" + "00000000000007d0"
DESCRIBED += "03" + "00000000" + "0000000000000005" + "00" + "00000002" + "0000000000000007" + "00" + "0000012c"
DESCRIBED += "0263" + "01" + "01" + "00" + "01" + "01"
CASES = [
    (segment_record("t", TOPIC_ID, 3, SEGMENT), "010000" + OWNER + SEGMENT_ID.hex() + "00" + DESCRIBED),
    (
        update_record("t", TOPIC_ID, 3, replace(SEGMENT, custom=None)),
        "010100" + OWNER + SEGMENT_ID.hex() + "00" + "00000001" + "00000000000007d0" + "00" + "01" + "00",
    ),
    (
        delete_record("t", TOPIC_ID, 3, DeleteState.DELETE_PARTITION_STARTED, 1, 2000),
        "010200" + OWNER + "00000001" + "00000000000007d0" + "01" + "00",
    ),
    (snapshot_record(SEGMENT), "010300" + SEGMENT_ID.hex() + DESCRIBED),
]


@pytest.mark.parametrize(("record", "expected"), CASES, ids=lambda each: type(each).__name__)
def test_bytes_are_kafkas(record, expected):
    value = encode_record(record)
    assert value.hex() == expected
    assert decode_record(value) == record
    for at in range(len(value)):
        with pytest.raises(Malformed):
            decode_record(value[:at])
    with pytest.raises(Malformed, match="1 bytes after the message"):
        decode_record(value + b"\0")


def test_a_segment_survives_its_records():
    assert segment_of(segment_record("t", TOPIC_ID, 3, SEGMENT)) == SEGMENT
    assert segment_of(snapshot_record(SEGMENT)) == SEGMENT


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("", "ends in its frame version"),
        ("000000", "frame version 0, not 1"),
        ("020000", "frame version 2, not 1"),
        ("010400", "unknown type 4"),
        ("010001", "unknown version 1"),
        ("01808080808000", "longer than five bytes"),
        ("01ffff7f00", "too large"),
    ],
)
def test_a_false_head_is_refused(value, why):
    with pytest.raises(Malformed, match=why):
        decode_record(bytes.fromhex(value))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"start_offset": -1}, "offsets -1 to 9"),
        ({"end_offset": 4}, "offsets 5 to 4"),
        ({"epochs": ()}, "no leader epochs"),
        ({"state": 4}, "unknown state 4"),
    ],
)
def test_a_segment_that_cannot_be_is_refused(changes, why):
    value = encode_record(segment_record("t", TOPIC_ID, 3, replace(SEGMENT, **changes)))
    with pytest.raises(Malformed, match=why):
        decode_record(value)


def test_a_field_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="RemoteLogSegmentMetadataRecord has a field"):
        encode_record(segment_record("t", TOPIC_ID, 3, replace(SEGMENT, size=1 << 31)))


def test_partitions_are_in_range_and_spread():
    found = {metadata_partition(TOPIC_ID, number, 50) for number in range(1000)}
    assert found == set(range(50))
